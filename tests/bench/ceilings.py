"""What the machine can do at most: matrix products a second, and bytes from memory a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tests.bench.figures import Figure
from tests.bench.interleave import interleave
from tests.bench.results import DROPPED, Order, Result
from tests.bench.turns import Turns

SHAPES = ((2048, 576, 576), (1024, 1536, 576), (4096, 576, 1536), (2048, 2048, 2048))  # rows, inner, columns
SLOW = 10  # GFLOP/s, below which a machine does not multiply a format: larger shapes would take minutes
LONG = 0.12  # seconds that each shape is measured
BYTES = 2**29  # of what is read from memory, many times the caches
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Gauge:
    """Measures the rate of matrix products between the steps of a work, for what a machine has to give changes."""

    dtype: str
    name: str = "the machine"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        while True:
            turns.wait()
            rate = gemm_rate(self.dtype)
            turns.stop()
            turns.tell(gemm_gflops=rate)


@dataclass(frozen=True)
class _Ceilings:
    """All that there is to know of the machine."""

    name: str = "the machine"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        while True:
            turns.wait()
            rates = {f"GEMM {dtype}, GFLOP/s": gemm_rate(dtype) for dtype in DTYPES}
            rates |= {"memory read, GB/s": read_rate(), "memory copied, GB/s read and written": copy_rate()}
            turns.stop()
            turns.tell(**rates)


def ceilings(order: Order) -> Result:
    """GEMM rate in both formats and memory bandwidth."""
    steps = interleave([_Ceilings()], order.folder, DROPPED + (order.pairs or 7)).taken["the machine"][DROPPED:]
    found = {name: Figure.of([step.values[name] for step in steps]) for name in steps[0].values if name != "peak_mb"}
    records = tuple({"work": "ceilings", "what": name, **figure.record()} for name, figure in found.items())
    rows = tuple((name, figure.shown(1)) for name, figure in found.items())
    return Result("ceilings", "What the machine can do at most", ("what", "median [quartiles]"), rows,
                  (f"the best of the shapes {', '.join('×'.join(map(str, shape)) for shape in SHAPES)}",), records)


def gemm_rate(dtype: str) -> float:
    """GFLOP/s of the best shape, by the faster of torch's libraries."""
    import torch

    def product(rows: int, inner: int, columns: int) -> float:
        left, right = (torch.ones(*size, dtype=getattr(torch, dtype)) for size in ((rows, inner), (inner, columns)))
        out, turned = left @ right, right.t().contiguous()
        ways: list[Callable[[], Any]] = [lambda: torch.mm(left, right, out=out)]
        if dtype == "float32" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            ways.append(lambda: torch.ops.mkldnn._linear_pointwise(left, turned, None, "none", [], ""))
        return 2e-9 * rows * inner * columns / min(map(_seconds, ways))

    first = product(*SHAPES[0])
    return first if first < SLOW else max(first, *(product(*shape) for shape in SHAPES[1:]))


def read_rate() -> float:
    """GB/s into a product of a matrix and a vector, as decoding reads weights."""
    import torch

    matrix, vector = torch.ones(8192, BYTES // 4 // 8192), torch.ones(BYTES // 4 // 8192)
    return BYTES / _seconds(lambda: torch.mv(matrix, vector)) / 1e9


def copy_rate() -> float:
    """GB/s, what is read and what is written added up."""
    import torch

    source, target = torch.ones(BYTES // 4), torch.empty(BYTES // 4)
    return 2 * BYTES / _seconds(lambda: target.copy_(source)) / 1e9


def _seconds(call: Any) -> float:
    """Of one call, the mean over `LONG` seconds."""
    call()
    started, calls = perf_counter(), 0
    while (taken := perf_counter() - started) < LONG:
        call()
        calls += 1
    return taken / calls
