"""Correctness on the device: laws of a training client, and tests of the local engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from tests.bench.gpu.workspace import Workspace

LAWS = "tests/contracts/test_peft.py"
# the laws in float32 and bfloat16, and with a 4-bit base where bitsandbytes is installed
ON_CUDA = ("TestCuda", "TestCudaBfloat16", "TestCudaFourBit")
# their sessions and tensors are on the device of KITCHEN_TEST_DEVICE, or on CUDA
ENGINE = (
    "tests/adapters/peft/batching/test_micro_batch.py",
    "tests/adapters/peft/batching/test_shared_prefixes.py",
    "tests/adapters/peft/model/test_layer_kernels.py",
    "tests/adapters/peft/model/test_triton_elementwise.py",
    "tests/adapters/peft/model/test_triton_logits.py",
    "tests/adapters/peft/model/test_varlen_attention.py",
    "tests/adapters/peft/sampling/paged/test_paged_body.py",
    "tests/adapters/peft/sampling/paged/test_triton_kernels.py",
    "tests/adapters/peft/sampling/test_conversation_cache.py",
    "tests/adapters/peft/sampling/test_sampler.py",
    "tests/adapters/peft/sampling/test_scheduler.py",
    "tests/adapters/peft/test_checkpoints.py",
    "tests/adapters/peft/test_on_cuda.py",
)
SELECTED = ("-m", "slow or not slow", *(f"{LAWS}::{name}" for name in ON_CUDA), *ENGINE)
DRY = ("-k", "TestFloat32 and (scores_the_same_in_any_batch or learning_rate_zero)")
WORKERS = 8
MARKS = {"passed": ".", "failed": "F", "errors": "E", "skipped": "s"}
SECONDS, DRY_SECONDS = 75, 600


def checks(workspace: Workspace) -> Mapping[str, Any]:
    """Run the tests; the log is kept in checks.log."""
    log = workspace.out / "checks.log"
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider"]
    environ = {**os.environ, "KITCHEN_TEST_DEVICE": workspace.device, "OMP_NUM_THREADS": "1"}
    limit = DRY_SECONDS if workspace.dry else SECONDS
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *_selected(workspace)], stdout=file, stderr=subprocess.STDOUT, env=environ
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
    lines = log.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    record = {"title": "Correctness", "counts": _counts(lines), "failed": failed[:20]}
    if code is None:
        return {**record, "error": f"the tests were stopped after {limit} s"}
    return record if code == 0 else {**record, "error": "; ".join([*failed[:5], *lines[-1:]])}


def _selected(workspace: Workspace) -> Sequence[str]:
    if workspace.dry:
        return (*DRY, LAWS)
    parallel = ["-n", str(WORKERS)] if find_spec("xdist") else []
    return (*parallel, *SELECTED)


def _counts(lines: Sequence[str]) -> dict[str, int]:
    """Return the numbers of passed, failed and skipped tests, so far if pytest was stopped."""
    last = " ".join(lines[-1:])
    if " in " in last:
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}
    marks = "".join(re.findall(r"^[.FEsx]+", "\n".join(lines), re.MULTILINE))
    return {name: marks.count(mark) for name, mark in MARKS.items() if mark in marks}
