"""Rules of votes, ties, and when a cascade may stop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.statistics.intervals import interval
from stages.ensemble.voting import Vote, VotingRule, check_cascade, disagreement

HERE = "tests.stages.ensemble.test_voting"


def votes(groups: str, **values: Sequence[float]) -> list[Vote]:
    """Return a vote for each letter; equal letters are equal answers, and `?` cannot be read."""
    found = []
    for at, letter in enumerate(groups):
        options = {name: numbers[at] for name, numbers in values.items()}
        readable = letter != "?"
        found.append(Vote(f"m{at}", 0, letter, groups.index(letter), readable, **options))
    return found


@pytest.mark.parametrize(
    ("rule", "groups", "values", "winner", "share", "decided_by"),
    [
        ("majority", "abb", {}, "b", 2 / 3, "votes"),
        ("majority", "ab", {"logprob": [-2, -1]}, "b", 0.5, "logprob"),
        ("majority", "ab", {"logprob": [math.nan, -1]}, "a", 0.5, "order"),
        ("majority", "ba", {"logprob": [-1, -1]}, "b", 0.5, "order"),
        # one long vote for b, two for a: means are compared, not sums
        ("majority", "aabbc", {"logprob": [-1, -3, -1.5, -2, -0.1]}, "b", 0.4, "logprob"),
        ("majority", "??a", {}, "a", 1 / 3, "votes"),
        ("majority", "??", {}, "?", 1, "votes"),
        ("weighted", "abb", {"weight": [3, 1, 1]}, "a", 0.6, "votes"),
        ("weighted", "abb", {"weight": [0.3, 0.1, 0.2]}, "a", 0.5, "order"),
        ("confidence", "abb", {"logprob": np.log([0.9, 0.4, 0.4])}, "a", 0.9 / 1.7, "votes"),
        ("unanimous", "aaa", {}, "a", 1, "votes"),
        ("unanimous", "aab", {}, None, 2 / 3, ""),
        ("unanimous", "aa?", {}, None, 2 / 3, ""),
        (f"{HERE}:last", "aab", {}, "b", 1 / 3, "function"),
        (f"{HERE}:nobody", "aab", {}, None, 0, ""),
    ],
)
def test_vote_has_a_winner_and_a_share(
    rule: str,
    groups: str,
    values: dict[str, Sequence[float]],
    winner: str | None,
    share: float,
    decided_by: str,
) -> None:
    found = VotingRule(rule).decide(votes(groups, **values), len(groups))
    assert (found.winner and found.winner.text) == winner
    assert found.share == pytest.approx(share)
    assert found.decided_by == decided_by
    assert bool(found.reason) == (winner is None)


def last(cast: list[Vote]) -> Vote:
    return cast[-1]


def nobody(cast: list[Vote]) -> None:
    return None


def a_text(cast: list[Vote]) -> str:
    return cast[0].text


def broken(cast: list[Vote]) -> Vote:
    raise ValueError("broken")


def no_argument() -> None: ...


def test_missing_votes_are_not_unanimous() -> None:
    rule = VotingRule("unanimous")
    assert rule.decide(votes("aa"), asked=2).winner
    assert rule.decide(votes("aa"), asked=3).winner is None


def test_votes_that_were_not_asked_for_are_no_missing_ones() -> None:
    decide = VotingRule("unanimous").decide
    assert decide(votes("ab"), 2, 1).reason == (
        "not unanimous: 1 of 2 votes agree, and 1 was not asked for"
    )
    assert decide([], 1, 2).reason == "no vote arrived, and 2 were not asked for"


@pytest.mark.parametrize("rule", ["majority", "unanimous", "confidence", f"{HERE}:last"])
def test_no_vote_is_no_answer(rule: str) -> None:
    assert VotingRule(rule).decide([], asked=3).reason == "no member answered"


@pytest.mark.parametrize(
    ("rule", "error"), [("a_text", DataError), ("broken", RunFailed)], ids=["text", "broken"]
)
def test_function_must_return_one_of_the_votes(rule: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        VotingRule(f"{HERE}:{rule}").decide(votes("ab"), asked=2)


@pytest.mark.parametrize("name", ["majorty", f"{HERE}:missing", f"{HERE}:no_argument"])
def test_unknown_rules_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        VotingRule(name)


def test_confidence_needs_logprobs() -> None:
    with pytest.raises(DataError):
        VotingRule("confidence").decide(votes("ab", logprob=[math.nan, -1]), asked=2)


def test_functions_cannot_end_a_cascade() -> None:
    rule = VotingRule(f"{HERE}:last")
    with pytest.raises(ConfigError):
        check_cascade(rule)
    with pytest.raises(ConfigError):
        rule.is_settled(votes("aa"), [1.0], 0.8)


@pytest.mark.parametrize(
    ("groups", "missing", "enough", "settled"),
    [
        ("a", 2, 0.8, False),
        ("aa", 1, 1.0, True),
        ("ab", 1, 0.1, False),
        ("aa", 2, 1.0, False),  # the other two could tie
        ("aa", 2, 0.9, True),
        ("aa", 3, 0.8, False),
        ("aa", 3, 0.5, True),
        ("??", 1, 0.1, False),
        ("?a", 1, 0.9, True),
    ],
)
def test_cascade_stops_when_the_lead_is_large_enough(
    groups: str, missing: int, enough: float, settled: bool
) -> None:
    rule = VotingRule("majority")
    assert rule.is_settled(votes(groups), [1.0] * missing, enough) is settled


@pytest.mark.parametrize(
    ("groups", "failed", "settled"), [("aa", 0, False), ("ab", 0, True), ("aa", 1, True)]
)
def test_cascade_of_a_unanimous_vote_stops_at_a_dissent(
    groups: str, failed: int, settled: bool
) -> None:
    assert VotingRule("unanimous").is_settled(votes(groups), [1.0], 0.8, failed) is settled


@pytest.mark.parametrize("name", ["majority", "weighted", "confidence", "unanimous"])
def test_cascade_with_enough_1_never_changes_the_answer(name: str) -> None:
    rule, rng = VotingRule(name), np.random.default_rng(1)
    stopped = 0
    for _ in range(500):
        size = int(rng.integers(2, 8))
        letters = "".join(rng.choice(list("aab?"), size))
        weights = rng.uniform(0.1, 1, size)
        logprobs = np.log(rng.uniform(0.2, 1, size))
        every = votes(letters, weight=weights, logprob=logprobs)
        largest = [rule.largest_weight(weight) for weight in weights]
        full = rule.decide(every, size)
        for asked in range(1, size):
            if rule.is_settled(every[:asked], largest[asked:], enough=1.0):
                stopped += 1
                early = rule.decide(every[:asked], asked, size - asked)
                assert (early.winner is None) == (full.winner is None)
                assert early.winner is None or early.winner.group == full.winner.group
                break
    assert stopped > 100


@pytest.mark.parametrize(("accuracy", "members"), [(0.7, 3), (0.6, 5), (0.4, 7)])
def test_majority_follows_condorcets_binomial(accuracy: float, members: int) -> None:
    """Independent members that choose one of two answers (Condorcet, 1785)."""
    rng, rule = np.random.default_rng(members), VotingRule("majority")
    right = []
    for row in rng.random((4000, members)) < accuracy:
        found = rule.decide(votes("".join("ab"[int(hit)] for hit in row)), members)
        right.append(float(found.winner is not None and found.winner.text == "b"))
    expected = sum(
        math.comb(members, k) * accuracy**k * (1 - accuracy) ** (members - k)
        for k in range(members // 2 + 1, members + 1)
    )
    found_interval = interval(right, confidence=0.99)
    assert found_interval.low <= expected <= found_interval.high


@pytest.mark.parametrize(("groups", "share"), [("aaa", 0), ("aab", 2 / 3), ("abc", 1), ("a", 0)])
def test_disagreement_is_the_share_of_pairs_that_differ(groups: str, share: float) -> None:
    assert disagreement(votes(groups)) == pytest.approx(share)
