# Two images of one service: `cpu` and `cuda`; `load` is `cpu` with what draws the load test's plots.
#   docker build --target cpu -t foveal:cpu .
#   docker build --target cuda -t foveal:cuda .
# TORCH_INDEX: give the package index of PyTorch's CPU builds (its installation page names it) to build a `cpu` image
# without CUDA's libraries: 1.3 GB. Without it, torch comes from the default index, works the same, and takes 5.3 GB.
# EXTRAS: what else is installed, as in EXTRAS=service,otel,heif,sglang.
# PIP_INDEX_URL: another index of packages. What is secret goes into a pip.conf: --secret id=pip,src=pip.conf; a company's
# certificate: --secret id=ca,src=ca.pem, and `cert = /run/secrets/ca.pem` in that pip.conf.
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm
ARG TORCH=torch==2.13.0
ARG EXTRAS=service,otel
ARG PIP_INDEX_URL

# ------------------------------------------------------------ what both images install
FROM ${PYTHON_IMAGE} AS requirements
ARG EXTRAS
WORKDIR /build
COPY pyproject.toml deploy/docker/requirements.py ./
# only what pyproject.toml names, so that the layers below are rebuilt when that changes and not with every edit
RUN python requirements.py pyproject.toml "$EXTRAS" requirements.txt
RUN ["python", "requirements.py", "pyproject.toml", "demo", "plots.txt"]

FROM ${PYTHON_IMAGE} AS code
ARG PIP_INDEX_URL
WORKDIR /build
# at the same place as in the images, so that the command's first line names an interpreter that exists there
RUN python -m venv /opt/foveal
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    /opt/foveal/bin/pip install --quiet hatchling==1.27.0
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY service service
RUN /opt/foveal/bin/pip install --quiet --no-deps --no-build-isolation --target /opt/app .

FROM ${PYTHON_IMAGE} AS cpu-packages
ARG TORCH
ARG PIP_INDEX_URL
ARG TORCH_INDEX=""
RUN python -m venv /opt/foveal
ENV PATH=/opt/foveal/bin:$PATH
COPY deploy/docker/constraints.txt /tmp/constraints.txt
# such an index holds few versions of what torch needs: that comes from the usual one, below
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    pip install --quiet -c /tmp/constraints.txt ${TORCH_INDEX:+--no-deps --index-url "$TORCH_INDEX"} "$TORCH"
COPY --from=requirements /build/requirements.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    pip install --quiet -c /tmp/constraints.txt "$TORCH" -r /tmp/requirements.txt

FROM ${PYTHON_IMAGE} AS cuda-packages
ARG TORCH
ARG PIP_INDEX_URL
RUN python -m venv /opt/foveal
ENV PATH=/opt/foveal/bin:$PATH
COPY deploy/docker/constraints.txt /tmp/constraints.txt
# the wheel brings CUDA's libraries; the driver comes from the host with the container runtime
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    pip install --quiet -c /tmp/constraints.txt "$TORCH"
COPY --from=requirements /build/requirements.txt /tmp/requirements.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    pip install --quiet -c /tmp/constraints.txt -r /tmp/requirements.txt

# ------------------------------------------------------------ what both images are
FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 10001 foveal && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin foveal \
    # volumes mounted here take over the owner: the root itself may be read-only
    && install --directory --owner foveal --group foveal /models /cache /results
COPY --chmod=0555 deploy/docker/healthcheck.sh /usr/local/bin/foveal-healthy
ENV PATH=/opt/app/bin:/opt/foveal/bin:$PATH \
    PYTHONPATH=/opt/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models \
    TRITON_CACHE_DIR=/cache/triton \
    FOVEAL_HOST=0.0.0.0
USER 10001:10001
WORKDIR /results
EXPOSE 8000
# /ready, not /live: who waits for "healthy" wants to be answered. Start-up may fetch weights and capture graphs.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s --retries=3 CMD ["foveal-healthy"]
STOPSIGNAL SIGTERM
# exec form: the process itself gets the signal and drains; give it --drain-seconds and a little more to stop
ENTRYPOINT ["foveal"]
CMD ["serve"]

FROM base AS cuda
USER root
# Triton compiles a small launcher for each kernel on the machine it runs on
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 10001:10001
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-packages /opt/foveal /opt/foveal
# last and small: an edit of the code moves nothing else
COPY --from=code /opt/app /opt/app

FROM base AS cpu
COPY --from=cpu-packages /opt/foveal /opt/foveal
COPY --from=code /opt/app /opt/app

FROM cpu AS load
ARG PIP_INDEX_URL
USER root
RUN --mount=type=bind,from=requirements,source=/build/plots.txt,target=/tmp/plots.txt \
    --mount=type=bind,source=deploy/docker/constraints.txt,target=/tmp/constraints.txt \
    --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    pip install --quiet -c /tmp/constraints.txt -r /tmp/plots.txt
COPY deploy/load/chaos.py /opt/app/chaos.py
USER 10001:10001
# a load generator serves nothing
HEALTHCHECK NONE
