"""Hardware limits: the peak rate of matrix products and the memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

from tests.bench.interleave import interleave
from tests.bench.memory import cuda
from tests.bench.quartiles import Quartiles
from tests.bench.results import DROPPED, Options, Result
from tests.bench.turns import Turns

# rows, inner, columns
Shapes: TypeAlias = tuple[tuple[int, int, int], ...]
CPU_SHAPES = ((2048, 576, 576), (1024, 1536, 576), (4096, 576, 1536), (2048, 2048, 2048))
CUDA_SHAPES = ((4096, 4096, 4096), (8192, 4096, 14336), (8192, 8192, 8192))
# a machine with a lower rate does not support the format, and larger shapes would take minutes
MIN_GFLOPS = 10
SECONDS_PER_SHAPE = 0.12
BYTES = 2**29  # read or copied; many times larger than the caches
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Gauge:
    """A side that measures the GEMM rate between steps, as it varies with the load."""

    dtype: str
    device: str = "cpu"
    shapes: Shapes = ()  # of products; default: those of the device
    name: str = "the machine"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        while True:
            turns.wait()
            rate = gemm_rate(self.dtype, self.device, self.shapes)
            turns.stop()
            turns.report(gemm_gflops=rate)


@dataclass(frozen=True)
class _Ceilings:
    """A side that measures the GEMM rates and the memory bandwidth."""

    device: str = "cpu"
    name: str = "the machine"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        while True:
            turns.wait()
            rates = {f"GEMM {dtype}, GFLOP/s": gemm_rate(dtype, self.device) for dtype in DTYPES}
            rates |= {
                "memory read, GB/s": read_rate(self.device),
                "memory copied, GB/s read and written": copy_rate(self.device),
            }
            turns.stop()
            turns.report(**rates)


def ceilings(options: Options) -> Result:
    """Measure the GEMM rate in both formats and the memory bandwidth."""
    measurements = interleave(
        [_Ceilings(options.device)], options.folder, DROPPED + (options.pairs or 7)
    )
    steps = measurements.steps["the machine"][DROPPED:]
    ceilings_by_name = {
        name: Quartiles.of([step.values[name] for step in steps])
        for name in steps[0].values
        if name != "peak_mb"
    }
    records = tuple(
        {"work": "ceilings", "what": name, **quartiles.record()}
        for name, quartiles in ceilings_by_name.items()
    )
    rows = tuple((name, quartiles.format(1)) for name, quartiles in ceilings_by_name.items())
    shapes = ", ".join("×".join(map(str, shape)) for shape in _shapes(options.device))
    return Result(
        "ceilings",
        "Hardware limits",
        ("measure", "median [quartiles]"),
        rows,
        (f"GEMM: the fastest of the shapes {shapes}",),
        records,
    )


def _shapes(device: str) -> Shapes:
    return CPU_SHAPES if device == "cpu" else CUDA_SHAPES


def gemm_rate(dtype: str, device: str = "cpu", shapes: Shapes = ()) -> float:
    """Measure GFLOP/s of the best shape with the faster of torch's libraries.

    The values are random, as constant ones take less power and run at higher clock rates.
    """
    import torch

    def product(rows: int, inner: int, columns: int) -> float:
        left, right = (
            torch.randn(*size, dtype=getattr(torch, dtype), device=device)
            for size in ((rows, inner), (inner, columns))
        )
        out, transposed = left @ right, right.t().contiguous()
        calls: list[Callable[[], Any]] = [lambda: torch.mm(left, right, out=out)]
        if (dtype, device) == ("float32", "cpu") and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            calls.append(
                lambda: torch.ops.mkldnn._linear_pointwise(left, transposed, None, "none", [], "")
            )
        return 2e-9 * rows * inner * columns / min(map(_seconds, calls))

    shapes = shapes or _shapes(device)
    first = product(*shapes[0])
    if first < MIN_GFLOPS:
        return first
    return max([first, *(product(*shape) for shape in shapes[1:])])


def read_rate(device: str = "cpu", size: int = BYTES) -> float:
    """Measure GB/s of reading a matrix into a matrix-vector product, as decoding does."""
    import torch

    matrix, vector = (
        torch.ones(*shape, size // 4 // 8192, device=device) for shape in ((8192,), ())
    )
    return size / _seconds(lambda: torch.mv(matrix, vector)) / 1e9


def copy_rate(device: str = "cpu", size: int = BYTES) -> float:
    """Measure GB/s of copying: bytes read plus bytes written."""
    import torch

    source, target = (torch.ones(size // 4, device=device) for _ in range(2))
    return 2 * size / _seconds(lambda: target.copy_(source)) / 1e9


def _seconds(call: Any) -> float:
    """Return the seconds of one call, averaged over `SECONDS_PER_SHAPE`."""
    finish = device.synchronize if (device := cuda()) is not None else (lambda: None)
    call()
    finish()
    started, calls = perf_counter(), 0
    while (elapsed := perf_counter() - started) < SECONDS_PER_SHAPE:
        call()
        finish()
        calls += 1
    return elapsed / calls
