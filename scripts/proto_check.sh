#!/bin/sh
# Fails if edriver/v1 is not exactly what proto/ generates.
set -eu
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$(dirname "$0")/proto.sh" "$out" 2>/dev/null
touch "$out/edriver/v1/__init__.py"
if ! diff -r --exclude __pycache__ "$out/edriver/v1" edriver/v1; then
    echo "edriver/v1 is stale: run 'make proto' and commit what it changes" >&2
    exit 1
fi
