# shellcheck shell=bash
# A container engine from Debian's packages, with folders, socket and network of its own. Sourced by run.sh.

ROOT_OF_PACKAGES=$WORK/root
SOCKET=unix://$WORK/docker.sock
export DOCKER_HOST=$SOCKET DOCKER_CONFIG=$WORK/config
export PATH=$ROOT_OF_PACKAGES/usr/bin:$ROOT_OF_PACKAGES/usr/sbin:$ROOT_OF_PACKAGES/sbin:$PATH
PYTHON_IMAGE=$(sed -n 's/^ARG PYTHON_IMAGE=//p' Dockerfile)
TORCH=$(sed -n 's/^ARG TORCH=//p' Dockerfile)
WHEEL_PORT=${IMAGES_WHEEL_PORT:-8099}
engine_pid="" wheels_pid=""

cannot_run() { # exit code 0 where it can be tried, else a sentence
    [ "$(id -u)" = 0 ] || { echo "it takes root"; return 1; }
    command -v apt-get dpkg-deb >/dev/null || { echo "it takes Debian's packages"; return 1; }
    [ -w /sys/fs/cgroup ] || { echo "control groups cannot be written"; return 1; }
}

archive() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/$' | head -n 1; }

fetch_all() {
    mkdir -p "$STATE" "$DOCKER_CONFIG/cli-plugins" "$WORK/apt/lists/partial" "$WORK/apt/archives/partial" "$WORK/simple"
    chmod -R a+rwX "$WORK/apt"
    fetch_engine
    fetch_base
    fetch_wheels
}

fetch_engine() { # the newest suite has a current engine and compose; their libc fits, but runc is the machine's own
    local apt=(-o "Dir::Etc::SourceList=$WORK/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$WORK/apt/lists" -o "Dir::Cache::Archives=$WORK/apt/archives"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::http::Timeout=30)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) sid main" >"$WORK/apt/sources.list"
    apt-get -qq update
    apt-get -qq install --yes --no-install-recommends iptables mmdebstrap busybox-static tini iproute2
    apt-get "${apt[@]}" -qq update
    (cd "$WORK/apt" &&
        apt-get "${apt[@]}" -qq download docker.io docker-cli containerd docker-compose docker-buildx prometheus promtool &&
        apt-get -qq download runc)
    for package in "$WORK"/apt/*.deb; do dpkg-deb -x "$package" "$ROOT_OF_PACKAGES"; done
    ln -sf "$ROOT_OF_PACKAGES"/usr/libexec/docker/cli-plugins/* "$DOCKER_CONFIG/cli-plugins/"
    ln -sf "$(command -v tini)" "$ROOT_OF_PACKAGES/usr/bin/docker-init"
}

fetch_base() { # what stands in for the official Python image, which lies in a registry
    [ -s "$WORK/base.tar" ] || mmdebstrap --quiet --variant=minbase \
        --include=ca-certificates,netbase,tzdata,python3.11,python3.11-venv bookworm "$WORK/base.tar" "$(archive)"
}

fetch_wheels() { # torch's CPU build, served as an index
    local pip=.venv/bin/pip wheel name
    $pip download --quiet -c deploy/docker/constraints.txt -d "$WORK/wheels" "$TORCH"
    for wheel in "$WORK"/wheels/*.whl; do
        name=$(basename "$wheel" | sed 's/-.*//; s/_/-/g' | tr '[:upper:]' '[:lower:]')
        mkdir -p "$WORK/simple/$name"
        ln -f "$wheel" "$WORK/simple/$name/"
    done
}

start_engine() { # the command to start it under, then flags
    local log=$WORK/dockerd.log
    "$@" --data-root "$STATE/data" --exec-root "$STATE/exec" --pidfile "$STATE/dockerd.pid" --host "$SOCKET" >>"$log" 2>&1 &
    engine_pid=$!
    for _ in $(seq 120); do
        docker info >/dev/null 2>&1 && return 0
        kill -0 "$engine_pid" 2>/dev/null || break
        read -r -t 0.5 <> <(:) || true
    done
    echo "the engine does not start: $(tail -n 1 "$log")" >&2
    return 1
}

stop_engine() {
    [ -z "$engine_pid" ] || { kill "$engine_pid" 2>/dev/null; wait "$engine_pid" 2>/dev/null; } || true
    engine_pid=""
}

start_builder() {
    .venv/bin/python -m http.server --bind 127.0.0.1 --directory "$WORK/simple" "$WHEEL_PORT" >"$WORK/wheels.log" 2>&1 &
    wheels_pid=$!
    start_engine dockerd --bridge=none --iptables=false --ip6tables=false
}

build_images() {
    local folder=$WORK/images certificate=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
    mkdir -p "$folder"
    ln -f "$WORK/base.tar" "$folder/base.tar"
    printf 'FROM scratch\nADD base.tar /\nRUN ln -s /usr/bin/python3.11 /usr/local/bin/python\n' >"$folder/python.docker"
    docker build --quiet --network host -t "$PYTHON_IMAGE" -f "$folder/python.docker" "$folder"
    printf '[global]\ncert = /run/secrets/ca.pem\n' >"$folder/pip.conf"
    local args=(--quiet --network host --secret "id=pip,src=$folder/pip.conf" --secret "id=ca,src=$certificate"
        --build-arg "TORCH_INDEX=http://127.0.0.1:$WHEEL_PORT")
    docker build "${args[@]}" --target cpu -t foveal:cpu .
    docker build "${args[@]}" --target load -t foveal:load .
    docker build "${args[@]}" --build-arg EXTRAS=service,otel,heif,sglang --target cpu -t foveal:extras .
    build_watchers "$folder"
    docker images
}

build_watchers() { # Prometheus from Debian's package; a Grafana that only answers its health check
    cp "$(command -v prometheus)" "$(command -v busybox)" "$1/"
    cat >"$1/prometheus.docker" <<-END
		FROM $PYTHON_IMAGE
		COPY prometheus busybox /bin/
		RUN ln -s /bin/busybox /bin/wget && mkdir /prometheus && chown 65534:65534 /prometheus
		ENTRYPOINT ["/bin/prometheus"]
	END
    printf 'FROM %s\nRUN mkdir -p /srv/api && echo ok >/srv/api/health\nCOPY busybox /bin/\n%s\n%s\n' "$PYTHON_IMAGE" \
        'RUN ln -s /bin/busybox /bin/wget' 'ENTRYPOINT ["python", "-m", "http.server", "--directory", "/srv", "3000"]' \
        >"$1/grafana.docker"
    local image
    for name in prometheus grafana; do
        image=$(sed -n "s/^ *image: \(.*\/$name:.*\)/\1/p" docker-compose.yml)
        docker build --quiet --network host -t "$image" -f "$1/$name.docker" "$1"
    done
}

in_space() { nsenter "--net=/run/netns/$SPACE" "$@"; }

start_runner() { # not `ip netns exec`, which hides the control groups
    ip netns add "$SPACE"
    in_space ip link set lo up
    start_engine nsenter "--net=/run/netns/$SPACE" dockerd
}

clean_up() {
    if [ -n "$engine_pid" ]; then docker ps -q | xargs -r docker rm -f >/dev/null 2>&1 || true; fi
    stop_engine
    [ -z "$wheels_pid" ] || kill "$wheels_pid" 2>/dev/null || true
    [ ! -e "/run/netns/$SPACE" ] || ip netns del "$SPACE"
    grep -o " $WORK/[^ ]*" /proc/mounts | sort -r | xargs -r -n 1 umount 2>/dev/null || true
    [ -n "${IMAGES_WORK:-}" ] || rm -rf "$WORK"
}
