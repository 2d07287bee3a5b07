#!/usr/bin/env bash
# What a user does with the compose file, on the engine that run.sh has started. Ends at the first thing that fails.
set -euo pipefail
key=(-H 'Authorization: Bearer secret')
ask() { nsenter "--net=/run/netns/$SPACE" curl --silent --show-error --max-time 60 -H 'Content-Type: image/jpeg' "$@"; }
status() { ask --output /dev/null --write-out '%{http_code}' "$@"; }
expect() { # what, found, wanted
    [ "$2" = "$3" ] && echo "  $1: $2" || { echo "  $1: $2 instead of $3"; exit 1; }
}
project=$WORK/project
mkdir -p "$project"
cp -r docker-compose.yml deploy Dockerfile .dockerignore pyproject.toml README.md LICENSE client service "$project/"
cd "$project"
printf 'FOVEAL_API_KEY=secret\nFOVEAL_PORT=9999\nFOVEAL_PREP_WORKERS=1\n' >.env
compose() { docker compose --profile serve "$@"; }

compose up --detach --wait --pull never --no-build
url=http://127.0.0.1:8000
picture=$project/service/foveal/demo/pictures/$(ls service/foveal/demo/pictures | grep -m1 '\.jpg$')
expect "ready without a key" "$(status $url/ready)" 200
expect "encode without the key of .env" "$(status --data-binary "@$picture" $url/encode)" 401
expect "encode with it" "$(status "${key[@]}" --data-binary "@$picture" "$url/encode?oversize=downscale")" 200
expect "Prometheus sees it" "$(ask 'http://127.0.0.1:9090/api/v1/query?query=up' | grep -c '"1"')" 1
expect "lines of its log that are no JSON" "$(compose logs --no-log-prefix serve 2>/dev/null | python3 -c '
import json, sys
bad = 0
for line in sys.stdin:
    try: json.loads(line)
    except ValueError: bad += 1; print(line, file=sys.stderr)
print(bad)')" 0
expect "HEIC and SGLang's extras are in an image built with them" \
    "$(docker run --rm --entrypoint python foveal:extras -c 'import pillow_heif, zmq; print("yes")')" yes

load() { docker compose --profile serve --profile load --profile chaos run --rm -T --no-deps "$@"; }
load smoke
SOAK_SECONDS=${IMAGES_SOAK_SECONDS:-60} load soak
load chaos
LOAD_RATES=2,5 load sweep
OVERLOAD_RATE=200 load overload
mkdir -p "$WORK/results"
load --entrypoint tar smoke -C /results -c . | tar -x -C "$WORK/results"
expect "figures of the load tests" "$(ls "$WORK/results" | grep -c '\.json$')" 5

for _ in $(seq 20); do status "${key[@]}" --data-binary "@$picture" "$url/encode?oversize=downscale" >>"$WORK/answers" & done
compose stop serve
wait
expect "exit code after a stop with requests open" "$(docker inspect --format '{{.State.ExitCode}}' foveal-serve-1)" 0
expect "answers that were neither given nor refused" "$(grep -oE '...' "$WORK/answers" | grep -cvE '200|503|000' || true)" 0
promtool test rules deploy/prometheus/alerts_test.yml
compose --profile load down --volumes
