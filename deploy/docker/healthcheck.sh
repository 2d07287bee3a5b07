#!/usr/bin/env bash
# Exit 0 when the server in this container answers /ready with 200. Bash alone: no interpreter to start every 10 s.
set -euo pipefail
port=${FOVEAL_PORT:-8000}
[[ "$port" == *[!0-9]* ]] && port=8000 # tcp://..., which Kubernetes writes for a service called foveal: no setting
host=${FOVEAL_HOST:-127.0.0.1}
host=${host#[} host=${host%]}
case "$host" in 0.0.0.0 | ::) host=127.0.0.1 ;; esac
exec 3<>"/dev/tcp/$host/$port"
printf 'GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
read -r -t 4 _ status _ <&3
[[ "$status" == 200 ]]
