"""A recipe without a model, whose runs can be held, cancelled and made to fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kitchen
from kitchen import Event, Metrics, Outcome, Recipe, Run, RunId, Stage, Step, for_each, sequence
from kitchen.errors import ApiError, BackendError
from tests.support.polling import wait_until_async
from tests.support.recording import without_clocks

SMALL = {
    "dataset": "greetings",
    "batch_size": 4,
    "evaluation": {"max_tokens": 4},
    "save_every": 4,
    "warmup_steps": 0,
}

GREETINGS: dict[str, Any] = {"settings": SMALL, "training": "fake", "datasets": "fake"}


@dataclass(frozen=True)
class Minute:
    number: int


@dataclass(frozen=True)
class Pot:
    stirred: int = 0


class Fill(Stage):
    def run(self) -> Pot:
        return Pot()


class Minutes(Stage):
    count: int

    def run(self) -> Iterable[Minute]:
        return [Minute(number) for number in range(self.count)]


class Stir(Stage):
    def run(self, pot: Pot, minute: Minute) -> tuple[Pot, Metrics]:
        return Pot(pot.stirred + 1), Metrics(stirred=pot.stirred + 1.0, loss=1 / (pot.stirred + 1))


class Taste(Stage):
    def run(self, pot: Pot) -> None:
        assert pot.stirred


class Hold(Stage):
    """Waits at one minute of run RUN until the current folder has a file `go-RUN`."""

    minute: int

    async def run(self, minute: Minute, run: RunId) -> None:
        if minute.number == self.minute:
            await wait_until_async(Path(f"go-{run.id}").exists, timeout=600)


class Simmer(Stage):
    """Takes this many seconds, as a slow stage does; tests cancel it and never wait for its end."""

    seconds: float

    async def run(self) -> Metrics:
        await asyncio.sleep(self.seconds)
        return Metrics(simmered=self.seconds)


class Spoil(Stage):
    how: str

    def run(self) -> Metrics:
        if self.how == "model":
            raise BackendError("there is no such model")
        if self.how == "api":
            raise ApiError("the server refused", status=503, body='{"error": "busy"}')
        raise ZeroDivisionError("no salt left" if self.how == "salt" else self.how)


class Stew(Recipe):
    """A pot stirred step by step, then simmered or spoilt."""

    minutes: int = 10
    save: int = 3
    simmer: float = 0.0
    spoil: str = ""

    def workflow(self) -> Step:
        steps = (
            Fill(),
            for_each(Minutes(self.minutes), save=self.save)(Stir(), Taste()),
            Simmer(self.simmer),
        )
        return sequence(*steps, Spoil(self.spoil)) if self.spoil else sequence(*steps)


class HeldStew(Recipe):
    """A stew that is held at a minute, so that a process can be interrupted there."""

    minutes: int = 20
    save: int = 1
    hold: int = 6

    def workflow(self) -> Step:
        stirring = for_each(Minutes(self.minutes), save=self.save)(Stir(), Hold(self.hold))
        return sequence(Fill(), stirring)


class Gate:
    """A listener that holds a run at a step until it is opened."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.reached, self.open = step, threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        if event.step == self.step:
            self.reached.set()
            assert self.open.wait(60)


def cancelled_at(step: int, recipe: Any, *, at_once: bool = False, **arguments: Any) -> Run:
    """Submit a run that is cancelled by the first event of a step."""
    runs: list[Run] = []
    known = threading.Event()

    def listen(event: Event) -> None:
        if event.step == step and known.wait(60):
            runs[0].cancel(at_once=at_once)

    runs.append(kitchen.submit(recipe, on_progress=listen, **arguments))
    known.set()
    return runs[0]


def rows(outcome: Outcome, name: str = "metrics") -> list[dict[str, Any]]:
    """Return the rows of a journal without times, which differ between runs."""
    lines = Path(outcome.where, f"{name}.jsonl").read_text().splitlines()
    return [without_clocks(json.loads(line)) for line in lines]
