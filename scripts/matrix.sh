#!/bin/sh
# Runs tests with the oldest and the newest of what pyproject.toml promises, each in an environment of its own.
#
#   scripts/matrix.sh                         each Python from 3.11 to 3.13 that is here, lowest and newest; and the first
#                                             of them with each torch of TORCHES
#   scripts/matrix.sh PYTHON DEPS [TESTS...]  one of them: an interpreter; lowest or newest; arguments for pytest
#
# TORCH            the torch of the rows of Pythons (torch==2.13.0)
# TORCHES          the versions of torch that get a row of their own: "2.11.0 2.15.0"
# TORCH_INDEX      the package index that torch comes from, and what torch needs (pip's own). Builds for the CPU take a
#                  tenth of the space: TORCH_INDEX=https://download.pytorch.org/whl/cpu make matrix
# TORCH_LIBRARIES  a folder that pip install --target has filled with CUDA's libraries (nvidia/...), for an index that
#                  has builds for CUDA alone: each torch is then installed without its own, and finds these
#
# JOBS             how many processes run the tests of a row (4)
#
# Environments are in build/matrix.
set -eu
cd "$(dirname "$0")/.."

install_torch() {
    if [ -z "${TORCH_LIBRARIES:-}" ]; then
        "$venv/bin/pip" install --quiet ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
    else
        "$venv/bin/pip" install --quiet --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
        packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        ln -s "$(cd "$TORCH_LIBRARIES" && pwd)/nvidia" "$packages/nvidia"
        # Else pip installs them all the same, with the next package that needs torch.
        sed -i -E '/^Requires-Dist: (nvidia|cuda|triton)/d' "$packages"/torch-*.dist-info/METADATA
    fi
}

one() {
    python=$1 deps=$2
    shift 2
    torch=${TORCH:-torch==2.13.0}
    name=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$deps-${torch#*==}
    venv=build/matrix/$name
    echo "== $name"
    "$python" -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --upgrade pip
    install_torch
    if [ "$deps" = lowest ]; then
        "$venv/bin/pip" install --quiet uv
        echo "$torch" >"$venv/torch.txt"
        "$venv/bin/uv" pip compile --quiet --python "$venv/bin/python" --resolution lowest-direct --extra test \
            --constraint "$venv/torch.txt" --output-file "$venv/constraints.txt" pyproject.toml
    else
        : >"$venv/constraints.txt"
    fi
    "$venv/bin/pip" install --quiet --editable ".[test]" --constraint "$venv/constraints.txt"
    "$venv/bin/pip" list --format=freeze
    "$venv/bin/python" -m pytest --numprocesses "${JOBS:-4}" --dist loadfile --no-loadscope-reorder "$@"
}

case ${2:-} in
    lowest | newest)
        [ $# -gt 2 ] || set -- "$@" tests/unit tests/script tests/rpc
        one "$@"
        ;;
    "")
        failed=
        first=
        for python in python3.11 python3.12 python3.13; do
            "$python" --version >/dev/null 2>&1 || { echo "== no $python here" && continue; }
            first=${first:-$python}
            for deps in lowest newest; do
                sh scripts/matrix.sh "$python" "$deps" || failed="$failed $python-$deps"
            done
        done
        for version in ${TORCHES:-2.11.0 2.15.0}; do
            TORCH=torch==$version sh scripts/matrix.sh "$first" newest tests/unit tests/torch tests/process ||
                failed="$failed torch-$version"
        done
        [ -z "$failed" ] || { echo "== failed:$failed" && exit 1; }
        ;;
    *)
        echo "scripts/matrix.sh: dependencies are lowest or newest, not '$2'" >&2
        exit 2
        ;;
esac
