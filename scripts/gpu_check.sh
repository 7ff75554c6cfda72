#!/usr/bin/env bash
# `make gpu`: all that edriver needs a GPU for, in at most eight minutes, on a machine with one NVIDIA GPU, a torch with
# CUDA, and nothing else of what edriver needs: that comes from build/gpu-wheels (`make gpu-wheels`, elsewhere).
#
#   scripts/gpu_check.sh [--dry] [--output FOLDER] [--only PART ...] [--seconds 480]
#
# --dry: over Gloo, without a GPU. Leaves results.json, page.md and log.txt in FOLDER (build/gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "$python has no torch: PYTHON names an interpreter that has" >&2
    exit 1
fi
if ! "$python" -c 'import cryptography, grpc_health, grpc_reflection, uvloop' 2>/dev/null; then
    [ -d build/gpu-wheels ] || { echo "build/gpu-wheels is missing: run make gpu-wheels where there is a network" >&2; exit 1; }
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" build/gpu-wheels/*.whl
    export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$PATH"
fi
export GRPC_VERBOSITY=NONE PYTHONUNBUFFERED=1
case " $* " in *" --output "*) output=() ;; *) output=(--output build/gpu) ;; esac
"$python" -m benchmarks.gpu "${output[@]}" "$@"
