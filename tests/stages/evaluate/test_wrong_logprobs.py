"""Log-probabilities that no model has: none becomes a preference, a target or a reference."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import BackendError
from kitchen.ports import Done, Future
from kitchen.types import Datum, Floats, Tokens
from stages.chat.messages import Message
from stages.claims.entailment_judge import EntailmentJudge
from stages.claims.scorers import TextPair
from stages.distill.on_policy import TopKTargets
from stages.distill.teachers import Teachers
from stages.judge.judge import Judge, JudgeConfig
from stages.preference.comparisons import Pairs
from stages.preference.pair_stages import PrecomputeReferenceLogprobs
from stages.tasks.rewards import Prompt
from stages.tasks.tasks import TaskBatch
from tests.support.bigram_policy import BigramPolicy

REQUEST = (Message("user", "Name a dish."),)


class WrongSampler:
    """Gives the last two tokens of a sequence a wrong log-probability, and -1 to all others."""

    def __init__(self, wrong: float) -> None:
        self.wrong = wrong

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        values = np.full(len(tokens), -1.0, np.float32)
        values[0] = np.nan
        values[-2:] = self.wrong
        return Done(values)

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        values = self.logprobs(tokens).result()[:, None].repeat(k, axis=1)
        return Done((np.zeros(values.shape, np.int64), values))

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class WrongTraining(FakeTraining):
    """A training client whose samplers have wrong log-probabilities."""

    wrong = 0.0

    def sampler(self, weights: Any) -> Any:
        return WrongSampler(self.wrong)


def judged(wrong: float, says: Any) -> Coroutine[Any, Any, Any]:
    config = JudgeConfig(says=says, epochs=0)
    judge = Judge(WrongSampler(wrong), ByteTokenizer(), config, name="openai:m")  # type: ignore[arg-type]
    return judge.compare(REQUEST, "soup", "stew")


def entailment(wrong: float) -> Coroutine[Any, Any, Any]:
    judge = EntailmentJudge(WrongSampler(wrong), ByteTokenizer(), "openai:m")  # type: ignore[arg-type]
    return judge.score([TextPair("Tea lowers fever.", "Tea helps.")])


def top_k(wrong: float) -> Coroutine[Any, Any, Any]:
    teachers = Teachers({"": WrongSampler(wrong)}, "", ByteTokenizer())  # type: ignore[dict-item]
    batch = TaskBatch((Prompt(({"role": "user", "content": "?"},)),))
    return TopKTargets(2).run(teachers, batch, BigramPolicy().rollouts())


def precomputed(wrong: float) -> Coroutine[Any, Any, Any]:
    client = WrongTraining()
    client.wrong = wrong
    tokens, targets = np.array([65, 66]), np.array([66, 67])
    datum = Datum(tokens, {"target_tokens": targets, "weights": np.ones(2, np.float32)})
    pairs = Pairs(((datum, datum),), {})
    return PrecomputeReferenceLogprobs("any").run(client, client, ByteTokenizer(), pairs)


@pytest.mark.parametrize("wrong", [np.nan, -np.inf, 5.0])
@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda wrong: judged(wrong, "letter"), "the judge openai:m"),
        (lambda wrong: judged(wrong, "answer"), "the judge openai:m"),
        (entailment, "the judge openai:m"),
        (top_k, "the teacher"),
        (precomputed, "reference='any'"),
    ],
)
def test_wrong_log_probabilities_are_refused(work: Any, name: str, wrong: float) -> None:
    with pytest.raises(BackendError, match=f"{name} returned the log-probability {wrong:g} "):
        asyncio.run(work(wrong))


def test_rounding_above_0_is_no_error() -> None:
    assert asyncio.run(judged(1e-6, "letter")).value == 0.5
