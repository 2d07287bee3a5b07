#!/usr/bin/env bash
# Runs the black-box checks in folder $1 for the model families in $2 (comma-separated), two scripts at a time.
set -uo pipefail
checks=$1
families=$2
golden=$checks/../golden
first=${families%%,*}
export PYTHONDONTWRITEBYTECODE=1
jobs() {
    echo "http_contract.py --model $golden/$first"
    for family in ${families//,/ }; do echo "golden_check.py $golden --families $family --tolerance exact"; done
    echo "inputs_check.py $checks/../inputs --model $golden/$first"
}
run() { # what a script prints is shown in one piece, when it ends
    local said failed=0
    said=$(.venv/bin/python "$1"/$2 2>&1) || failed=1
    printf '== %s\n%s\n' "$2" "$said"
    return $failed
}
export -f run
jobs | xargs -P 2 -d '\n' -n 1 bash -c 'run "$0" "$1"' "$checks"
