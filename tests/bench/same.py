"""What "computed the same" means for a training step."""

from __future__ import annotations

from tests.bench.contest import Same


def losses_and_gradients(dtype: str) -> tuple[Same, ...]:
    """Both sides begin with the same weights and step for themselves, so that the last step tells
    of all before.

    bfloat16 has 8 bits, and two right ways of rounding drift apart: there, where a work has steps
    of float32 beside them (SFT on a CPU), ours is not to be further from these than theirs is by
    more than that (docs/benchmarks.md).
    """
    loss, gradient = (1e-3, 1e-4) if dtype == "float32" else (3e-2, 5e-2)
    return Same("loss", loss), Same("grad_norm", gradient, relative=True)
