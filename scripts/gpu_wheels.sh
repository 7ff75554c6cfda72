#!/usr/bin/env bash
# Fetches what edriver needs beside torch for `make gpu`, as wheels of at most 50 MiB together, into build/gpu-wheels:
# the machine with the GPU may have no network. For Python 3.12 on x86-64; PYTHON_VERSION names another.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
target=build/gpu-wheels
rm -rf "$target"
platforms=()
for glibc in 2_5 2_12 2_17 2_24 2_26 2_27 2_28 2_31 2_34; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
for alias in 1 2010 2014; do platforms+=(--platform "manylinux${alias}_x86_64"); done
# --no-deps, for torch and what it needs are there already; so the needs of each are named, too.
"$python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
    --python-version "${PYTHON_VERSION:-3.12}" "${platforms[@]}" --dest "$target" \
    cloudpickle cffi cryptography fsspec grpcio grpcio-health-checking grpcio-reflection nvidia-ml-py \
    'protobuf<8' psutil pycparser rich tenacity typing-extensions uvloop markdown-it-py mdurl pygments \
    execnet iniconfig packaging pluggy pytest pytest-timeout pytest-xdist \
    torchft==0.2.0 googleapis-common-protos opentelemetry-api opentelemetry-sdk opentelemetry-proto \
    opentelemetry-exporter-http-transport opentelemetry-exporter-otlp-common opentelemetry-exporter-otlp-proto-common \
    opentelemetry-exporter-otlp-proto-http opentelemetry-semantic-conventions
size=$(du -sk "$target" | cut -f1)
echo "$target: $((size / 1024)) MiB"
[ "$size" -le 51200 ] || { echo "more than 50 MiB" >&2; exit 1; }
