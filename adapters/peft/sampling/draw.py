"""Sampling: the next token of each row, and the end of a completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch

from adapters.peft.sampling.requests import SamplingRequest
from kitchen.errors import RunFailed
from kitchen.types import Array, Sampled, Tokens

DecodeText = Callable[[Sequence[int]], str]
# Tokens per block: probabilities are summed by block first, so that a cumulative sum over tokens
# is needed in one block only.
BLOCK = 256
WITHOUT_FLOAT64 = ("mps",)  # types of devices
# Top-k and top-p look at this many likeliest tokens first: sorting a whole vocabulary is slow.
CANDIDATES = 256
MAX_TOP_K = 2**31  # as good as none, and exact in every number format
# settings of the rows of a batch, in the order of `controls`
CONTROLS = ("temperature", "uniform", "top_p", "top_k")
# of a token from `draw_static`; if not settled, `draw_all_candidates` has to sample it again
STATUSES = ("settled", "not settled", "not finite")


@dataclass(eq=False)
class Row:
    """One completion while it is decoded."""

    request: SamplingRequest
    index: int  # among the completions of its request
    max_new_tokens: int
    stop_ids: frozenset[int]
    continues_cached: bool = False  # the prompt continues a sequence in the conversation cache
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: Literal["stop", "length", ""] = ""

    def __post_init__(self) -> None:
        # A generator per row: its numbers do not depend on the other rows of the batch.
        self._rng = np.random.default_rng([self.request.seed, self.index])
        self._stop_texts = [stop for stop in self.request.stop if isinstance(stop, str)]
        # Tokens to decode in search of a stop string; each token has at least one byte.
        longest = max((len(text.encode()) for text in self._stop_texts), default=0)
        self._tail = longest + 4

    @property
    def is_complete(self) -> bool:
        return bool(self.stop_reason)

    def uniform(self) -> float:
        return float(self._rng.random())

    def add(self, token: int, logprob: float, decode_text: DecodeText) -> None:
        """Append a token and set `stop_reason` if the completion ends with it."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self.request.on_token is not None:
            self.request.on_token(self.index, token)
        if token in self.stop_ids or (self._stop_texts and self._has_stop_text(decode_text)):
            self.stop_reason = "stop"
        elif len(self.ids) >= self.max_new_tokens:
            self.stop_reason = "length"

    def tokens_with_kv(self) -> Tokens:
        """Return the tokens with keys and values: prompt and completion without the last token."""
        return np.concatenate(
            [np.asarray(self.request.prompt, np.int64), np.array(self.ids[:-1], np.int64)]
        )

    def sampled(self) -> Sampled:
        return Sampled(
            np.array(self.ids, np.int64),
            np.array(self.logprobs, np.float32),
            self.stop_reason or "length",
        )

    def _has_stop_text(self, decode_text: DecodeText) -> bool:
        text = decode_text(self.ids[-self._tail :])
        return any(stop in text for stop in self._stop_texts)


class Drawn(Protocol):
    """One sampled token for each row of a batch."""

    @property
    def tokens(self) -> torch.Tensor:
        """(R,) token ids on the device; read after `fetch`."""
        ...

    def fetch(self) -> tuple[Sequence[int], Sequence[float]]:
        """Return token ids and log-probabilities on the host, in one transfer.

        Raises RunFailed if logits are not finite.
        """
        ...


@dataclass(frozen=True)
class DrawnTokens:
    """Tokens that `draw` has sampled, and their log-probabilities, on the device."""

    tokens: torch.Tensor
    logprobs: torch.Tensor

    def fetch(self) -> tuple[Sequence[int], Sequence[float]]:
        tokens, logprobs_ = _where_float64_is(self.tokens), _where_float64_is(self.logprobs)
        ids, logprobs = torch.stack([tokens.double(), logprobs_.double()]).tolist()
        return [int(token) for token in ids], logprobs


def draw(
    logits: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row from (R, V) logits.

    Returns (R,) tokens and their (R,) log-probabilities in nats, under the temperature-scaled
    distribution before top-k and top-p truncate it, on the CPU if the device lacks float64. Raises
    RunFailed if logits are not finite.
    """
    device = logits.device
    temperatures = [row.request.temperature or 1.0 for row in rows]
    logits = _where_float64_is(logits).to(accum_dtype)
    shifted = logits - logits.amax(-1, keepdim=True)  # so that no temperature makes them overflow
    if set(temperatures) != {1.0}:
        shifted /= torch.tensor(temperatures, dtype=accum_dtype, device=logits.device).clamp_(
            min=torch.finfo(accum_dtype).tiny
        )[:, None]
    probs = _block_probs(shifted)
    sums = probs.sum(-1, dtype=torch.float64)  # (R, blocks)
    if not bool(sums.isfinite().all()):
        raise not_finite()
    tokens = _sample_tokens(shifted, probs, sums, rows)
    logprobs = (shifted.gather(1, tokens[:, None]) - sums.sum(-1, keepdim=True).log())[:, 0]
    return tokens.to(device), logprobs


def _where_float64_is(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor on its device, or on the CPU if its device has no float64."""
    return x.cpu() if x.device.type in WITHOUT_FLOAT64 else x


def not_finite() -> RunFailed:
    """Return the error for logits that are not finite."""
    return RunFailed(
        "the logits of the model are not finite numbers, because its weights are not; sample "
        "from an earlier checkpoint"
    )


def draw_static(
    logits: torch.Tensor, controls: torch.Tensor, accum_dtype: torch.dtype, *, truncated: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sample as `draw` does, from settings that are on the device; fit for a CUDA graph.

    `controls`: (4, R) float64, by row of CONTROLS. Returns (R,) tokens, log-probabilities, and
    one of STATUSES as a number. Without `truncated`, no row may have top-k or top-p.
    """
    temperature, uniform, top_p, top_k = controls[..., None]
    tiny = torch.finfo(accum_dtype).tiny
    logits = logits.to(accum_dtype)
    shifted = logits - logits.amax(-1, keepdim=True)
    shifted /= temperature.to(accum_dtype).clamp_(min=tiny)
    probs = _block_probs(shifted)
    sums = probs.sum(-1, dtype=torch.float64)
    totals = sums.sum(-1)
    tokens = _inverse_cdf(probs, sums, uniform)
    settled = torch.ones_like(tokens, dtype=torch.bool)
    if truncated:
        is_truncated = ((top_p < 1) | (top_k > 0))[:, 0]
        candidates = min(logits.shape[1], CANDIDATES)
        flat = probs.flatten(1)[:, : logits.shape[1]]
        from_top, exact = _top_k_top_p(flat, totals, top_p, top_k.long(), uniform, candidates)
        tokens = torch.where(is_truncated, from_top, tokens)
        settled = exact | ~is_truncated | (candidates == logits.shape[1])
    greedy = top_k[:, 0] == 1
    tokens = torch.where(greedy, logits.argmax(-1), tokens)
    logprobs = shifted.gather(1, tokens[:, None])[:, 0] - totals.log()
    status = (~(settled | greedy)).double()
    return tokens, logprobs, torch.where(totals.isfinite(), status, STATUSES.index("not finite"))


def draw_all_candidates(
    logits: torch.Tensor, controls: torch.Tensor, accum_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample rows with top-k or top-p from (R, V) logits, with the whole vocabulary sorted."""
    temperature, uniform, top_p, top_k = controls[..., None]
    logits = logits.to(accum_dtype)
    shifted = logits - logits.amax(-1, keepdim=True)
    shifted /= temperature.to(accum_dtype).clamp_(min=torch.finfo(accum_dtype).tiny)
    probs = shifted.exp()
    totals = _block_probs(shifted).sum(-1, dtype=torch.float64).sum(-1)
    tokens, _ = _top_k_top_p(probs, totals, top_p, top_k.long(), uniform, logits.shape[1])
    return tokens, shifted.gather(1, tokens[:, None])[:, 0] - totals.log()


def set_controls(controls: Array, rows: Sequence[Row]) -> bool:
    """Write the settings of some rows into (4, R) `controls`; return whether any is truncated.

    Greedy rows get top_k 1, whatever their temperature.
    """
    methods = [_method(row.request) for row in rows]
    for place, (row, method) in enumerate(zip(rows, methods, strict=True)):
        request = row.request
        top_k = 1 if method == "greedy" else min(request.top_k, MAX_TOP_K)
        top_p = 1.0 if method == "greedy" else request.top_p
        controls[:, place] = request.temperature or 1.0, 0.0, top_p, top_k
    set_uniforms(controls, rows)
    return "truncated" in methods


def set_uniforms(controls: Array, rows: Sequence[Row]) -> None:
    """Write the next uniform number of each row into `controls`; greedy rows need none."""
    top_k = controls[CONTROLS.index("top_k")]
    uniforms = [0.0 if top_k[place] == 1 else row.uniform() for place, row in enumerate(rows)]
    controls[CONTROLS.index("uniform"), : len(rows)] = uniforms


def _block_probs(shifted: torch.Tensor) -> torch.Tensor:
    """Return (R, blocks, BLOCK) unnormalised probabilities; the largest is 1, padding is 0."""
    rows, vocabulary = shifted.shape
    padded = shifted.new_zeros(rows, -(-vocabulary // BLOCK) * BLOCK)
    torch.exp(shifted, out=padded[:, :vocabulary])
    return padded.view(rows, -1, BLOCK)


def _sample_tokens(
    logits: torch.Tensor, probs: torch.Tensor, sums: torch.Tensor, rows: Sequence[Row]
) -> torch.Tensor:
    """Return (R,) tokens, each by the method that its request asks for."""
    places_by_method: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places_by_method.setdefault(_method(row.request), []).append(place)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    for method, places in places_by_method.items():
        where: torch.Tensor | slice = slice(None)
        if len(places) < len(rows):
            where = torch.tensor(places, device=logits.device)
        if method == "greedy":
            tokens[where] = logits[where].argmax(-1)
            continue
        uniforms = torch.tensor([[rows[place].uniform()] for place in places], dtype=torch.float64)
        uniforms = uniforms.to(logits.device)
        if method == "full":
            tokens[where] = _inverse_cdf(probs[where], sums[where], uniforms)
        else:
            flat = probs[where].flatten(1)[:, : logits.shape[1]]
            requests = [rows[place].request for place in places]
            tokens[where] = _sample_truncated(flat, sums[where].sum(-1), requests, uniforms)
    return tokens


def _method(request: SamplingRequest) -> Literal["greedy", "truncated", "full"]:
    if request.temperature == 0 or request.top_k == 1:
        return "greedy"
    return "truncated" if request.top_p < 1 or request.top_k > 0 else "full"


def _inverse_cdf(probs: torch.Tensor, sums: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution at uniform numbers.

    Takes (R, blocks, n) unnormalised probabilities, their (R, blocks) sums and (R, 1) uniform
    numbers; returns (R,) token ids.
    """
    ends = sums.cumsum(-1)
    target = uniforms * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=sums.shape[1] - 1)  # (R, 1)
    within = torch.take_along_dim(probs, block[..., None], 1)[:, 0].cumsum(-1, dtype=torch.float64)
    target -= (ends - sums).gather(1, block)
    # the last token with a probability above 0: rounding may lead past it
    last = (within < within[:, -1:]).sum(-1)
    offset = torch.searchsorted(within, target, right=True)[:, 0]
    return block[:, 0] * probs.shape[2] + torch.minimum(offset, last)


def _sample_truncated(
    probs: torch.Tensor,
    totals: torch.Tensor,
    requests: Sequence[SamplingRequest],
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Sample after top-k and top-p, from (R, V) unnormalised probabilities with (R,) totals.

    The whole vocabulary is sorted only for rows whose cut lies beyond the likeliest candidates.
    """
    vocabulary = probs.shape[1]
    candidates = min(vocabulary, max(CANDIDATES, 1 + max(request.top_k for request in requests)))
    top_p, top_k = _truncation(requests, probs.device)
    tokens, exact = _top_k_top_p(probs, totals, top_p, top_k, uniforms, candidates)
    if candidates == vocabulary:
        return tokens
    unsettled = [place for place, settled in enumerate(exact.tolist()) if not settled]
    if unsettled:
        where = torch.tensor(unsettled, device=probs.device)
        tokens[where] = _top_k_top_p(
            probs[where], totals[where], top_p[where], top_k[where], uniforms[where], vocabulary
        )[0]
    return tokens


def _truncation(
    requests: Sequence[SamplingRequest], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (R, 1) top-p and top-k of some requests."""
    top_p = torch.tensor(
        [[request.top_p] for request in requests], dtype=torch.float64, device=device
    )
    top_k = [[min(request.top_k, MAX_TOP_K)] for request in requests]
    return top_p, torch.tensor(top_k, device=device)


def _top_k_top_p(
    probs: torch.Tensor,
    totals: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    uniforms: torch.Tensor,
    candidates: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply top-k, then top-p to what it leaves (Holtzman et al., 2020, arXiv:1904.09751).

    `top_p`, `top_k` and `uniforms` are (R, 1); a `top_k` of 0 is none.

    Ties go to the lower id. Returns (R,) tokens, and per row whether the `candidates` likeliest
    tokens, the only ones looked at, include every token that is left.
    """
    ids = probs.topk(candidates, sorted=False).indices.sort(-1).values
    ranked, order = probs.gather(1, ids).double().sort(dim=-1, descending=True, stable=True)
    size = probs.shape[1]
    top_k = torch.where(top_k == 0, size, top_k).clamp(max=size)
    left = torch.arange(candidates, device=probs.device) < top_k
    shares = ranked * left
    shares /= torch.where(top_k < size, shares.sum(-1, keepdim=True), totals[:, None])
    # the token that reaches top_p stays
    left &= (shares.cumsum(-1) - shares < top_p) | (top_p == 1)
    exact = ~(left & (ranked == ranked[:, -1:]) & (ranked > 0)).any(-1)
    shares *= left
    sampled = _inverse_cdf(shares[:, None], shares.sum(-1, keepdim=True), uniforms)
    return ids.gather(1, order.gather(1, sampled[:, None]))[:, 0], exact
