#!/usr/bin/env bash
# GPU benchmarks in at most KITCHEN_GPU_SECONDS (510): tests/bench/gpu.sh [ROW...]
#
# Needs this checkout and a Python with torch for CUDA, Triton, transformers and the packages that
# transformers needs. The following wheels, in the folder KITCHEN_GPU_WHEELS (.whl), are installed
# beside them, for this call only, if the folder exists:
#   annotated-types==0.8.0 bitsandbytes==0.50.2 datasets==5.2.0 dill==0.4.1 gguf==0.19.0
#   liger-kernel==0.8.5 multiprocess==0.70.19 opentelemetry-api==1.45.2 peft==0.21.2
#   pydantic==2.14.3 pydantic-core==2.50.4 ruamel.yaml==0.19.1 structlog==26.1.0
#   tokenizers==0.23.3 transformers==5.23.0 trl==1.16.0 typing-extensions==4.16.0
#   typing-inspection==0.4.5
# KITCHEN_GPU_DRY=1 runs all rows with tiny models on the CPU. docs/benchmarks.md has more.
set -euo pipefail
wheels=$(realpath -m "${KITCHEN_GPU_WHEELS:-.whl}")
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if compgen -G "$wheels/*.whl" >/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
    --target "$site" "$wheels"/*.whl
  export PYTHONPATH=$site:$PYTHONPATH
fi
"$python" -m tests.bench.gpu "$@"
