#!/bin/sh
# Runs tests with the oldest and the newest of what pyproject.toml promises, each in an environment of its own.
#
#   scripts/matrix.sh                         each Python from 3.11 to 3.13 that is here, lowest and newest
#   scripts/matrix.sh PYTHON DEPS [TESTS...]  one of them: an interpreter; lowest or newest; arguments for pytest
#
# TORCH names another torch. Environments are in build/matrix.
set -eu
cd "$(dirname "$0")/.."

one() {
    python=$1 deps=$2
    shift 2
    name=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$deps
    venv=build/matrix/$name
    echo "== $name"
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --upgrade pip
    "$venv/bin/pip" install --quiet "${TORCH:-torch==2.13.0}"
    if [ "$deps" = lowest ]; then
        "$venv/bin/pip" install --quiet uv
        "$venv/bin/uv" pip compile --quiet --python "$venv/bin/python" --resolution lowest-direct --extra test \
            --output-file "$venv/constraints.txt" pyproject.toml
    else
        : >"$venv/constraints.txt"
    fi
    "$venv/bin/pip" install --quiet --editable ".[test]" --constraint "$venv/constraints.txt"
    "$venv/bin/pip" list --format=freeze
    "$venv/bin/python" -m pytest "$@"
}

case ${2:-} in
    lowest | newest)
        [ $# -gt 2 ] || set -- "$@" tests/unit tests/script tests/rpc
        one "$@"
        ;;
    "")
        failed=
        for python in python3.11 python3.12 python3.13; do
            "$python" --version >/dev/null 2>&1 || { echo "== no $python here" && continue; }
            for deps in lowest newest; do
                sh scripts/matrix.sh "$python" "$deps" || failed="$failed $python-$deps"
            done
        done
        [ -z "$failed" ] || { echo "== failed:$failed" && exit 1; }
        ;;
    *)
        echo "scripts/matrix.sh: dependencies are lowest or newest, not '$2'" >&2
        exit 2
        ;;
esac
