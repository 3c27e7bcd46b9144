"""Batches of recipes on a tiny model: sharing prefixes changes neither loss nor gradient."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any, ClassVar

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.peft.session import PeftSession
from kitchen.types import Datum
from stages.chat.render import RenderDataset
from stages.preference.comparisons import LoadComparisons, RenderPairs, SampledRejections, as_batch
from stages.preference.dpo_losses import PairLoss
from stages.preference.pair_stages import AttachReferenceLogprobs, PrecomputeReferenceLogprobs
from stages.rl.policy_gradient import ComputeAdvantages, ComputeReferenceLogprobs, Minibatches
from stages.rl.rollouts import RolloutConfig, RolloutRunner
from stages.tasks.tasks import LoadTasks
from tests.support.peft_sessions import (
    assert_same_step,
    count_distinct_prefixes,
    record_token_counts,
    shared_and_alone,
    step,
)

ASKED = "How long do I cook an egg, a carrot and a pound of rice? "
RIGHT = [
    {"prompt": ASKED + word, "completion": "eight to ten minutes"} for word in ("Now.", "Later.")
]
PAIRS = [
    {"prompt": ASKED + word, "chosen": "minutes", "rejected": f"an hour, {word}"}
    for word in ("now", "later", "or never")
]
DATA = FakeDatasets(
    {"right": {"train": RIGHT, "held": RIGHT}, "pairs": {"train": PAIRS, "held": PAIRS}}
)


class PairLossInTwoPasses(PairLoss):
    """The same loss without its group of two, so that pairs may be split."""

    group: ClassVar[int] = 0


def policy_data(session: PeftSession, client: Any, penalty: float) -> tuple[Datum, ...]:
    """Return the data of recipes/rl.py: two groups of four, with the initial model as reference."""
    sampler = session.snapshot().result()
    tasks = LoadTasks("right", reward="letters").run(DATA)[0]
    rollouts = asyncio.run(
        RolloutRunner(sampler, session.tokenizer(), RolloutConfig(max_tokens=12)).run(
            tasks.train, 4, [0]
        )
    )
    sampler.close()
    with closing(client.sampler("tiny")) as reference:
        scores, _ = asyncio.run(ComputeReferenceLogprobs().run(reference, rollouts))
    [batch] = Minibatches(1).run(
        ComputeAdvantages(penalty=penalty, discount=0.9 if penalty else 0.0).run(rollouts, scores)
    )
    return batch.data


def pair_data(session: PeftSession, client: Any) -> tuple[Datum, ...]:
    """Return the data of recipes/dpo.py: three pairs, with the initial model as reference."""
    comparisons = LoadComparisons("pairs").run(DATA)[0]
    pairs = RenderPairs(RenderDataset()).run(
        comparisons, SampledRejections({}), session.tokenizer()
    )[0]
    reference = asyncio.run(
        PrecomputeReferenceLogprobs("tiny").run(client, client, session.tokenizer(), pairs)
    )
    return as_batch(AttachReferenceLogprobs().run(pairs, reference)[0].data)


@pytest.mark.parametrize(
    ("loss", "penalty"), [("importance_sampling", 0.0), ("ppo", 0.1), ("cispo", 0.1)]
)
def test_a_step_of_rl(opened: Any, client: Any, letters: None, loss: str, penalty: float) -> None:
    shared, alone = shared_and_alone(opened)
    data = policy_data(shared, client(dtype="float64"), penalty)
    worth = [datum.loss_inputs["advantages"] for datum in data]
    assert len(data) in (4, 8), "groups that are not all of one reward"
    assert len({float(each[-1]) for each in worth}) > 1
    compare(shared, alone, data, loss, loss)


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "hinge"])
def test_a_step_of_dpo(opened: Any, client: Any, kind: Any) -> None:
    shared, alone = shared_and_alone(opened)
    data = pair_data(shared, client(dtype="float64"))
    assert len(data) == 6
    compare(shared, alone, data, PairLoss(kind), PairLossInTwoPasses(kind))


def compare(
    shared: PeftSession, alone: PeftSession, data: tuple[Datum, ...], loss: Any, plain: Any
) -> None:
    once = record_token_counts(shared)
    assert_same_step(step(shared, data, loss), step(alone, data, plain))
    assert (
        sum(once) == count_distinct_prefixes(data) < 0.75 * sum(len(datum.tokens) for datum in data)
    )
