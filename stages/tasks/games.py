"""Problems of several turns, made by the kitchen."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult, Task
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.tools import ToolQuestion
from stages.data.splits import DataConfig, check_generated
from stages.tasks.tasks import Tasks, problem_facts

PREFIX = "game:"
DEFAULT_PROBLEMS = 1000  # problems, where nothing says how many
# problems, one after the other, that were made before: then there are hardly any others
MAX_REPEATS = 1000
HOLD_OUT_FEWER = "hold out fewer (reading.held_out_rows)"
HELD_OUT_SEED = 10_000_000  # of the problems held out, whatever the seed of the run


@dataclass(frozen=True)
class Guess:
    """Find a number by being told higher or lower; a Task. The reward is 1 at the first guess, less
    for later ones.
    """

    low: int
    high: int
    number: int
    tag: str = "guess"

    def env(self) -> Env:
        return _Guessing(self)


@dataclass
class _Guessing:
    game: Guess
    guesses: int = 0
    most = 8  # guesses, after which it is over

    async def reset(self) -> Sequence[Message]:
        low, high = self.game.low, self.game.high
        return [
            {
                "role": "user",
                "content": f"I am thinking of a whole number from {low} to {high}. Guess it. Answer "
                "with a number and nothing else; I then say whether mine is higher or lower.",
            }
        ]

    async def step(self, answer: str) -> StepResult:
        """An answer that is no number ends the game."""
        if (found := re.fullmatch(r"\s*(\d{1,9})\.?\s*", answer)) is None:
            return StepResult(0.0, parsed=False)
        guess, self.guesses = int(found[1]), self.guesses + 1
        if guess == self.game.number:
            return StepResult(1 - (self.guesses - 1) / self.most)
        if self.guesses == self.most:
            return StepResult(0.0)
        return StepResult(
            0.0, ({"role": "user", "content": "Higher." if self.game.number > guess else "Lower."},)
        )


def make_guess(random: np.random.Generator) -> Guess:
    """Of 10 to 30 numbers, none above 100."""
    count = int(random.integers(10, 31))
    low = int(random.integers(1, 102 - count))
    return Guess(low, low + count - 1, int(random.integers(low, low + count)))


def make_calculation(random: np.random.Generator) -> ToolQuestion:
    """Two steps of arithmetic, with a calculator."""
    a, b, c = (int(random.integers(2, 100)) for _ in range(3))
    one, two = (_SIGNS[int(random.integers(len(_SIGNS)))] for _ in range(2))
    asked, right = f"({a} {one[0]} {b}) {two[0]} {c}", two[1](one[1](a, b), c)
    return ToolQuestion(
        f"What is {asked}? Use the calculator, and then answer with the number and nothing else.",
        str(right),
        "calculator",
    )


_SIGNS = (("+", operator.add), ("-", operator.sub), ("*", operator.mul))
GAMES: Mapping[str, Callable[[np.random.Generator], Task]] = MappingProxyType(
    {"guess": make_guess, "calculator": make_calculation}
)


class MakeGames(Stage):
    """Make problems, to train on and held out; the latter are the same for every seed, and none is
    among both.
    """

    dataset: str  # game:NAME
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # problems that the run can train on; None: not known

    def run(self) -> tuple[Tasks, Facts, Table]:
        make, count = (
            GAMES[self.dataset.removeprefix(PREFIX)],
            self.reading.limit or min(self.max_rows or DEFAULT_PROBLEMS, DEFAULT_PROBLEMS),
        )
        held = _some(make, self.reading.held_out_rows, HELD_OUT_SEED, (), HOLD_OUT_FEWER)
        train = _some(
            make, count, self.seed, set(held), f"take fewer (reading.limit), or {HOLD_OUT_FEWER}"
        )
        return Tasks(train, {"held_out": held}), *problem_facts(
            self.dataset, list(map(repr, train)), list(map(repr, held))
        )

    preview = run

    def verify(self) -> None:
        name = self.dataset.removeprefix(PREFIX)
        if name not in GAMES:
            raise ConfigError(f"there is no game {name!r}; {did_you_mean(name, GAMES)}")
        check_generated(self.dataset, self.reading)


def _some(
    make: Callable[[np.random.Generator], Task],
    count: int,
    seed: int,
    but: Collection[Task],
    mend: str,
) -> list[Task]:
    """So many different ones; raises DataError where there are too few."""
    random, found, vain = np.random.default_rng(seed), dict[Task, None](), 0
    while len(found) < count and vain < MAX_REPEATS:
        one = make(random)
        vain = vain + 1 if one in found or one in but else 0
        if not vain:
            found[one] = None
    if len(found) == count:
        return list(found)
    raise DataError(f"only {len(found)} of {count} different problems could be made; {mend}")
