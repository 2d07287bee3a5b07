#!/usr/bin/env bash
# What a user does with the compose file, on the engine that run.sh has started. Ends at the first thing that fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
url=http://127.0.0.1:8000
key="Authorization: Bearer secret"
inside() { nsenter "--net=/run/netns/$SPACE" "$@"; }
ask() { inside curl --silent --show-error --max-time 60 "$@"; }
status() { ask --output /dev/null --write-out '%{http_code}' -H 'Content-Type: image/jpeg' "$@"; }
compose() { docker compose --profile serve --profile load --profile chaos "$@"; }
up() { docker compose --profile serve up --detach --wait --pull never --no-build "$@"; }
load() { printf '\n-- %s\n' "$*" && compose run --rm -T --no-deps "$@"; }
expect() { # what, found, wanted
    [ "$2" = "$3" ] || { echo "  $1: $2 instead of $3"; exit 1; }
    echo "  $1: $2"
}
soon() { # what, and a command that succeeds within a minute
    local what=$1 end=$((SECONDS + 60))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || { echo "  $what: not within a minute"; exit 1; }
        sleep 1
    done
    echo "  $what: yes"
}
watched() { ask 'http://127.0.0.1:9090/api/v1/query?query=up' | grep -q '"1"'; }

project=$WORK/project
rm -rf "$project"
mkdir -p "$project"
cp -r docker-compose.yml deploy service "$project/"
cd "$project"
picture=$(find service/foveal/demo/pictures -name '*.jpg' | sort | head -n 1)

printf '\n-- settings of .env and of the shell\n'
printf 'FOVEAL_API_KEY=secret\nFOVEAL_PORT=9999\nFOVEAL_PREP_WORKERS=1\n' >.env
FOVEAL_SERVED_MODEL_NAME=of-the-shell up
expect "ready without a key" "$(status $url/ready)" 200
expect "encode without the key of .env" "$(status --data-binary "@$picture" $url/encode)" 401
expect "encode with it" "$(status -H "$key" --data-binary "@$picture" $url/encode)" 200
expect "a name from the shell" "$(ask -H "$key" $url/v1/models | grep -c of-the-shell)" 1
soon "Prometheus sees it" watched
expect "rules in order" "$(ask http://127.0.0.1:9090/api/v1/rules | "$BIN/python" -c '
import json, sys
groups = json.load(sys.stdin)["data"]["groups"]
print({rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"} and len(groups) > 0)')" True

load smoke
SOAK_SECONDS=${IMAGES_SOAK_SECONDS:-60} load soak
load chaos
LOAD_RATES=2,40 load sweep # the ends of what it does without
load overload
mkdir -p results
compose run --rm -T --no-deps --entrypoint tar smoke -C /results -c . | tar -x -C results
expect "figures of the load tests" "$(find results -name '*.json' | wc -l)" 5

printf '\n-- extras, a stop with requests open, the log\n'
expect "HEIC and SGLang's extras are in an image built with them" \
    "$(docker run --rm --entrypoint python foveal:extras -c 'import pillow_heif, zmq; print("yes")')" yes
inside "$BIN/python" "$here/stop_with_open_requests.py" $url secret docker compose --profile serve stop serve
expect "its exit code" "$(docker inspect --format '{{.State.ExitCode}}' foveal-serve-1)" 0
expect "lines of its log that are no JSON" "$(compose logs --no-log-prefix serve 2>/dev/null | "$BIN/python" -c '
import json, sys
bad = 0
for line in sys.stdin:
    try: json.loads(line)
    except ValueError: bad += 1; print(line, file=sys.stderr)
print(bad)')" 0

printf '\n-- a checkpoint folder of this machine\n'
mkdir -p "$WORK/checkpoints/mine"
cp service/foveal/builtin/tiny/*.json "$WORK/checkpoints/mine/"
chmod -R a+rX "$WORK/checkpoints"
FOVEAL_MODELS=$WORK/checkpoints FOVEAL_MODEL=/models/mine FOVEAL_LOAD_FORMAT=dummy up serve
expect "encode with a folder's model" "$(status -H "$key" --data-binary "@$picture" $url/encode)" 200

printf '\n-- the alerts with promtool %s\n' "$(promtool --version | sed -n 's/^promtool, version \([^ ]*\).*/\1/p')"
promtool test rules deploy/prometheus/alerts_test.yml
docker compose --profile serve --profile gpu --profile load down --volumes
expect "volumes that are left" "$(docker volume ls --quiet | wc -l)" 0
