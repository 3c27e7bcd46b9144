"""Probes of the device that guide optimisation: attention, a product, launches and memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any

from tests.bench.ceilings import copy_rate, read_rate
from tests.bench.gpu.workspace import Workspace

REPEATS = 7
TOKENS = (4096, 2048, 2048, *[1024] * 4, *[512] * 8)  # lengths of the sequences: 16,384 in all
SMALL = (70, 1, 129, 40)  # lengths for the comparison with float64
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128


def probes(workspace: Workspace) -> Mapping[str, Any]:
    """Run all probes; one that fails reports its error beside the figures of the others."""
    device, dry = workspace.device, workspace.dry
    lengths = (16, 8) if dry else TOKENS
    calls: Mapping[str, Callable[[], Any]] = {
        "memory": lambda: _memory(device, 2**22 if dry else 2**32),
        "GEMM 16384×4096×14336 in bfloat16": lambda: _gemm(device, 1 if dry else 16_384),
        "100 small kernels": lambda: _launches(device),
        "varlen": lambda: _varlen(device, lengths),
        "SDPA per sequence": lambda: _attention_times(_sdpa, device, lengths),
        "flex_attention": lambda: _attention_times(_flex(device, lengths, dry), device, lengths),
    }
    figures = dict[str, Any]()
    for name, call in calls.items():
        started = perf_counter()
        try:
            figures[name] = call()
        except Exception as error:  # noqa: BLE001 a probe reports what is missing
            figures[name] = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        print(f"{name}: {figures[name]} ({perf_counter() - started:.1f} s)", flush=True)
    return {"title": "Probes", "figures": figures}


def _memory(device: str, size: int) -> dict[str, float]:
    import torch

    rates = {"read GB/s": read_rate(device, size), "copied GB/s": copy_rate(device, size)}
    if device == "cpu":
        return rates
    free, total = torch.cuda.mem_get_info()
    return {**rates, "free GiB": free / 2**30, "total GiB": total / 2**30}


def _gemm(device: str, rows: int) -> dict[str, float]:
    import torch

    left, right = (
        torch.randn(*size, dtype=torch.bfloat16, device=device)
        for size in ((rows, 4096), (4096, 14_336))
    )
    seconds = _seconds(lambda: left @ right, device)
    return {"ms": seconds * 1e3, "TFLOP/s": 2e-12 * rows * 4096 * 14_336 / seconds}


def _launches(device: str) -> dict[str, Any]:
    """Time 100 additions on a small tensor, called one by one and replayed as a CUDA graph."""
    import torch

    tensor = torch.zeros(1024, device=device)

    def kernels() -> None:
        for _ in range(100):
            tensor.add_(1)

    eager = _seconds(kernels, device)
    if device == "cpu":
        return {"eager µs": eager * 1e6, "graph µs": "there is no CUDA device"}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels()
    return {"eager µs": eager * 1e6, "graph µs": _seconds(graph.replay, device) * 1e6}


def _varlen(device: str, lengths: Sequence[int]) -> dict[str, Any]:
    """Check torch.nn.attention.varlen against float64, and time it."""
    from torch.nn.attention import varlen

    signature = str(inspect.signature(varlen.varlen_attn))
    figures: dict[str, Any] = {"signature": signature}
    if device == "cpu":
        return {**figures, "times": "there is no CUDA device"}
    figures["relative errors"] = _errors(_varlen_attention, device)
    return {**figures, **_attention_times(_varlen_attention, device, lengths)}


def _varlen_attention(q: Any, k: Any, v: Any, lengths: Sequence[int]) -> Any:
    """Return causal attention of packed (T, heads, head_dim) queries, keys and values."""
    import torch
    from torch.nn.attention import varlen

    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=q.device)
    known = inspect.signature(varlen.varlen_attn).parameters
    options: dict[str, Any] = (
        {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    )
    if "enable_gqa" in known:
        options["enable_gqa"] = True
    function: Any = varlen.varlen_attn
    return function(q, k, v, ends, ends, max(lengths), max(lengths), **options)


def _sdpa(q: Any, k: Any, v: Any, lengths: Sequence[int]) -> Any:
    """Return causal attention by one call of scaled_dot_product_attention per sequence."""
    import torch

    parts = []
    for parts_of_one in zip(*(tensor.split(list(lengths)) for tensor in (q, k, v)), strict=True):
        query, key, value = (part.transpose(0, 1)[None] for part in parts_of_one)
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )[0].transpose(0, 1)
        )
    return torch.cat(parts)


def _flex(device: str, lengths: Sequence[int], dry: bool) -> Callable[..., Any]:
    """Return flex_attention, compiled unless this is a dry run, with the mask of packed rows."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    sequence = torch.repeat_interleave(
        torch.arange(len(lengths), device=device), torch.tensor(lengths, device=device)
    )

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (sequence[query] == sequence[key]) & (query >= key)

    total = sum(lengths)
    mask = create_block_mask(causal, None, None, total, total, device=device)
    function: Any = flex_attention if dry else torch.compile(flex_attention)

    def attention(q: Any, k: Any, v: Any, lengths: Sequence[int]) -> Any:
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        out = function(query, key, value, block_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attention


def _attention_times(
    attention: Callable[..., Any], device: str, lengths: Sequence[int]
) -> dict[str, float]:
    """Return the milliseconds of forward and of forward with backward, in bfloat16."""
    import torch

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = _inputs(device, dtype, sum(lengths))
    gradient = torch.randn_like(q)

    def forward() -> None:
        with torch.no_grad():
            attention(q, k, v, lengths)

    def both() -> None:
        attention(q, k, v, lengths).backward(gradient)

    return {
        "forward ms": _seconds(forward, device) * 1e3,
        "forward and backward ms": _seconds(both, device) * 1e3,
    }


def _errors(attention: Callable[..., Any], device: str) -> dict[str, float]:
    """Return the relative errors in bfloat16 of output and gradients against float64."""
    import torch

    inputs = _inputs(device, torch.bfloat16, sum(SMALL))
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    gradient = torch.randn_like(inputs[0])
    out, reference = attention(*inputs, SMALL), _sdpa(*exact, SMALL)
    out.backward(gradient)
    reference.backward(gradient.double())
    pairs = {"out": (out, reference)}
    for name, tensor, expected in zip("qkv", inputs, exact, strict=True):
        pairs[f"gradient of {name}"] = tensor.grad, expected.grad
    return {
        name: float((ours.double() - expected).norm() / expected.norm())
        for name, (ours, expected) in pairs.items()
    }


def _inputs(device: str, dtype: Any, tokens: int) -> list[Any]:
    import torch

    return [
        torch.randn(tokens, heads, HEAD_DIM, dtype=dtype, device=device, requires_grad=True)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]


def _seconds(call: Callable[[], Any], device: str) -> float:
    """Return the median seconds of a call, after two that warm up."""
    import torch

    times = list[float]()
    for _ in range(2 + REPEATS):
        started = perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(perf_counter() - started)
    return median(times[2:])
