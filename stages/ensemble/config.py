"""Settings of an ensemble: its members, and how they are asked and vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Literal

from kitchen.errors import ConfigError
from stages.ensemble.voting import VotingRule, check_cascade

Mode = Literal["parallel", "sequential", "cascade"]
ENOUGH = 0.8


@dataclass(frozen=True)
class Request:
    """A request that goes to one member for each problem."""

    member: int  # index among the members
    draw: int  # index of its first answer among those of the member
    count: int  # number of answers


@dataclass(frozen=True)
class EnsembleConfig:
    """The members of an ensemble, and how they are asked and vote.

    All members are sampled at one temperature, so their log-probabilities can be compared.
    """

    members: tuple[str, ...]  # names of weights, in the order of asking
    draws: int = 1  # answers sampled from each member
    vote: str = "majority"
    mode: Mode = "parallel"
    enough: float = ENOUGH  # of a cascade; see VotingRule.is_settled
    seconds: float = 30.0  # time limit of each request
    temperature: float = 0.0
    concurrency: int = 16  # requests to a member at the same time

    @classmethod
    def of(cls, settings: object) -> EnsembleConfig:
        """Return the configuration in the attributes of the same names of a recipe."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    def __post_init__(self) -> None:
        rule = self.rule
        if not self.members:
            raise ConfigError(
                "an ensemble has no members: set `members` to a list of two or more weights, such "
                "as [run:FIRST, run:SECOND, run:THIRD]"
            )
        if self.votes < 2:
            raise ConfigError(
                f"members={self.members[0]} is one member, and draws=1 is one vote: add members, "
                "or set draws to the number of answers that vote (self-consistency)"
            )
        if self.draws > 1 and self.temperature == 0:
            raise ConfigError(
                f"draws={self.draws} at temperature=0 gives the same answer each time: raise the "
                "temperature, or leave draws at 1"
            )
        again = [name for at, name in enumerate(self.members) if name in self.members[:at]]
        if again and self.temperature == 0:
            raise ConfigError(
                f"members has {again[0]} more than once, and at temperature=0 it gives the same "
                "answer each time: raise the temperature, or name it once"
            )
        if self.mode == "cascade":
            check_cascade(rule)
        elif self.enough != ENOUGH:
            raise ConfigError(
                f"enough={self.enough:g} has no effect with mode={self.mode}, which asks all "
                "members: set mode=cascade, or leave enough out"
            )

    @property
    def rule(self) -> VotingRule:
        """The rule of the vote."""
        return VotingRule(self.vote)

    @property
    def votes(self) -> int:
        """The number of votes on each problem, if none fails and a cascade asks all."""
        return len(self.members) * self.draws

    @property
    def labels(self) -> Sequence[str]:
        """Names of the members for reports; one that occurs again gets a number."""
        labels: list[str] = []
        for at, name in enumerate(self.members):
            before = self.members[:at].count(name)
            labels.append(f"{name} ({before + 1})" if before else name)
        return labels

    def rounds(self) -> Sequence[Sequence[Request]]:
        """Return the requests in the order of asking; those of a round are asked together.

        A cascade asks for one answer at a time.
        """
        members = range(len(self.members))
        if self.mode == "cascade":
            steps = product(members, range(self.draws))
            return [[Request(member, draw, 1)] for member, draw in steps]
        requests = [Request(member, 0, self.draws) for member in members]
        return [requests] if self.mode == "parallel" else [[request] for request in requests]
