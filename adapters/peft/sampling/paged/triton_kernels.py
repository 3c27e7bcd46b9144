"""Kernels of a decoding step in Triton, for CUDA; `TRITON_INTERPRET=1` runs them on a CPU.

Products are added in float32 and rounded once. float32 inputs are multiplied in float32, not TF32.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
import triton
import triton.language as tl

from adapters.peft.model.elementwise import RMSNorm
from adapters.peft.sampling.draw import STATUSES, draw_static
from adapters.peft.sampling.kv_cache import HeadLayout
from adapters.peft.sampling.paged.kernels import PAGE, Batch
from adapters.peft.sampling.paged.weights import HeadNormWeights, Product

TILE_ROWS = 16  # rows of a tile on tensor cores
TILE_COLUMNS = 128
RANK_STEP = 4  # of a low-rank product that is computed for one row
# parts that the keys of a row are split into, by the largest number of rows times key heads; few
# sizes, because each is compiled
SPLITS = MappingProxyType({64: 16, 256: 4})
VOCABULARY_BLOCK = 1024  # logits that one program reads
# rows of `Batch.rows`, as constants of kernels
PROMPT, START = tl.constexpr(1), tl.constexpr(2)
NOT_FINITE = tl.constexpr(float(STATUSES.index("not finite")))


class TritonKernels:
    """The kernels; each is one launch, except attention over split keys, which has two."""

    def add_norm(self, x: torch.Tensor, added: Product | None, norm: RMSNorm) -> torch.Tensor:
        out, width = torch.empty_like(x), x.shape[1]
        block = triton.next_power_of_2(width)
        delta, low_rank, b, rank = _operands(added, x)
        _add_norm[(len(x),)](
            x, delta, low_rank, b, norm.weight, out, width, norm.eps,
            HAS_DELTA=added is not None, RANK=rank, RANK_STEP=RANK_STEP, BLOCK=block,
            num_warps=min(max(block // 256, 1), 16),
        )  # fmt: skip
        return out

    def rope_and_store(
        self,
        qkv: Product,
        heads: HeadLayout,
        batch: Batch,
        pages: torch.Tensor,
        norms: HeadNormWeights | None = None,
    ) -> torch.Tensor:
        count = len(qkv.out)
        query = qkv.out.new_empty(count, heads.query_heads, heads.head_dim)
        all_heads = heads.query_heads + 2 * heads.kv_heads
        out, low_rank, b, rank = _operands(qkv, qkv.out)
        weights, eps = (out, 0.0) if norms is None else (norms.weights, norms.eps)
        _rope_and_store[(triton.cdiv(count, TILE_ROWS), all_heads)](
            out, low_rank, b, weights, eps, query, pages, batch.cos, batch.sin,
            batch.rows, batch.table, count,
            batch.rows.stride(0), batch.table.stride(0), pages.stride(0),
            QUERY_HEADS=heads.query_heads, KV_HEADS=heads.kv_heads, HALF=heads.head_dim // 2,
            PAGE=PAGE, RANK=rank, TILE=TILE_ROWS, HAS_NORMS=norms is not None,
        )  # fmt: skip
        return query

    def attend(
        self, query: torch.Tensor, heads: HeadLayout, batch: Batch, pages: torch.Tensor
    ) -> torch.Tensor:
        count = len(query)
        out = query.new_empty(count, heads.query_heads * heads.head_dim)
        splits = key_splits(count * heads.kv_heads)
        shape = count, heads.query_heads, splits
        parts = torch.empty(*shape, heads.head_dim, dtype=torch.float32, device=query.device)
        sums = torch.empty(2, *shape, dtype=torch.float32, device=query.device)
        group = max(TILE_ROWS, triton.next_power_of_2(heads.heads_per_kv))
        _attend[(count, heads.kv_heads, splits)](
            query, pages, batch.rows, batch.table, out, parts, sums, heads.scale,
            batch.rows.stride(0), batch.table.stride(0), pages.stride(0), sums.stride(0),
            KV_HEADS=heads.kv_heads, GROUP=heads.heads_per_kv, TILE=group, DIM=heads.head_dim,
            PAGE=PAGE, SPLITS=splits, num_warps=4, num_stages=2,
        )  # fmt: skip
        if splits > 1:
            _merge_splits[(count * heads.query_heads,)](
                parts, sums, out, sums.stride(0), DIM=heads.head_dim, SPLITS=splits, num_warps=1
            )
        return out

    def swiglu(self, gate_up: Product) -> torch.Tensor:
        count, width = len(gate_up.out), gate_up.out.shape[1] // 2
        hidden = gate_up.out.new_empty(count, width)
        out, low_rank, b, rank = _operands(gate_up, gate_up.out)
        _swiglu[(triton.cdiv(count, TILE_ROWS), triton.cdiv(width, TILE_COLUMNS))](
            out, low_rank, b, hidden, count, width, RANK=rank, TILE=TILE_ROWS, BLOCK=TILE_COLUMNS
        )
        return hidden

    def sample(
        self, logits: torch.Tensor, controls: torch.Tensor, *, truncated: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if truncated:
            return draw_static(logits, controls, torch.float32, truncated=True)
        count, vocabulary = logits.shape
        blocks = triton.cdiv(vocabulary, VOCABULARY_BLOCK)
        summaries = torch.empty(2, count, blocks, dtype=torch.float32, device=logits.device)
        _sum_blocks[(count, blocks)](
            logits, controls, summaries, vocabulary, summaries.stride(0), BLOCK=VOCABULARY_BLOCK
        )
        tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
        results = torch.empty(2, count, dtype=torch.float64, device=logits.device)
        _pick_token[(count,)](
            logits, controls, summaries, tokens, results, vocabulary, blocks, summaries.stride(0),
            controls.stride(0), count,
            BLOCK=VOCABULARY_BLOCK, BLOCKS=triton.next_power_of_2(blocks),
        )  # fmt: skip
        return tokens, results[0], results[1]


def key_splits(programs: int) -> int:
    """Return how many parts the keys of a row are split into; it depends on the graph only."""
    return next((splits for most, splits in SPLITS.items() if programs <= most), 1)


def _operands(
    product: Product | None, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Return W x, the low-rank input, B and their rank; `like` stands for what is absent."""
    if product is None:
        return like, like, like, 0
    if product.low_rank is None or product.b is None:
        return product.out, like, like, 0
    return product.out, product.low_rank, product.b, product.rank


@triton.jit
def _add_norm(
    x, delta, low_rank, b, weight, out, width, eps,
    HAS_DELTA: tl.constexpr, RANK: tl.constexpr, RANK_STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per row: x += delta + B · low_rank; out = x / rms(x) · weight."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    stream = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        added = tl.load(delta + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        for first in range(0, RANK, RANK_STEP):
            ranks = first + tl.arange(0, RANK_STEP)
            low = tl.load(low_rank + row * RANK + ranks).to(tl.float32)
            at = ranks[:, None] * width + columns[None, :]
            part = tl.load(b + at, mask=inside[None, :], other=0.0).to(tl.float32)
            added += tl.sum(low[:, None] * part, 0)
        rounded = (stream + added).to(x.dtype.element_ty)
        tl.store(x + row * width + columns, rounded, mask=inside)
        stream = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(stream * stream, 0) / width + eps)
    weights = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out + row * width + columns,
        (stream * scale * weights).to(out.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def _product(
    out, low_rank, b, rows, columns, part, count, limit, width, low_width, RANK: tl.constexpr
):  # fmt: skip
    """Load (rows, columns) of a product in float32, with the low-rank part of `part` added."""
    inside = (rows < count)[:, None] & (columns < limit)[None, :]
    at = rows[:, None] * width + columns[None, :]
    total = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    for first in range(0, RANK, 16):
        ranks = first + tl.arange(0, 16)
        low_at = rows[:, None] * low_width + (part * RANK + ranks)[None, :]
        low = tl.load(low_rank + low_at, mask=(rows < count)[:, None], other=0.0)
        b_at = ranks[:, None] * width + columns[None, :]
        part_of_b = tl.load(b + b_at, mask=(columns < limit)[None, :], other=0.0)
        total += tl.dot(low, part_of_b, input_precision="ieee")
    return total


@triton.jit
def _normalize(first, second, weights, eps, HALF: tl.constexpr):
    """Apply an RMSNorm to rows of 2 · HALF features, given as two halves."""
    features = tl.arange(0, HALF)
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
    first *= scale * tl.load(weights + features).to(tl.float32)[None, :]
    second *= scale * tl.load(weights + HALF + features).to(tl.float32)[None, :]
    return first, second


@triton.jit(do_not_specialize=["count", "state_stride", "table_stride"])
def _rope_and_store(
    out, low_rank, b, norms, eps, query, pages, cos, sin, state, table,
    count, state_stride, table_stride, part_stride,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, PAGE: tl.constexpr,
    RANK: tl.constexpr, TILE: tl.constexpr, HAS_NORMS: tl.constexpr,
):  # fmt: skip
    """One program per tile of rows and head: write queries, or keys and values.

    Queries and keys are rotated before, and normalised before that if HAS_NORMS.
    """
    rows, head = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1)
    inside, features = rows < count, tl.arange(0, HALF)
    width = (QUERY_HEADS + 2 * KV_HEADS) * 2 * HALF
    columns = head * 2 * HALF + features
    # 0: queries, 1: keys, 2: values
    part = (head >= QUERY_HEADS).to(tl.int32) + (head >= QUERY_HEADS + KV_HEADS).to(tl.int32)
    others = columns + HALF
    first = _product(out, low_rank, b, rows, columns, part, count, width, width, 3 * RANK, RANK)
    second = _product(out, low_rank, b, rows, others, part, count, width, width, 3 * RANK, RANK)
    end = tl.load(state + rows, mask=inside, other=0)
    if part < 2:
        if HAS_NORMS:
            first, second = _normalize(first, second, norms + part * 2 * HALF, eps, HALF)
        prompt = tl.load(state + PROMPT * state_stride + rows, mask=inside, other=0)
        start = tl.load(state + START * state_stride + rows, mask=inside, other=0)
        at = (prompt + end - start)[:, None] * HALF + features[None, :]
        cosine = tl.load(cos + at, mask=inside[:, None], other=0.0).to(tl.float32)
        sine = tl.load(sin + at, mask=inside[:, None], other=0.0).to(tl.float32)
        rotated = first * cosine - second * sine
        second = second * cosine + first * sine
        first = rotated
    first, second = first.to(query.dtype.element_ty), second.to(query.dtype.element_ty)
    if part == 0:
        to = query + (rows * QUERY_HEADS + head)[:, None] * 2 * HALF + features[None, :]
    else:
        page = tl.load(table + rows * table_stride + end // PAGE, mask=inside, other=0)
        slot = (page.to(tl.int64) * KV_HEADS + (head - QUERY_HEADS) % KV_HEADS) * PAGE + end % PAGE
        to = pages + (part - 1) * part_stride + slot[:, None] * 2 * HALF + features[None, :]
    tl.store(to, first, mask=inside[:, None])
    tl.store(to + HALF, second, mask=inside[:, None])


@triton.jit(do_not_specialize=["state_stride", "table_stride", "sums_stride"])
def _attend(
    query, pages, state, table, out, parts, sums, scale,
    state_stride, table_stride, part_stride, sums_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One program per row, key head and split: Dao et al., 2022, arXiv:2205.14135."""
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end = tl.load(state + row)
    prompt = tl.load(state + PROMPT * state_stride + row)
    start = tl.load(state + START * state_stride + row)
    used = end // PAGE + 1
    share = (used + SPLITS - 1) // SPLITS
    members, features, within = tl.arange(0, TILE), tl.arange(0, DIM), tl.arange(0, PAGE)
    at = (row * KV_HEADS + head) * GROUP + members  # of the query heads
    is_member = (members < GROUP)[:, None]
    q = tl.load(query + at[:, None] * DIM + features[None, :], mask=is_member, other=0.0)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, DIM), tl.float32)
    # every page has a slot that is in use, so that new_top is finite
    for number in range(split * share, tl.minimum((split + 1) * share, used)):
        page = tl.load(table + row * table_stride + number).to(tl.int64)
        keys = pages + (page * KV_HEADS + head) * PAGE * DIM
        slot = number * PAGE + within
        visible = (slot < prompt) | ((slot >= start) & (slot <= end))
        k = tl.load(keys + within[None, :] * DIM + features[:, None])
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        v = tl.load(keys + part_stride + within[:, None] * DIM + features[None, :])
        total = total * shrink + tl.sum(weights, 1)
        added = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        mixed = mixed * shrink[:, None] + added
        top = new_top
    _store_attended(out, parts, sums, sums_stride, at, is_member, features, split,
                    top, total, mixed, DIM, SPLITS)  # fmt: skip


@triton.jit
def _store_attended(
    out, parts, sums, sums_stride, at, is_member, features, split, top, total, mixed,
    DIM: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Store the outputs of some query heads; of a split, what is needed to merge it."""
    if SPLITS == 1:
        done = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + at[:, None] * DIM + features[None, :], done, mask=is_member)
    else:
        place = at * SPLITS + split
        only = tl.arange(0, 1)[None, :]  # a column, so that the mask fits
        tl.store(parts + place[:, None] * DIM + features[None, :], mixed, mask=is_member)
        tl.store(sums + place[:, None] + only, top[:, None], mask=is_member)
        tl.store(sums + sums_stride + place[:, None] + only, total[:, None], mask=is_member)


@triton.jit(do_not_specialize=["sums_stride"])
def _merge_splits(
    parts, sums, out, sums_stride, DIM: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """One program per row and query head: add the splits, each scaled to the same maximum."""
    place, splits, features = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, DIM)
    tops = tl.load(sums + place * SPLITS + splits)
    totals = tl.load(sums + sums_stride + place * SPLITS + splits)
    weights = tl.exp(tops - tl.max(tops, 0))  # 0 for a split without keys
    at = (place * SPLITS + splits)[:, None] * DIM + features[None, :]
    mixed = tl.sum(tl.load(parts + at) * weights[:, None], 0) / tl.sum(totals * weights, 0)
    tl.store(out + place * DIM + features, mixed.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["count"])
def _swiglu(
    out, low_rank, b, hidden, count, width,
    RANK: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per tile: silu(gate) · up."""
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    whole, low_width, others = 2 * width, 2 * RANK, columns + width
    gate = _product(out, low_rank, b, rows, columns, 0, count, width, whole, low_width, RANK)
    up = _product(out, low_rank, b, rows, others, 1, count, whole, whole, low_width, RANK)
    inside = (rows < count)[:, None] & (columns < width)[None, :]
    product = gate * tl.sigmoid(gate) * up
    at = rows[:, None] * width + columns[None, :]
    tl.store(hidden + at, product.to(hidden.dtype.element_ty), mask=inside)


@triton.jit
def _temperature(controls, row):
    smallest = 1.1754943508222875e-38  # as in `draw`
    return tl.maximum(tl.load(controls + row).to(tl.float32), smallest)


@triton.jit(do_not_specialize=["sums_at"])
def _sum_blocks(
    logits, controls, summaries, vocabulary, sums_at, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row and block of logits: their maximum, and the sum relative to it."""
    row, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocabulary
    scores = tl.load(logits + row * vocabulary + columns, mask=inside, other=float("-inf"))
    scores = scores.to(tl.float32)
    top = tl.max(scores, 0)
    finite_top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp((scores - finite_top) / _temperature(controls, row)), 0)
    tl.store(summaries + row * blocks + block, top)
    tl.store(summaries + sums_at + row * blocks + block, total)


@triton.jit(do_not_specialize=["blocks", "sums_at", "controls_stride", "count"])
def _pick_token(
    logits, controls, summaries, tokens, results, vocabulary, blocks, sums_at, controls_stride,
    count, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One program per row: find the block of the token by the cumulative sums, then the token."""
    row, number, offsets = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCKS), tl.arange(0, BLOCK)
    is_greedy = tl.load(controls + 3 * controls_stride + row) == 1.0
    temperature = _temperature(controls, row)
    tops = tl.load(summaries + row * blocks + number, mask=number < blocks, other=float("-inf"))
    sums = tl.load(summaries + sums_at + row * blocks + number, mask=number < blocks, other=0.0)
    top = tl.max(tops, 0)
    mass = (sums * tl.exp((tops - top) / temperature)).to(tl.float64)
    ends = tl.cumsum(mass, 0)
    total = tl.max(ends, 0)
    target = tl.load(controls + controls_stride + row) * total
    block = _first_beyond(ends, mass, number, target)
    block = tl.where(is_greedy, tl.min(tl.where(tops == top, number, BLOCKS - 1), 0), block)
    block = tl.minimum(block, blocks - 1)
    target -= tl.sum(tl.where(number == block, ends - mass, 0.0), 0)
    columns = block * BLOCK + offsets
    scores = tl.load(
        logits + row * vocabulary + columns, mask=columns < vocabulary, other=float("-inf")
    ).to(tl.float32)
    mass_here = tl.exp((scores - top) / temperature).to(tl.float64)
    offset = _first_beyond(tl.cumsum(mass_here, 0), mass_here, offsets, target)
    likeliest = tl.min(tl.where(scores == top, offsets, BLOCK - 1), 0)
    offset = tl.where(is_greedy, likeliest, offset)
    score = tl.sum(tl.where(offsets == offset, scores, 0.0), 0)
    logprob = ((score - top) / temperature).to(tl.float64) - tl.log(total)
    check = tl.sum(mass, 0)
    is_finite = (check == check) & (check < float("inf"))
    tl.store(tokens + row, tl.minimum(block * BLOCK + offset, vocabulary - 1).to(tl.int64))
    tl.store(results + row, logprob)
    tl.store(results + count + row, tl.where(is_finite, 0.0, NOT_FINITE).to(tl.float64))


@triton.jit
def _first_beyond(ends, mass, numbers, target):
    """Return the first number whose cumulative sum is above the target, at most the last with mass.

    Rounding may lead beyond that one.
    """
    last = tl.max(tl.where(mass > 0, numbers, 0), 0)
    return tl.minimum(tl.sum((ends <= target).to(tl.int32), 0), last)
