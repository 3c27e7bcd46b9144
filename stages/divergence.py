"""How far weights have gone from others: the Kullback-Leibler divergence, from answers that they write."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from kitchen.ports import BlobStore, Sampler, Tokenizer, TrainingClient, arrival
from kitchen.stage import Stage
from kitchen.types import Metrics, Sampled, Table, Tokens
from stages.data import HeldOut
from stages.evaluation import prompt
from stages.render import RenderDataset
from stages.scoring import sampler_of, scores
from stages.sessions import FinalWeights
from stages.statistics import paired_bootstrap


class _KL(Stage):
    """One answer to each of the first `rows` prompts of a set, at temperature 1, cut at `max_tokens`."""

    reference: str  # a name of weights
    render: RenderDataset
    max_tokens: int
    seed: int = 0
    rows: int = 32

    async def measured(
        self, sampler: Sampler, tokenizer: Tokenizer, held_out: HeldOut, reference: Sampler, when: str = ""
    ) -> tuple[Metrics, Table]:
        """The mean of log(weights / reference) where the weights are drawn from; both samplers are closed."""
        asked = [each for rows in held_out.sets.values() for each in rows[: self.rows]]
        prompts = [prompt(each, tokenizer, self.render) for each in asked]
        answers = await self._answers(sampler, prompts)
        whole = [np.concatenate([one, answer.tokens]) for one, answer in zip(prompts, answers, strict=True)]
        theirs = await scores(reference, whole)
        each = [float(answer.logprobs.astype(np.float64).sum() - other[len(one) :].astype(np.float64).sum())
                for one, answer, other in zip(prompts, answers, theirs, strict=True)]
        found = paired_bootstrap([0.0] * len(each), each, self.seed)
        per_token = sum(each) / sum(len(one.tokens) for one in answers)
        shown = f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"
        return Metrics({f"kl{when}": found.estimate, f"kl_per_token{when}": per_token}), Table(
            f"KL to {self.reference}{when.replace('_', ' ')}, 95 % interval",
            ("answers", "nats per answer", "nats per token"), ((str(len(each)), shown, f"{per_token:.4f}"),))

    async def _answers(self, sampler: Sampler, prompts: Sequence[Tokens]) -> list[Sampled]:
        try:
            asked = [sampler.sample(one, max_tokens=self.max_tokens, seed=self.seed + at)
                     for at, one in enumerate(prompts)]
            return [drawn[0] for drawn in await asyncio.gather(*map(arrival, asked))]
        finally:
            sampler.close()


class MeasureKL(_KL):
    """KL(trained || reference) over the answers to held-out prompts."""

    kept = True

    async def run(
        self, client: TrainingClient, tokenizer: Tokenizer, held_out: HeldOut, weights: FinalWeights,
        blobs: BlobStore | None = None,
    ) -> tuple[Metrics, Table]:
        reference = sampler_of(self.reference, client, blobs)
        return await self.measured(client.sampler(weights), tokenizer, held_out, reference)


class MeasureKLBefore(_KL):
    """The same of the weights that the run begins with."""

    kept = True
    model: str = ""  # a name of weights

    async def run(
        self, client: TrainingClient, tokenizer: Tokenizer, held_out: HeldOut, blobs: BlobStore | None = None
    ) -> tuple[Metrics, Table]:
        reference, model = (sampler_of(name, client, blobs) for name in (self.reference, self.model))
        return await self.measured(model, tokenizer, held_out, reference, "_before")
