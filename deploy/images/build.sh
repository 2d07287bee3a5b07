# shellcheck shell=bash
# Builds what the compose file names, as its users do, with the index and the certificate of this machine. Sourced by run.sh.

build_images() {
    local folder=$WORK/images name image
    PYTHON_IMAGE=$(sed -n 's/^ARG PYTHON_IMAGE=//p' Dockerfile)
    mkdir -p "$folder"
    build_base "$folder"
    write_pip_settings "$folder"
    local args=(--quiet --network host --secret "id=pip,src=$folder/pip.conf" --secret "id=ca,src=$folder/ca.pem"
        --build-arg "TORCH_INDEX=$TORCH_INDEX")
    docker build "${args[@]}" --target cpu -t foveal:cpu .
    docker build "${args[@]}" --target load -t foveal:load .
    docker build "${args[@]}" --build-arg EXTRAS=service,otel,heif,sglang --target cpu -t foveal:extras .
    write_watchers "$folder"
    for name in prometheus grafana; do
        image=$(sed -n "s/^ *image: \(.*\/$name:.*\)/\1/p" docker-compose.yml)
        docker build --quiet --network host -t "$image" -f "$folder/$name.docker" "$folder"
    done
    docker images
}

build_base() {
    ln -f "$WORK/base.tar" "$1/base.tar"
    printf 'FROM scratch\nADD base.tar /\nRUN ln -s /usr/bin/python3.11 /usr/local/bin/python\n' >"$1/python.docker"
    docker build --quiet --network host -t "$PYTHON_IMAGE" -f "$1/python.docker" "$1"
}

write_pip_settings() {
    local index
    index=${PIP_INDEX_URL:-$("$BIN/pip" config get global.index-url 2>/dev/null || true)}
    cp "${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}" "$1/ca.pem"
    { echo "[global]" && echo "cert = /run/secrets/ca.pem" && echo "${index:+index-url = $index}"; } >"$1/pip.conf"
}

write_watchers() { # Prometheus from Debian's package; of Grafana only what answers a health check
    cp "$(command -v prometheus)" "$(command -v busybox)" "$1/"
    cat >"$1/prometheus.docker" <<-END
		FROM $PYTHON_IMAGE
		COPY prometheus busybox /bin/
		RUN ln -s /bin/busybox /bin/wget && mkdir /prometheus && chown 65534:65534 /prometheus
		ENTRYPOINT ["/bin/prometheus"]
	END
    cat >"$1/grafana.docker" <<-END
		FROM $PYTHON_IMAGE
		COPY busybox /bin/
		RUN ln -s /bin/busybox /bin/wget && mkdir -p /srv/api && echo ok >/srv/api/health
		ENTRYPOINT ["python", "-m", "http.server", "--directory", "/srv", "3000"]
	END
}
