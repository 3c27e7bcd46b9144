"""The Triton kernels compute what the kernels in torch compute; on a CPU by the interpreter."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.model.elementwise import RMSNorm
from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.kernels import PAGE, Batch, Kernels
from adapters.peft.sampling.paged.torch_kernels import TorchKernels
from adapters.peft.sampling.paged.weights import HeadNormWeights, Product

pytest.importorskip("triton")
DEVICE = os.environ.get("KITCHEN_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from adapters.peft.sampling.paged.triton_kernels import TritonKernels, key_splits  # noqa: E402

# the interpreter cannot multiply bfloat16
DTYPES = [torch.float32, torch.float16 if DEVICE == "cpu" else torch.bfloat16]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
REFERENCE: Kernels = TorchKernels()


@pytest.fixture(scope="module")
def kernels() -> TritonKernels:
    return TritonKernels()


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).normal(size=shape)
    return torch.from_numpy(values).to(DEVICE, dtype)


def product(rows: int, parts: tuple[int, ...], rank: int, dtype: torch.dtype) -> Product:
    columns = sum(parts)
    out = random(rows, columns, dtype=dtype, seed=1)
    if not rank:
        return Product(out, parts=parts)
    low_rank = random(rows, len(parts) * rank, dtype=dtype, seed=2)
    return Product(out, low_rank, random(rank, columns, dtype=dtype, seed=3) / 4, parts)


def batch_of(lengths: list[tuple[int, int]], dim: int, padding: int = 0) -> tuple[Batch, int]:
    """Return rows of some (prompt, completion) lengths, and how many pages they need."""
    starts = [-(-prompt // PAGE) * PAGE for prompt, _ in lengths]
    ends = [start + completion for start, (_, completion) in zip(starts, lengths, strict=True)]
    width = max(ends) // PAGE + 1
    count = len(lengths) + padding
    rows = torch.zeros(4, count + 3, dtype=torch.int32)
    rows[0, : len(ends)] = torch.tensor(ends)
    rows[1, : len(ends)] = torch.tensor([prompt for prompt, _ in lengths])
    rows[2, : len(ends)] = torch.tensor(starts)
    pages = 1 + len(lengths) * width
    table = torch.zeros(count, width, dtype=torch.int32)
    order = np.random.default_rng(4).permutation(np.arange(1, pages))
    table[: len(lengths)] = torch.from_numpy(order.reshape(len(lengths), width))
    angles = random(width * PAGE, dim // 2, seed=5).cpu()
    cos, sin = angles.cos().to(DEVICE), angles.sin().to(DEVICE)
    return Batch(rows[:, :count].to(DEVICE), table.to(DEVICE), cos, sin), pages


def assert_close(one: torch.Tensor, other: torch.Tensor) -> None:
    tolerance = TOLERANCES[other.dtype]
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "rank"), [(64, 0), (200, 16), (768, 32)])
def test_add_norm(kernels: TritonKernels, width: int, rank: int, dtype: torch.dtype) -> None:
    module: Any = torch.nn.Module()
    module.weight, module.variance_epsilon = random(width, dtype=dtype, seed=7), 1e-5
    norm = RMSNorm(module)
    for added in (None, product(5, (width,), rank, dtype)):
        streams = [random(5, width, dtype=dtype, seed=8) for _ in range(2)]
        assert_close(
            kernels.add_norm(streams[0], added, norm), REFERENCE.add_norm(streams[1], added, norm)
        )
        assert_close(streams[0], streams[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("dim", "rank"), [(16, 0), (32, 16), (64, 32)])
def test_rope_and_store(
    kernels: TritonKernels, dim: int, rank: int, normed: bool, dtype: torch.dtype
) -> None:
    heads = HeadLayout(6, 2, dim, 0.3)
    lengths = [(3 + 9 * row, 11 * row) for row in range(18)]
    batch, pages = batch_of(lengths, dim, padding=2)
    qkv = product(20, (6 * dim, 2 * dim, 2 * dim), rank, dtype)
    caches = [random(2, pages, 2, PAGE, dim, dtype=dtype, seed=9) for _ in range(2)]
    norms = HeadNormWeights(random(2, dim, dtype=dtype, seed=10), 1e-2) if normed else None
    assert_close(
        kernels.rope_and_store(qkv, heads, batch, caches[0], norms),
        REFERENCE.rope_and_store(qkv, heads, batch, caches[1], norms),
    )
    # padding rows write to the same slot of page 0, in any order
    assert_close(caches[0][:, 1:], caches[1][:, 1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("layout", "rows"), [((4, 2, 16), 3), ((8, 1, 64), 2), ((16, 16, 32), 17), ((24, 8, 16), 8)]
)
def test_attend(
    kernels: TritonKernels, layout: tuple[int, int, int], rows: int, dtype: torch.dtype
) -> None:
    heads = HeadLayout(*layout, 0.3)
    lengths = [(1 + 97 * row % 300, 61 * row % 150) for row in range(rows)]
    batch, pages = batch_of(lengths, heads.head_dim, padding=1)
    cache = random(2, pages, heads.kv_heads, PAGE, heads.head_dim, dtype=dtype, seed=9)
    query = random(rows + 1, heads.query_heads, heads.head_dim, dtype=dtype)
    assert_close(
        kernels.attend(query, heads, batch, cache), REFERENCE.attend(query, heads, batch, cache)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "rank"), [(64, 0), (200, 16), (128, 48)])
def test_swiglu(kernels: TritonKernels, width: int, rank: int, dtype: torch.dtype) -> None:
    gate_up = product(19, (width, width), rank, dtype)
    assert_close(kernels.swiglu(gate_up), REFERENCE.swiglu(gate_up))


@pytest.mark.parametrize("spread", [0.5, 8.0])
@pytest.mark.parametrize("vocabulary", [320, 1024, 5000])
def test_sampling(kernels: TritonKernels, vocabulary: int, spread: float) -> None:
    rows = 24
    logits = random(rows, vocabulary) * spread
    logits[:, vocabulary // 2 :] = logits[:, : vocabulary - vocabulary // 2]  # ties
    logits[3, :-1] = -torch.inf
    uniforms = torch.from_numpy(np.random.default_rng(1).random(rows))
    uniforms[:2] = torch.tensor([0.0, 1 - 2**-53])
    controls = torch.stack([torch.linspace(0.3, 2, rows).double(), uniforms] + 2 * [uniforms * 0])
    controls[0, 5], controls[3, ::4] = 1e-40, 1
    controls = controls.to(DEVICE)
    drawn = kernels.sample(logits, controls, truncated=False)
    expected = REFERENCE.sample(logits, controls, truncated=False)
    # the likeliest tokens reach a uniform number just below 1 in some order of rounding
    below_one = 1
    assert float(drawn[1][below_one]) > -np.inf
    compared = np.delete(np.arange(rows), below_one)
    np.testing.assert_array_equal(drawn[0].cpu()[compared], expected[0].cpu()[compared])
    torch.testing.assert_close(drawn[1][compared], expected[1][compared], rtol=1e-5, atol=1e-5)
    assert drawn[2].tolist() == [0.0] * rows


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_reported(kernels: TritonKernels, value: float) -> None:
    logits = random(3, 2000)
    logits[1, 1500] = value
    controls = torch.tensor([[1.0], [0.5], [1.0], [0.0]]).double().repeat(1, 3).to(DEVICE)
    for sampled in (kernels, REFERENCE):
        assert sampled.sample(logits, controls, truncated=False)[2].tolist() == [0, 2, 0]


def test_splits_fill_the_device_for_few_rows() -> None:
    assert [key_splits(programs) for programs in (8, 64, 256, 512, 4096)] == [16, 16, 4, 1, 1]
