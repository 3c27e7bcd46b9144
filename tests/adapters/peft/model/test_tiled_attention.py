"""Attention over packed layouts, against torch's own one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.batching.packed_layout import TILING, PackedLayout, TilingConfig, build_layout
from adapters.peft.model import tiled_attention as attention
from adapters.peft.model.tiled_attention import TiledAttention
from kitchen.types import Array
from tests.support.attention_cases import CASES, inputs, plain, sequences


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (3, 3), (4, 1)])
def test_attention_and_gradients_match_torch(
    case: str, heads: int, groups: int, device: str
) -> None:
    """Tiled and added up on the CPU as on such a device."""
    lies = build_layout(CASES[case], torch.device("cpu"), tiling=TILING[device])
    assert any(lies.shared_lengths) == (
        case in ("shared", "shared, several tiles", "identical", "long")
    )
    query, key, value, gradient = inputs(len(lies.ids), heads, groups)
    expected = plain(query, key, value, lies, 0.3)
    out = attention.forward(query.detach(), key.detach(), value.detach(), lies, 0.3)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-12, atol=1e-12)
    expected_gradients = torch.autograd.grad(expected, (query, key, value), gradient)
    into = torch.full_like(query, torch.nan)
    others = attention.backward(
        gradient.detach(),
        query.detach(),
        key.detach(),
        value.detach(),
        out,
        lies,
        0.3,
        into,
        by_index=device == "cuda",
    )
    for got, expected_gradient in zip((into, *others), expected_gradients, strict=True):
        torch.testing.assert_close(got, expected_gradient, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_added_by_index_and_run_by_run_gradients_are_the_same(dtype: torch.dtype) -> None:
    """The gradient by query goes into a part of a tensor, as in a layer."""
    lies = build_layout(CASES["shared, several tiles"], torch.device("cpu"))
    query, key, value, gradient = (x.detach().to(dtype) for x in inputs(len(lies.ids), 4, 2))
    out = attention.forward(query, key, value, lies, 0.3)
    results = []
    for by_index in (False, True):
        whole = torch.full((len(lies.ids), 8, 8), torch.nan, dtype=dtype)
        others = attention.backward(
            gradient, query, key, value, out, lies, 0.3, whole[:, :4], by_index
        )
        assert {each.dtype for each in others} == {torch.float32}
        whole[:, 4:] = torch.cat(others, 1)
        results.append(whole)
    by_run, by_index = results
    assert torch.linalg.vector_norm(by_run) > 1
    apart = torch.linalg.vector_norm((by_index - by_run).float()) / torch.linalg.vector_norm(
        by_run.float()
    )
    assert apart < (1e-6 if dtype == torch.float32 else 1e-2)


def small_tiles(sequences: Sequence[Array]) -> PackedLayout:
    """A layout with tiles of four queries, padded ones among them."""
    lies = build_layout(sequences, torch.device("cpu"), 3, tiling=TilingConfig(4, 2**18, 1.3))
    assert any(tiles.query_padding is not None for tiles in lies.tiles)
    assert len(lies.tiles) > 2
    return lies


def test_tiled_attention_passes_gradcheck() -> None:
    lies = small_tiles(sequences((5, 4), (5, 5), (0, 10)))
    apply: Any = TiledAttention.apply
    query_key_value = inputs(len(lies.ids), 4, 2, 3, 3)[:3]
    assert torch.autograd.gradcheck(lambda *x: apply(*x, lies, 0.4), query_key_value)


def test_padded_queries_leave_no_trace() -> None:
    """Slot 0, to which padding points, may hold anything."""
    lies = small_tiles(sequences((0, 9), (0, 10), (0, 5)))
    query, key, value, gradient = (x.detach() for x in inputs(len(lies.ids), 2, 1))
    others = lies.slots[1]

    def of_others(query: torch.Tensor) -> list[torch.Tensor]:
        out = attention.forward(query, key, value, lies, 0.3)
        into = torch.empty_like(query)
        by_keys = attention.backward(gradient, query, key, value, out, lies, 0.3, into)
        return [x[others] for x in (out, into, *by_keys)]

    moved = query.clone()
    moved[0] += 3
    for before, after in zip(of_others(query), of_others(moved), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_values_may_be_narrower_than_queries() -> None:
    lies = build_layout(CASES["unequal"], torch.device("cpu"))
    query, key, value, _ = inputs(len(lies.ids), 4, 4, 8, 6)
    out = attention.forward(query.detach(), key.detach(), value.detach(), lies, 0.3)
    torch.testing.assert_close(out, plain(query, key, value, lies, 0.3).detach())


@pytest.mark.parametrize("case", ["unequal", "shared, several tiles"])
def test_bfloat16_attention_is_accurate(case: str) -> None:
    lies = build_layout(CASES[case], torch.device("cpu"))
    low = [x.detach().to(torch.bfloat16) for x in inputs(len(lies.ids), 6, 2)]
    query, key, value = (x.double().requires_grad_() for x in low[:3])
    expected = plain(query, key, value, lies, 0.3)
    expected_gradients = torch.autograd.grad(expected, (query, key, value), low[3].double())
    out = attention.forward(*low[:3], lies, 0.3)
    into = torch.empty_like(low[0])
    others = attention.backward(low[3], *low[:3], out, lies, 0.3, into)
    for got, exact in zip(
        (out, into, *others), (expected.detach(), *expected_gradients), strict=True
    ):
        assert float((got.double() - exact).norm() / exact.norm()) < 0.01


def test_key_gradients_accumulate_in_float32() -> None:
    """Eighty short completions of one prompt."""
    rng = np.random.default_rng(4)
    prompt = rng.integers(0, 50, 80)
    lies = build_layout(
        [np.concatenate([prompt, rng.integers(50, 90, 3)]) for _ in range(80)], torch.device("cpu")
    )
    low = [x.detach().to(torch.bfloat16) for x in inputs(len(lies.ids), 4, 2)]
    query, key, value = (x.double().requires_grad_() for x in low[:3])
    expected_gradients = torch.autograd.grad(
        plain(query, key, value, lies, 0.3), (key, value), low[3].double()
    )
    out = attention.forward(*low[:3], lies, 0.3)
    gradients = attention.backward(low[3], *low[:3], out, lies, 0.3, torch.empty_like(low[0]))
    for got, exact in zip(gradients, expected_gradients, strict=True):
        assert float((got.double() - exact)[:80].norm() / exact[:80].norm()) < 0.01
