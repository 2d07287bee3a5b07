#!/usr/bin/env bash
# Exit 0 when the server in this container answers /ready with 200. Bash alone: no interpreter to start every 10 s.
set -euo pipefail
exec 3<>"/dev/tcp/127.0.0.1/${FOVEAL_PORT:-8000}"
printf 'GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
read -r -t 4 _ status _ <&3
[[ "$status" == 200 ]]
