#!/usr/bin/env bash
# GPU benchmarks in at most KITCHEN_GPU_SECONDS (510) a call: tests/bench/gpu.sh [ROW...]
#
# Needs this checkout, a Python with torch for CUDA and Triton, and the packages of
# tests/bench/gpu/wheels.txt: installed there, or as wheels in the folder KITCHEN_GPU_WHEELS (.whl),
# which are installed beside the others for this call only. Names what is missing, and stops.
# KITCHEN_GPU_DRY=1 runs all rows with tiny models on the CPU. docs/benchmarks.md has more.
set -euo pipefail
wheels=$(realpath -m "${KITCHEN_GPU_WHEELS:-.whl}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
"$python" -m tests.bench.gpu.packages "$wheels"
if compgen -G "$wheels/*.whl" >/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
    --target "$site" "$wheels"/*.whl
  export PYTHONPATH=$site:$PYTHONPATH
fi
"$python" -m tests.bench.gpu "$@"
