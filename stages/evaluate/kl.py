"""KL divergence between weights and a reference model, estimated from sampled answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np

from kitchen import Step
from kitchen.artifacts.weights import find_weights
from kitchen.errors import DataError, Diverged
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Need, Stage
from kitchen.statistics.intervals import Interval, interval
from kitchen.statistics.samples import NON_NEGATIVE
from kitchen.types import Array, Metrics, Sampled, Table, Tokens
from stages.chat.conversations import Conversation, with_system_prompt
from stages.chat.prompts import prompt_tokens, prompts_with_room
from stages.chat.render import RenderDataset
from stages.data.dataset import HeldOut
from stages.evaluate.evaluation import MAX_TOKENS
from stages.evaluate.reference import (
    PROMPT_LOGPROBS,
    open_reference,
    open_sampler,
    sample_answers,
    score_sequences,
)
from stages.train.session import FinalWeights


class _KLStage(Stage):
    """Base class of stages that sample one answer to each of the first `rows` prompts of a set.

    Answers are sampled at temperature 1, with at most `max_tokens` tokens.
    """

    reference: str  # a name of weights
    render: RenderDataset
    max_tokens: int
    seed: int = 0
    rows: int = 32  # prompts per held-out set
    dataset: str = ""  # data set whose held-out sets have the prompts; "" for all sets
    instruction: str = ""  # a system prompt that only the reference reads

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.reference, client, blobs)

    def needs(self) -> Iterable[Need]:
        return [PROMPT_LOGPROBS]

    def open_reference(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        blobs: BlobStore | None,
    ) -> Sampler:
        """Open the reference; raises ConfigError if its tokenizer differs."""
        setting = f"reference.{self.dataset}" if self.dataset else "reference"
        return open_reference(self.reference, setting, client, models, tokenizer, blobs)

    def prompts(self, held_out: HeldOut) -> list[Conversation]:
        """Return the rows whose prompts the weights answer."""
        conversations: list[Conversation] = []
        for name, rows in held_out.sets.items():
            if self.dataset in ("", name.rpartition("/")[0]):
                conversations += rows[: self.rows]
        return conversations


def _with_room(
    rows: Sequence[Conversation], tokenizer: Tokenizer, render: RenderDataset
) -> tuple[list[Conversation], list[Tokens]]:
    """Return the rows that leave room for an answer, which may end with the context.

    Raises DataError if there are none.
    """
    render = replace(render, overlong="drop")
    prompts = prompts_with_room(rows, tokenizer, render, 1, MAX_TOKENS)
    if not prompts:
        raise DataError("no held-out prompt leaves room for an answer in the model's context")
    return [rows[at] for at in prompts], list(prompts.values())


async def measure_kl(
    weights: Sampler,
    reference: Sampler,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    stage: _KLStage,
    suffix: str = "",
) -> tuple[Metrics, Table]:
    """Estimate KL(weights || reference) in nats, from one answer of the weights to each prompt.

    The estimate of an answer is the sum of exp(d) - 1 - d over its tokens, d = log reference - log
    weights (Schulman, 2020, "Approximating KL divergence", k3). It is unbiased, never below 0, and
    near 0 far less noisy than the sum of -d. Both models score the answers, as the rounding of
    log-probabilities that come from sampling would not cancel out.
    """
    rows, prompts = _with_room(stage.prompts(held_out), tokenizer, stage.render)
    sampled = await sample_answers(
        weights,
        prompts,
        [stage.seed, crc32(b"kl"), crc32(stage.dataset.encode())],
        max_tokens=stage.max_tokens,
    )
    answers = [answer for [answer] in sampled]
    reference_prompts = [
        prompt_tokens(with_system_prompt(row, stage.instruction), tokenizer, stage.render)
        for row in rows
    ]
    scored = await _score_answers(weights, prompts, answers)
    scored_by_reference = await _score_answers(reference, reference_prompts, answers)
    nats = [_k3(*pair) for pair in zip(scored, scored_by_reference, strict=True)]
    return _report(stage, suffix, nats, [len(answer.tokens) for answer in answers])


async def _score_answers(
    model: Sampler, prompts: Sequence[Tokens], answers: Sequence[Sampled]
) -> list[Array]:
    """Return the log-probabilities, (N,), that a model gives to each answer after its prompt."""
    sequences = [
        np.concatenate([prompt, answer.tokens])
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    logprobs = await score_sequences(model, sequences)
    return [
        of_sequence[len(prompt) :].astype(np.float64)
        for prompt, of_sequence in zip(prompts, logprobs, strict=True)
    ]


def _k3(logprobs: Array, reference_logprobs: Array) -> float:
    """Return the estimate of one answer, in nats."""
    difference = reference_logprobs - logprobs
    return float((np.expm1(difference) - difference).sum())


def _report(
    stage: _KLStage, suffix: str, nats: Sequence[float], tokens: Sequence[int]
) -> tuple[Metrics, Table]:
    """Report the KL divergence per answer and per token, given the sums of each answer."""
    if not np.isfinite(nats).all():
        raise Diverged(
            f"the KL divergence to {stage.reference} is not a number: a model returned an infinite "
            "log-probability, or none, for a token of a sampled answer."
        )
    mean = interval(nats, bounds=NON_NEGATIVE)
    counted = [(each, size) for each, size in zip(nats, tokens, strict=True) if size]
    per_token = interval(*zip(*counted, strict=True), bounds=NON_NEGATIVE)
    key = f"{suffix}/{stage.dataset}" if stage.dataset else suffix
    metrics = Metrics({f"kl{key}": mean.estimate, f"kl_per_token{key}": per_token.estimate})
    when = suffix.replace("_", " ")
    instructed = " with the instruction" if stage.instruction else ""
    on_dataset = f" on {stage.dataset}" if stage.dataset else ""
    return metrics, Table(
        f"KL to {stage.reference}{instructed}{when}{on_dataset} (k3 estimate, 95 % interval)",
        ("answers", "nats per answer", "nats per token"),
        ((str(len(nats)), shown_interval(mean), shown_interval(per_token, 4)),),
    )


def shown_interval(mean: Interval, digits: int = 3) -> str:
    """Return an interval whose numbers, if not 0, do not read as 0."""
    if not mean.known:
        return f"{shown_number(mean.estimate, digits)} [no interval]"
    low, high = shown_number(mean.low, digits), shown_number(mean.high, digits)
    return f"{shown_number(mean.estimate, digits)} [{low}, {high}]"


def shown_number(number: float, digits: int) -> str:
    """Return a number with this many decimals, or with two significant digits if they are all 0."""
    text = f"{number:.{digits}f}"
    return f"{number:.1e}" if number and not float(text) else text


def kl_stages(
    kind: type[_KLStage],
    references: Mapping[str, str],
    render: RenderDataset,
    max_tokens: int,
    seed: int,
    instruction: str,
    **extra: Any,
) -> list[Step]:
    """Return one stage per data set, each with its reference; "" stands for all data sets."""
    return [
        kind(reference, render, max_tokens, seed, dataset=dataset, instruction=instruction, **extra)
        for dataset, reference in references.items()
    ]


class MeasureKL(_KLStage):
    """Estimate KL(trained || reference) over answers to held-out prompts."""

    memoize = True

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        held_out: HeldOut,
        weights: FinalWeights,
        blobs: BlobStore | None = None,
    ) -> tuple[Metrics, Table]:
        with (
            closing(self.open_reference(client, models, tokenizer, blobs)) as reference,
            closing(client.sampler(weights)) as trained,
        ):
            return await measure_kl(trained, reference, tokenizer, held_out, self)


class MeasureKLBefore(_KLStage):
    """Estimate KL(model || reference) for the weights that training starts from."""

    memoize = True
    model: str = ""  # a name of weights

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[Metrics, Table]:
        with (
            closing(self.open_reference(client, models, tokenizer, blobs)) as reference,
            closing(open_sampler(self.model, client, blobs)) as model,
        ):
            return await measure_kl(model, reference, tokenizer, held_out, self, "_before")
