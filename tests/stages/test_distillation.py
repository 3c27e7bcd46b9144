"""What is learnt from a teacher, against the formulas."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError
from kitchen.ports import Done
from kitchen.types import Array
from stages.distillation import ImitateTop
from stages.policy import PolicyUpdate, ScoreRollouts
from stages.scoring import OpenReference, same_tokens
from tests.stages.bigrams import Bigrams, learnt


class Teaching:
    """A teacher with chances of its own for the answer."""

    def __init__(self, chances: Array) -> None:
        self.values = np.log(chances)

    def logprobs(self, tokens: Any) -> Any:
        return Done(np.array([np.nan, -1.0, self.values[tokens[2]]], np.float32))

    def top_logprobs(self, tokens: Any, k: int) -> Any:
        ids = np.argsort(-self.values)[:k]
        return Done((np.stack([np.full(k, -1), ids, ids]),
                     np.stack([np.full(k, np.nan), self.values[ids], self.values[ids]]).astype(np.float32)))


@pytest.fixture
def student() -> Bigrams:
    return Bigrams()


@pytest.fixture
def teacher(student: Bigrams) -> Any:
    raw = np.random.default_rng(1).normal(size=student.vocabulary)
    return Teaching(np.exp(raw) / np.exp(raw).sum())


def test_the_gradient_of_the_reverse_divergence(student: Bigrams, teacher: Any) -> None:
    acted, rollouts = student.chances(), student.rollouts()
    scores, told = asyncio.run(ScoreRollouts("teacher").run(teacher, rollouts))
    assert told["kl_teacher"] == pytest.approx(float((np.log(acted) - teacher.values).mean()), rel=1e-5)
    often = student.as_often_as_drawn(PolicyUpdate(penalty=1.0).run(rollouts, scores))
    student.session.forward_backward(often, "importance_sampling").result()
    for token in (5, 66, 200):
        expected = student.slope(token, lambda chances: chances @ (np.log(chances) - teacher.values))
        assert student.gradient(token) == pytest.approx(expected, rel=2e-2, abs=1e-6)


def test_the_gradient_of_the_forward_divergence(student: Bigrams, teacher: Any) -> None:
    rollouts, right = student.rollouts(), np.exp(teacher.values)
    lessons, told = asyncio.run(ImitateTop(student.vocabulary).run(teacher, rollouts))
    found = student.session.forward_backward(learnt(lessons)).result()
    apart = float(right @ (teacher.values - np.log(student.chances())))
    assert found.metrics["loss:sum"] - told["teacher_entropy"] == pytest.approx(apart, rel=1e-4)
    assert told["teacher_mass"] == pytest.approx(1.0, rel=1e-5)
    for token in (5, 66, 200):
        expected = student.slope(token, lambda chances: right @ (teacher.values - np.log(chances)))
        assert student.gradient(token) == pytest.approx(expected, rel=2e-2, abs=1e-6)


def test_of_the_top_the_chances_are_divided_by_their_sum(student: Bigrams, teacher: Any) -> None:
    lessons, told = asyncio.run(ImitateTop(2).run(teacher, student.rollouts()))
    data = learnt(lessons)
    first, likeliest = data[0], np.argsort(-teacher.values)[:2]
    assert first.targets[1].tolist() == likeliest.tolist()
    mass = np.exp(teacher.values[likeliest]).sum()
    assert told["teacher_mass"] == pytest.approx(mass, rel=1e-5)
    np.testing.assert_allclose(first.loss_inputs["weights"] * student.vocabulary,
                               [[0, 0], np.exp(teacher.values[likeliest]) / mass], rtol=1e-5)
    assert sum(float(one.loss_inputs["weights"].sum()) for one in data) == pytest.approx(1.0, rel=1e-5)


class Other:
    """A tokenizer that is another one's, but for one letter."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.vocabulary = inner, inner.vocabulary

    def encode(self, text: str, *, special: bool = False) -> Any:
        return self.inner.encode(text.replace("q", "k"))


def test_a_teacher_that_reads_other_tokens_is_refused() -> None:
    client: Any = FakeTraining()
    tokenizer = client.tokenizer("any")
    assert same_tokens(tokenizer, client.tokenizer("other"))
    with pytest.raises(ConfigError, match="teacher='any' reads other tokens"):
        OpenReference("any", "teacher").run(client, Other(tokenizer))  # type: ignore[arg-type]
