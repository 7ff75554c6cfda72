#!/bin/sh
# Makes .venv, by the interpreter that PYTHON names. One that works, and is new enough, stays as it is.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if new_enough .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
    exit
fi
if ! new_enough "$python"; then
    version=$("$python" --version 2>&1) || version="not here"
    echo "edriver needs Python 3.11 or newer, and $python is $version: name another, as in  make test PYTHON=python3.12" >&2
    exit 1
fi
"$python" -m venv --clear .venv
