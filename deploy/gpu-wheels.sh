#!/usr/bin/env bash
# Downloads wheels for CPython 3.12 on x86-64 into folder $1: what the service needs beside torch, NumPy and Pillow.
set -euo pipefail
platforms=()
for version in 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${version}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
    --implementation cp "${platforms[@]}" --dest "$1" \
    fastapi starlette pydantic pydantic-core annotated-types annotated-doc typing-inspection \
    python-dotenv opentelemetry-api uvicorn httptools msgspec orjson pybase64 python-multipart simplejpeg ml_dtypes \
    pytest pytest-asyncio iniconfig pluggy hypothesis sortedcontainers
