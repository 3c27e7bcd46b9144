"""Voting: which of several answers to a problem wins, and when no further vote needs to be asked.

Equal answers have the same group (`grouping.py`). The rules are functions of the votes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Literal

from kitchen.config.user_functions import (
    call_in_run,
    check_positional,
    import_function,
    is_function_name,
)
from kitchen.errors import ConfigError, DataError, KitchenError, check_name

RULES = ("majority", "weighted", "confidence", "unanimous")
SETTING = "vote"
_SAME = 1e-9  # relative difference below which two sums of weights are equal
Decision = Literal["votes", "logprob", "order", "function", ""]


@dataclass(frozen=True)
class Vote:
    """One answer to a problem, by one member of an ensemble."""

    member: str
    draw: int  # index among the answers of this member to the problem
    text: str
    group: int  # equal for answers that are equal by the metric
    # whether the text has the format of the metric, and was not truncated
    readable: bool = True
    # mean log-probability of the answer's tokens, in nats; NaN if the member reports none
    logprob: float = math.nan
    weight: float = 1.0  # of the member, with vote=weighted


@dataclass(frozen=True)
class Outcome:
    """The result of a vote."""

    winner: Vote | None  # the first vote for the answer that won; None if none did
    share: float = 0.0  # 0..1: the part of the weight of all votes that this answer has
    # what decided: the votes alone, or in a tie the log-probability or the order of the members
    decided_by: Decision = ""
    reason: str = ""  # why no answer won

    @property
    def tied(self) -> bool:
        """True if several answers had the same number, or weight, of votes."""
        return self.decided_by in ("logprob", "order")


@dataclass(frozen=True)
class VotingRule:
    """The rule of a vote: one of RULES, or a function of the user, MODULE:function.

    `majority` counts votes, `weighted` adds the weights of the members, and `confidence` adds the
    geometric mean of the token probabilities of each answer, exp of the mean log-probability (Wang
    et al., 2023, arXiv:2203.11171, equation 1). `unanimous` answers only if all members agree.
    """

    name: str = "majority"

    def __post_init__(self) -> None:
        if is_function_name(self.name):
            function = import_function(SETTING, self.name)
            check_positional(SETTING, self.name, function, "f(votes)")
        else:
            check_name(SETTING, self.name, RULES)

    @property
    def is_function(self) -> bool:
        """True for a function of the user."""
        return is_function_name(self.name)

    def decide(self, votes: Sequence[Vote], asked: int, skipped: int = 0) -> Outcome:
        """Return the outcome of the votes that arrived, of `asked` ones, in the order of members.

        `skipped` is the number of votes that a cascade did not ask for.
        Votes that cannot be read count only if none can. Raises DataError for a vote by confidence
        without log-probabilities.
        """
        if not votes:
            if skipped:
                return Outcome(None, reason=f"no vote arrived{_not_asked(skipped)}")
            return Outcome(None, reason="no member answered")
        if self.is_function:
            return self._by_function(votes)
        outcome = self._most(votes)
        if self.name == "unanimous" and (outcome.share < 1 or len(votes) < asked):
            agree = round(outcome.share * len(votes))
            reason = f"not unanimous: {agree} of {asked} votes agree{_not_asked(skipped)}"
            return Outcome(None, outcome.share, reason=reason)
        return outcome

    def is_settled(
        self, votes: Sequence[Vote], missing: Sequence[float], enough: float, failed: int = 0
    ) -> bool:
        """Return whether a cascade may stop before it asks for the missing votes.

        It stops once the lead of the first answer over the second is more than the share `enough`
        of the largest weight that the `missing` votes can have. So the answer changes only if
        more than this share of them went to one other answer; with enough=1 it cannot change.
        """
        if self.is_function:
            raise ConfigError(_no_cascade(self.name))
        if self.name == "unanimous":  # they will not agree any more
            return failed > 0 or len({vote.group for vote in votes}) > 1
        readable = [vote for vote in votes if vote.readable]
        totals = sorted(self._totals(readable).values(), reverse=True)
        if not totals:
            return not missing
        lead = totals[0] - (totals[1] if len(totals) > 1 else 0.0)
        return lead > enough * sum(missing) * (1 + _SAME)

    def largest_weight(self, member: float) -> float:
        """Return the largest weight that a vote of a member can have, given its own weight."""
        return member if self.name == "weighted" else 1.0

    def weight(self, vote: Vote) -> float:
        """Return the weight of a vote."""
        if self.name == "weighted":
            return vote.weight
        if self.name != "confidence":
            return 1.0
        if math.isnan(vote.logprob):
            raise DataError(
                f"vote=confidence needs log-probabilities, and {vote.member} reports none: choose "
                "vote=majority, or members that report them"
            )
        return math.exp(vote.logprob)

    def _totals(self, votes: Sequence[Vote]) -> dict[int, float]:
        """Return the weight of each group of equal answers, in the order of their first votes."""
        totals: dict[int, float] = {}
        for vote in votes:
            totals[vote.group] = totals.get(vote.group, 0.0) + self.weight(vote)
        return totals

    def _most(self, votes: Sequence[Vote]) -> Outcome:
        """Return the outcome for the answer with the most votes."""
        counted = _counted(votes)
        totals = self._totals(counted)
        most = max(totals.values())
        best = [group for group, total in totals.items() if total >= most * (1 - _SAME)]
        group, decided_by = _break_tie(best, counted)
        winner = next(vote for vote in counted if vote.group == group)
        whole = sum(self.weight(vote) for vote in votes)
        return Outcome(winner, totals[group] / whole if whole else 0.0, decided_by)

    def _by_function(self, votes: Sequence[Vote]) -> Outcome:
        function = import_function(SETTING, self.name)
        winner = call_in_run(SETTING, self.name, function, list(votes))
        if winner is None:
            return Outcome(None, reason=f"{self.name} returned None")
        if not isinstance(winner, Vote) or not any(winner is vote for vote in votes):
            raise DataError(
                f"{SETTING}={self.name} must return one of the votes that it was given, or None; "
                f"it returned {winner!r:.80}"
            )
        same = sum(vote.group == winner.group for vote in votes)
        return Outcome(winner, same / len(votes), "function")


def _not_asked(skipped: int) -> str:
    """Return the end of a sentence on votes that a cascade did not ask for."""
    return f", and {skipped} {'was' if skipped == 1 else 'were'} not asked for" if skipped else ""


def _no_cascade(name: str) -> str:
    return (
        f"mode=cascade needs a vote whose outcome is known before all votes are, and "
        f"{SETTING}={name} is a function: choose mode=sequential, or one of {', '.join(RULES)}"
    )


def check_function(rule: VotingRule, labels: Sequence[str], draws: int) -> None:
    """Call a function of the user with made-up votes, since members cost time and money.

    It gets all votes, and then one, as if the others had failed. Raises ConfigError if it fails.
    """
    if not rule.is_function:
        return
    votes = []
    for at, (member, draw) in enumerate(product(labels, range(draws))):
        votes.append(Vote(member, draw, str(at % 2), at % 2, logprob=-0.5))
    for some in (votes, votes[:1]):
        try:
            rule.decide(some, len(votes))
        except KitchenError as error:
            raise ConfigError(
                f"{error}. This was a trial with {len(some)} made-up votes for '0' or '1': the "
                "function must cope with any texts and with missing votes"
            ) from error


def check_cascade(rule: VotingRule) -> None:
    """Raise ConfigError for a rule that a cascade cannot stop early."""
    if rule.is_function:
        raise ConfigError(_no_cascade(rule.name))


def _counted(votes: Sequence[Vote]) -> Sequence[Vote]:
    """Return the votes that can be read, or all if none can."""
    return [vote for vote in votes if vote.readable] or votes


def _break_tie(groups: Sequence[int], votes: Sequence[Vote]) -> tuple[int, Decision]:
    """Choose one of the groups: by the mean log-probability per token, then by order.

    Log-probabilities decide only if all votes for these groups have one.
    """
    if len(groups) == 1:
        return groups[0], "votes"
    logprobs: Mapping[int, list[float]] = {group: [] for group in groups}
    for vote in votes:
        if vote.group in logprobs:
            logprobs[vote.group].append(vote.logprob)
    if any(map(math.isnan, chain.from_iterable(logprobs.values()))):
        return groups[0], "order"
    means = {group: sum(values) / len(values) for group, values in logprobs.items()}
    best = max(means.values())
    likeliest = [group for group in groups if means[group] == best]
    return likeliest[0], "logprob" if len(likeliest) == 1 else "order"


def disagreement(votes: Sequence[Vote]) -> float:
    """Return the share of pairs of votes whose answers differ, 0..1; 0 for fewer than two."""
    n = len(votes)
    if n < 2:
        return 0.0
    sizes: dict[int, int] = {}
    for vote in votes:
        sizes[vote.group] = sizes.get(vote.group, 0) + 1
    same = sum(size * (size - 1) for size in sizes.values())
    return 1 - same / (n * (n - 1))
