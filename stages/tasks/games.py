"""Built-in games: generated problems of several turns."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

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
DEFAULT_PROBLEMS = 1000  # number of problems to train on, at most
MAX_REPEATS = 1000  # repeated problems in a row, after which hardly any are left
HOLD_OUT_FEWER = "hold out fewer (reading.held_out_rows)"
HELD_OUT_SEED = 10_000_000  # seed of held-out problems, whatever the seed of the run


@dataclass(frozen=True)
class Guess:
    """A Task of guessing a number with the hints "Higher." and "Lower.".

    The reward is 1 for a right first guess, and less for later ones.
    """

    low: int
    high: int
    number: int
    tag: str = "guess"

    def env(self) -> Env:
        return _GuessEnv(self)


@dataclass
class _GuessEnv:
    game: Guess
    guesses: int = 0  # so far
    max_guesses = 8

    async def reset(self) -> Sequence[Message]:
        text = (
            f"I am thinking of a whole number from {self.game.low} to {self.game.high}. Guess it. "
            "Answer with a number and nothing else; I then say whether mine is higher or lower."
        )
        return [{"role": "user", "content": text}]

    async def step(self, answer: str) -> StepResult:
        """Take one guess; an answer that is not a number ends the game."""
        match = re.fullmatch(r"\s*(\d{1,9})\.?\s*", answer)
        if match is None:
            return StepResult(0.0, parsed=False)
        guess = int(match[1])
        self.guesses += 1
        if guess == self.game.number:
            return StepResult(1 - (self.guesses - 1) / self.max_guesses)
        if self.guesses == self.max_guesses:
            return StepResult(0.0)
        hint = "Higher." if self.game.number > guess else "Lower."
        return StepResult(0.0, ({"role": "user", "content": hint},))


def make_guess(random: np.random.Generator) -> Guess:
    """Make a guessing game of 10 to 30 numbers, none above 100."""
    count = int(random.integers(10, 31))
    low = int(random.integers(1, 102 - count))
    return Guess(low, low + count - 1, int(random.integers(low, low + count)))


def make_calculation(random: np.random.Generator) -> ToolQuestion:
    """Make a question of two steps of arithmetic, with a calculator."""
    a, b, c = (int(random.integers(2, 100)) for _ in range(3))
    first, second = (_SIGNS[int(random.integers(len(_SIGNS)))] for _ in range(2))
    expression = f"({a} {first[0]} {b}) {second[0]} {c}"
    question = (
        f"What is {expression}? Use the calculator, and then answer with the number and nothing "
        "else."
    )
    return ToolQuestion(question, str(second[1](first[1](a, b), c)), "calculator")


_SIGNS = (("+", operator.add), ("-", operator.sub), ("*", operator.mul))
# a program may add its own game under another name, before it makes a recipe
GAMES: dict[str, Callable[[np.random.Generator], Task]] = {
    "guess": make_guess,
    "calculator": make_calculation,
}


class MakeGames(Stage):
    """Make games to train on and to hold out; no game is in both.

    Held-out games are the same for every seed.
    """

    dataset: str  # game:NAME
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # problems that the run can train on; None if not known

    def run(self) -> tuple[Tasks, Facts, Table]:
        make = GAMES[self.dataset.removeprefix(PREFIX)]
        count = self.reading.limit or min(self.max_rows or DEFAULT_PROBLEMS, DEFAULT_PROBLEMS)
        held_out = _distinct(make, self.reading.held_out_rows, HELD_OUT_SEED, (), HOLD_OUT_FEWER)
        fix = f"take fewer (reading.limit), or {HOLD_OUT_FEWER}"
        train = _distinct(make, count, self.seed, set(held_out), fix)
        facts, table = problem_facts(
            self.dataset, [repr(task) for task in train], [repr(task) for task in held_out]
        )
        return Tasks(train, {"held_out": held_out}), facts, table

    preview = run

    def verify(self) -> None:
        name = self.dataset.removeprefix(PREFIX)
        if name not in GAMES:
            raise ConfigError(f"there is no game {name!r}; {did_you_mean(name, GAMES)}")
        check_generated(self.dataset, self.reading)


def _distinct(
    make: Callable[[np.random.Generator], Task],
    count: int,
    seed: int,
    excluded: Collection[Task],
    fix: str,
) -> list[Task]:
    """Make `count` distinct problems; raises DataError, with the fix, if there are too few."""
    random = np.random.default_rng(seed)
    problems: dict[Task, None] = {}
    repeats = 0
    while len(problems) < count and repeats < MAX_REPEATS:
        problem = make(random)
        if problem in problems or problem in excluded:
            repeats += 1
        else:
            repeats = 0
            problems[problem] = None
    if len(problems) == count:
        return list(problems)
    raise DataError(f"only {len(problems)} of {count} different problems could be made; {fix}")
