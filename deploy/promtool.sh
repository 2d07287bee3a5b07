#!/usr/bin/env bash
# Puts promtool 3, as the compose file's Prometheus has it, into folder $1, from Debian's newest suite and without
# touching the machine's own packages. Where it cannot be had it says so in one sentence and ends well.
set -uo pipefail
target=$1
version_of() { "$1" --version 2>/dev/null | sed -n 's/^promtool, version \([0-9]*\).*/\1/p'; }
for found in "$target/promtool" "$(command -v promtool || true)"; do
    [ -n "$found" ] && [ "$(version_of "$found")" = 3 ] && exit 0
done
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
fetch() {
    local archive key=/usr/share/keyrings/debian-archive-keyring.gpg
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/$' | head -n 1)
    [ -n "$archive" ] && [ -r "$key" ] || return 1
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    chmod -R a+rwX "$state"
    echo "deb [signed-by=$key] $archive sid main" >"$state/sources.list"
    local apt=(-o "Dir::Etc::SourceList=$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$state/lists" -o "Dir::Cache::Archives=$state/archives" -o Dir::Cache::pkgcache=
        -o Dir::Cache::srcpkgcache= -o Acquire::Retries=0 -o Acquire::http::Timeout=20)
    cd "$state" && timeout 120 apt-get "${apt[@]}" -qq update && timeout 120 apt-get "${apt[@]}" -qq download promtool &&
        dpkg-deb -x promtool_*.deb . && [ "$(version_of usr/bin/promtool)" = 3 ]
}
if (fetch) >"$state/log" 2>&1; then
    install "$state/usr/bin/promtool" "$target/promtool"
else
    echo "promtool 3 cannot be had here ($(tail -n 1 "$state/log")): alerts are not tested with it"
fi
