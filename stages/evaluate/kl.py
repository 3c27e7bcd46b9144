"""How far weights have gone from others: the Kullback-Leibler divergence, from answers that they
write.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any
from zlib import crc32

import numpy as np

from kitchen import Step
from kitchen.artifacts.weights import find_weights
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import paired_bootstrap
from kitchen.types import Metrics, Table
from stages.chat.conversations import with_system_prompt
from stages.chat.prompts import prompt_tokens
from stages.chat.render import RenderDataset
from stages.data.dataset import HeldOut
from stages.evaluate.reference import open_reference, open_sampler, sample_answers, score_sequences
from stages.train.session import FinalWeights


class _KLStage(Stage):
    """One answer to each of the first `rows` prompts of a set, at temperature 1, cut at
    `max_tokens`.
    """

    reference: str  # a name of weights
    render: RenderDataset
    max_tokens: int
    seed: int = 0
    rows: int = 32
    of: str = ""  # the data set whose held-out sets are asked; "" for all
    instruction: str = ""  # a system prompt that the reference alone reads

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.reference, client, blobs)

    def open_reference(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        blobs: BlobStore | None,
    ) -> Sampler:
        """The reference; raises ConfigError where it reads other tokens."""
        return open_reference(
            self.reference,
            f"reference.{self.of}" if self.of else "reference",
            client,
            models,
            tokenizer,
            blobs,
        )


async def measure_kl(
    weights: Sampler,
    reference: Sampler,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    how: _KLStage,
    when: str = "",
) -> tuple[Metrics, Table]:
    """The mean of log(weights / reference) where the weights are drawn from."""
    asked = [
        each
        for name, rows in held_out.sets.items()
        if how.of in ("", name.rpartition("/")[0])
        for each in rows[: how.rows]
    ]
    prompts = [prompt_tokens(each, tokenizer, how.render) for each in asked]
    longer = [
        prompt_tokens(with_system_prompt(each, how.instruction), tokenizer, how.render)
        for each in asked
    ]
    came = await sample_answers(
        weights,
        prompts,
        [how.seed, crc32(b"kl"), crc32(how.of.encode())],
        max_tokens=how.max_tokens,
    )
    answers = [answer for [answer] in came]
    whole = [
        np.concatenate([one, answer.tokens]) for one, answer in zip(longer, answers, strict=True)
    ]
    theirs = await score_sequences(reference, whole)
    each = [
        float(answer.logprobs.astype(np.float64).sum() - other[len(one) :].astype(np.float64).sum())
        for one, answer, other in zip(longer, answers, theirs, strict=True)
    ]
    found = paired_bootstrap([0.0] * len(each), each, how.seed)
    per_token = sum(each) / sum(len(one.tokens) for one in answers)
    when, of = when + (f"/{how.of}" if how.of else ""), f" on {how.of}" if how.of else ""
    return Metrics({f"kl{when}": found.estimate, f"kl_per_token{when}": per_token}), Table(
        f"KL to {how.reference}{when.partition('/')[0].replace('_', ' ')}{of}, 95 % interval",
        ("answers", "nats per answer", "nats per token"),
        ((str(len(each)), found.format(), f"{per_token:.4f}"),),
    )


def kl_stages(
    kind: type[_KLStage],
    references: Mapping[str, str],
    render: RenderDataset,
    max_tokens: int,
    seed: int,
    instruction: str,
    **more: Any,
) -> list[Step]:
    """One measurement for each data set, from the reference of its own; "" is all data sets."""
    return [
        kind(name, render, max_tokens, seed, of=of, instruction=instruction, **more)
        for of, name in references.items()
    ]


class MeasureKL(_KLStage):
    """KL(trained || reference) over the answers to held-out prompts."""

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
    """The same of the weights that the run begins with."""

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
