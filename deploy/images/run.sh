#!/usr/bin/env bash
# `make images`: builds the images and runs the compose file on a container engine of its own, then takes all of it away.
#
# Needs root on Debian, its package archive, and about 12 minutes and 6 GB. Touches neither an engine that runs here nor
# the network: images are built in the host's network without a bridge, and run in a network namespace of their own.
# Where no engine can be had it says why in one sentence and ends with exit code 0; nothing was checked then.
# IMAGES_WORK: a folder to work in, which is kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
export BIN=$PWD/.venv/bin
if [ -n "${IMAGES_WORK:-}" ]; then mkdir -p "$IMAGES_WORK"; fi
export WORK=${IMAGES_WORK:-$(mktemp -d /var/tmp/foveal-images.XXXXXX)}
export STATE=$WORK/engine SPACE=foveal-images-$$
# shellcheck source=deploy/images/engine.sh
source "$here/engine.sh"
# shellcheck source=deploy/images/build.sh
source "$here/build.sh"
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }
if ! why=$(cannot_run); then
    echo "images are neither built nor run here: $why"
    exit 0
fi
say "an engine, a base image and a wheel"
if ! (set -e; fetch_all) >"$WORK/fetch.log" 2>&1; then
    echo "images are neither built nor run here: no container engine could be had ($(tail -n 1 "$WORK/fetch.log"))"
    exit 0
fi
say "build"
start_builder
build_images
stop_all
say "run"
start_runner
"$here/check.sh"
say "all of it holds"
