#!/usr/bin/env bash
# Runs the black-box checks in folder $1 for the model families in $2 (comma-separated).
set -uo pipefail
checks=$1
families=$2
golden=$checks/../golden
python=.venv/bin/python
failed=0
export PYTHONDONTWRITEBYTECODE=1
run() {
    echo "== $*"
    "$python" "$@" || failed=1
}
first=${families%%,*}
run "$checks/http_contract.py" --model "$golden/$first"
run "$checks/inputs_check.py" "$checks/../inputs" --model "$golden/$first"
run "$checks/golden_check.py" "$golden" --families "$families" --tolerance exact
exit $failed
