"""Definition of "computed the same" for a training step."""

from __future__ import annotations

from tests.bench.contest import Same


def losses_and_gradients(dtype: str) -> tuple[Same, ...]:
    """Compare losses and gradient norms; both sides start from the same weights.

    The last step therefore depends on all before it. bfloat16 has 8 bits, and two correct ways of
    rounding drift apart. Where float32 steps are measured too (SFT on a CPU), ours may be at most
    that much further from these than theirs (docs/benchmarks.md).
    """
    loss, gradient = (1e-3, 1e-4) if dtype == "float32" else (3e-2, 5e-2)
    return Same("loss", loss), Same("grad_norm", gradient, relative=True)
