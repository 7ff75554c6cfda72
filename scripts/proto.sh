#!/bin/sh
# Generates edriver/v1 from proto/ into the folder given (default: the checkout itself). PYTHON names the interpreter.
set -eu
out=${1:-.}
python=${PYTHON:-python3}
PATH="$(dirname "$(command -v "$python")"):$PATH" "$python" -m grpc_tools.protoc -I proto \
    --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    proto/edriver/v1/*.proto
