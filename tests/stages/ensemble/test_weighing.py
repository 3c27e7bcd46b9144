"""Weights of votes, on simulated members that err independently."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from kitchen.statistics.intervals import paired_interval
from kitchen.types import Array
from stages.ensemble.voted import GradedVote, VotedProblem
from stages.ensemble.voting import Outcome, Vote, VotingRule
from stages.ensemble.weighing import count_wrong_answers, vote_weights
from stages.evaluate.graded_answers import GradedAnswer

ROWS = 200  # on which weights are measured


def simulated(rng: np.random.Generator, accuracies: Sequence[float], wrong: int, n: int) -> Array:
    """Return the (n, members) answers of members; 0 is right, and `wrong` others are not."""
    right = rng.random((n, len(accuracies))) < accuracies
    return np.where(right, 0, rng.integers(1, wrong + 1, right.shape))


def problems(answers: Array) -> list[VotedProblem]:
    """Return voted problems with these answers."""
    grade = GradedAnswer("", "", "", True, 1.0, True, False)
    found = []
    for row in answers.tolist():
        votes = [
            GradedVote(at, 0, "", answer, True, 0.0, 1, 1, {"exact_match": float(answer == 0)})
            for at, answer in enumerate(row)
        ]
        found.append(VotedProblem("", grade, tuple(votes), (), Outcome(None), 0.0))
    return found


def measured_weights(answers: Array) -> list[float]:
    """Return the weights by answers to ROWS problems."""
    wrong = count_wrong_answers(problems(answers), "exact_match", 1.0)
    return vote_weights([float(hits) for hits in (answers == 0).sum(0)], [len(answers)] * 3, wrong)


@pytest.mark.parametrize(
    ("accuracies", "wrong"),
    [
        ((0.9, 0.7, 0.7), 1),
        ((0.8, 0.7, 0.7), 1),
        ((0.95, 0.3, 0.3), 1),  # two members are worse than chance
        ((0.6, 0.3, 0.3), 20),
        ((0.3, 0.25, 0.2), 20),  # all are right less than half of the time
    ],
)
def test_weighted_vote_is_not_worse_than_the_best_member(
    accuracies: tuple[float, ...], wrong: int
) -> None:
    rng, rule = np.random.default_rng(1), VotingRule("weighted")
    weights = measured_weights(simulated(rng, accuracies, wrong, ROWS))
    answers = simulated(rng, accuracies, wrong, 2000)
    won = []
    for row in answers.tolist():
        votes = [Vote(f"m{at}", 0, "", each, weight=weights[at]) for at, each in enumerate(row)]
        winner = rule.decide(votes, 3).winner
        won.append(float(winner is not None and winner.group == 0))
    best = (answers[:, 0] == 0).astype(float)
    assert paired_interval(best, won).high >= 0


def test_weights_are_log_odds() -> None:
    many = [1_000_000] * 2
    weights = vote_weights([900_000, 700_000], many)
    assert weights == pytest.approx([math.log(9), math.log(7 / 3)], abs=1e-3)
    assert vote_weights([900_000, 300_000], many)[1] == 0
    assert vote_weights([300_000, 300_000], many) == [1, 1]
    more = vote_weights([300_000, 300_000], many, wrong_answers=9)
    assert more == pytest.approx([math.log(9 * 3 / 7)] * 2, abs=1e-3)


@pytest.mark.parametrize("wrong", [1, 3, 10])
def test_wrong_answers_are_counted(wrong: int) -> None:
    answers = simulated(np.random.default_rng(2), (0.5, 0.4, 0.3, 0.3, 0.3), wrong, 1000)
    found = count_wrong_answers(problems(answers), "exact_match", 1.0)
    assert found == pytest.approx(wrong, rel=0.1)
