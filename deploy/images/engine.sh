# shellcheck shell=bash
# A container engine from Debian's packages, with folders, socket and network of its own. Sourced by run.sh.

ROOT_OF_PACKAGES=$WORK/root
SOCKET=unix://$WORK/docker.sock
export DOCKER_HOST=$SOCKET DOCKER_CONFIG=$WORK/config
export PATH=$ROOT_OF_PACKAGES/usr/bin:$ROOT_OF_PACKAGES/usr/sbin:$ROOT_OF_PACKAGES/sbin:$PATH
PIDS="" # of the engine and of the server of wheels

cannot_run() { # exit code 0 where it can be tried, else a sentence
    [ "$(id -u)" = 0 ] || { echo "it takes root"; return 1; }
    command -v apt-get dpkg-deb >/dev/null || { echo "it takes Debian's packages"; return 1; }
    [ -w /sys/fs/cgroup ] || { echo "control groups cannot be written"; return 1; }
    unshare --net true 2>/dev/null || { echo "no network namespace can be made"; return 1; }
}

archive() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/$' | head -n 1; }

fetch_all() {
    mkdir -p "$STATE" "$DOCKER_CONFIG/cli-plugins" "$WORK/apt/lists/partial" "$WORK/apt/archives/partial"
    chmod -R a+rwX "$WORK/apt"
    fetch_tools
    fetch_engine
    fetch_base
    fetch_torch
}

fetch_tools() { # what this machine lacks of them is taken away again at the end
    local install=(-qq -o DPkg::Lock::Timeout=60 install --yes --no-install-recommends
        iptables mmdebstrap busybox-static tini iproute2)
    apt-get -qq update
    apt-get --simulate "${install[@]}" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' >"$WORK/packages"
    apt-get "${install[@]}"
}

fetch_engine() { # the newest suite has a current engine and compose; their libc fits, but runc is the machine's own
    local package apt=(-o "Dir::Etc::SourceList=$WORK/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$WORK/apt/lists" -o "Dir::Cache::Archives=$WORK/apt/archives"
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::http::Timeout=30)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(archive) sid main" >"$WORK/apt/sources.list"
    apt-get "${apt[@]}" -qq update
    (cd "$WORK/apt" &&
        apt-get "${apt[@]}" -qq download docker.io docker-cli containerd docker-compose docker-buildx prometheus promtool &&
        apt-get -qq download runc)
    for package in "$WORK"/apt/*.deb; do dpkg-deb -x "$package" "$ROOT_OF_PACKAGES"; done
    ln -sf "$ROOT_OF_PACKAGES"/usr/libexec/docker/cli-plugins/* "$DOCKER_CONFIG/cli-plugins/"
    ln -sf "$(command -v tini-static)" "$ROOT_OF_PACKAGES/usr/bin/docker-init"
}

fetch_base() { # what stands in for the official Python image, which lies in a registry
    [ -s "$WORK/base.tar" ] || mmdebstrap --quiet --variant=minbase \
        --include=ca-certificates,netbase,tzdata,python3.11,python3.11-venv bookworm "$WORK/base.tar" "$(archive)"
}

fetch_torch() { # the wheel of this checkout's environment, as an index that has nothing else
    mkdir -p "$WORK/simple/torch"
    "$BIN/pip" download --quiet --no-deps --dest "$WORK/simple/torch" "$(sed -n 's/^ARG TORCH=//p' Dockerfile)"
}

start_engine() { # the command to start it under, then flags
    local log=$WORK/dockerd.log
    "$@" --cgroup-parent "$SPACE" --data-root "$STATE/data" --exec-root "$STATE/exec" --pidfile "$STATE/dockerd.pid" --host "$SOCKET" >>"$log" 2>&1 &
    PIDS="$! $PIDS"
    eventually docker info && return 0
    echo "the engine does not start: $(tail -n 1 "$log")" >&2
    return 1
}

eventually() { # a command that succeeds within a minute
    local end=$((SECONDS + 60))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.5
    done
}

stop_all() { # in the background by ourselves, so no other process has these numbers
    local pid
    for pid in $PIDS; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    PIDS=""
}

start_builder() { # in the host's network and touching none of its rules
    "$BIN/python" -u -m http.server --bind 127.0.0.1 --directory "$WORK/simple" 0 >"$WORK/wheels.log" 2>&1 &
    PIDS="$! $PIDS"
    eventually grep -q ' port [0-9]' "$WORK/wheels.log"
    TORCH_INDEX=http://127.0.0.1:$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$WORK/wheels.log")
    start_engine dockerd --bridge=none --iptables=false --ip6tables=false
}

start_runner() { # in a network of its own, where ports are free; not `ip netns exec`, which hides the control groups
    [ -d /run/netns ] || : >"$WORK/netns"
    ip netns add "$SPACE"
    nsenter "--net=/run/netns/$SPACE" ip link set lo up
    start_engine nsenter "--net=/run/netns/$SPACE" dockerd
}

clean_up() { # as it was before, also where a build or a test was broken off
    trap '' INT TERM HUP
    set +e
    docker ps --quiet 2>/dev/null | xargs -r docker rm --force >/dev/null 2>&1
    stop_all
    [ ! -e "/run/netns/$SPACE" ] || ip netns del "$SPACE"
    [ ! -e "$WORK/netns" ] || { umount /run/netns && rmdir /run/netns; } 2>/dev/null
    grep -o " $WORK/[^ ]*" /proc/mounts | sort -r | xargs -r -n 1 umount 2>/dev/null
    find /sys/fs/cgroup -depth -type d -path "*/$SPACE*" -exec rmdir {} + 2>/dev/null
    [ ! -s "$WORK/packages" ] || xargs apt-get -qq -o DPkg::Lock::Timeout=60 purge --yes <"$WORK/packages" >/dev/null 2>&1
    [ -n "${IMAGES_WORK:-}" ] || rm -rf "$WORK"
}
