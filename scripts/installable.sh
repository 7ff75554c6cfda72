#!/bin/sh
# Builds an sdist, a wheel from it, and imports that wheel in a clean environment.
# Arguments: the interpreter; a folder that gets both (default: they are thrown away).
set -eu
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$1" -m venv "$out/venv"
"$out/venv/bin/pip" install --quiet build twine
"$out/venv/bin/python" -m build --outdir "$out/dist" . >"$out/log" 2>&1 || { cat "$out/log" >&2; exit 1; }
"$out/venv/bin/twine" check --strict "$out"/dist/*
"$out/venv/bin/pip" install --quiet --no-deps "$out"/dist/*.whl
"$out/venv/bin/pip" install --quiet grpcio protobuf tenacity
(
    cd "$out"
    "$out/venv/bin/edriver" --help >/dev/null
    "$out/venv/bin/python" -c 'import edriver, edriver.v1.agent_pb2; print("installed", edriver.__version__)'
)
if [ $# -gt 1 ]; then
    mkdir -p "$2"
    cp "$out"/dist/* "$2"
fi
