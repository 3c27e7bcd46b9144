"""A recipe's training loop through `kitchen run`, against the same port calls by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Semaphore
from time import perf_counter
from typing import Any

from rich.console import Console

from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from adapters.local.datasets import LocalDatasets
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen import Adam, Kitchen, Lora, Metrics, Observer, StageDone, Step
from kitchen.cli.console import ConsoleObserver
from kitchen.config.order import Order as Cooked
from kitchen.runs.execute import execute
from kitchen.runs.logs import configure
from recipes.sl_basic import SlBasic
from stages.data.dataset import DataConfig, Epochs, LoadDataset, ShuffledBatches
from stages.evaluate.evaluation import EvalConfig
from stages.train.optim import ReportStep
from stages.train.schedules import make_schedule
from tests.bench.figures import Figure, Ratio
from tests.bench.outcome import Goal, Reported, to_reach
from tests.bench.results import DROPPED, Order, Result
from tests.bench.rows import MODEL
from tests.bench.turns import Setup, Turns
from tests.bench.worker import Worker

BATCH = 2  # rows; few, as the overhead does not depend on the cost of a step
PAIRS = {"peft": 30, "fake": 600}  # of steps
GOAL = Goal(0.98, 0.995)
ABOUT = (
    "recipes.sl_basic through the runner, with record, journals, log and console, and the same "
    "calls by hand, on batches that lie ready: two sessions in one process, which step in turn; in "
    "every other pair the kitchen is first, because the first one prepares products of new sizes "
    "for both; everything between the ends of two steps counts",
    "ahead=0, so that nothing of the kitchen hides behind the engine; no evaluation, export or "
    "save point among the steps",
)


def kitchen_run(order: Order, training: str) -> Result:
    """Compare the speed of a run with the bare loop, and measure what it adds to a step."""
    pairs = _pairs_of_steps(order, training)
    cooked = [pair["kitchen"]["seconds"] for pair in pairs[DROPPED:]]
    bare = [pair["bare"]["seconds"] for pair in pairs[DROPPED:]]
    sound = all(pair["kitchen"]["loss"] == pair["bare"]["loss"] for pair in pairs)
    added = _milliseconds([one - other for one, other in zip(cooked, bare, strict=True)])
    ratio = Ratio.of(bare, cooked)
    reported = _reported(ratio, training)
    work = f"kitchen_run_{training}"
    record = {
        "work": work,
        "kitchen": cooked,
        "bare": bare,
        "speed": ratio.of_medians,
        "added_ms": Figure.of(added).record(),
        "sound": sound,
    }
    return Result(
        work,
        f"A kitchen run against a bare loop: {training}, batches of {BATCH}",
        ("side", "ms a step, median [quartiles]"),
        (
            ("kitchen run", Figure.of(_milliseconds(cooked)).shown(3)),
            ("bare loop", Figure.of(_milliseconds(bare)).shown(3)),
        ),
        (
            reported.note,
            f"the kitchen adds {Figure.of(added).shown(3)} ms to a step, "
            f"{sum(added) / len(added):.3f} on average",
            f"compared: the losses of all steps are {'' if sound else 'NOT '}equal to the last bit",
            *ABOUT,
        ),
        (record,),
        sound,
        to_reach([reported]),
    )


def _pairs_of_steps(order: Order, training: str) -> list[Any]:
    """Take steps of both loops in turn; return their seconds and losses, by side."""
    setup = Setup(order.folder, order.seed, DROPPED + (order.pairs or PAIRS[training]))
    with Worker(Loops(setup, training), order.folder) as worker:
        worker.ready()
        return [worker.step().values for _ in range(setup.steps)]


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [1e3 * value for value in seconds]


def _reported(ratio: Ratio, training: str) -> Reported:
    """Return the speed; it has a target only on a real engine."""
    name, shown = "speed against the bare loop", f"{ratio.of_medians:.4f}"
    shown += f" (pairs {ratio.pairs.shown(4)})"
    if training == "peft":
        return Reported(name, ratio.of_medians, shown, GOAL)
    return Reported(name, ratio.of_medians, f"{shown}, of an engine that takes no time")


class Turnstile(Observer):
    """Holds a run at its start and at the end of each step until it may continue."""

    def __init__(self) -> None:
        self.loss = 0.0  # nats per trained token, of the last step
        self._here, self._go = Semaphore(0), Semaphore(0)

    def stage_done(self, event: StageDone) -> None:
        if isinstance(event.stage, ReportStep):
            [self.loss] = (each["loss"] for each in event.published if isinstance(each, Metrics))
            self._here.release()
            self._go.acquire()

    def run_started(self, run: str, step: Step) -> None:
        self._go.acquire()

    def go_on(self, steps: int = 1) -> None:
        self._go.release(steps)

    def step(self) -> float:
        """Let the run take one step and return its loss."""
        self.go_on()
        self._here.acquire()
        return self.loss

    def over(self, _: object) -> None:
        self._here.release()


@dataclass(frozen=True)
class Loops:
    """A side with both loops in one process, so that only the framework differs."""

    setup: Setup
    training: str  # "peft" or "fake"
    name: str = "kitchen and bare"

    def run(self, turns: Turns) -> None:
        configure()
        pairs = self.pairs()
        for _ in range(self.setup.steps):
            turns.wait()
            cooked, bare = next(pairs)
            turns.stop()
            turns.tell(kitchen=cooked, bare=bare)
        next(pairs, None)  # ends the run, or raises its error

    def pairs(self) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        """Return seconds and loss of each step, by the framework and by hand."""
        hand, gate = by_hand(self.recipe(), self.kitchen()), Turnstile()
        with Path(os.devnull).open("w") as nowhere, ThreadPoolExecutor(1) as pool:
            observers = (ConsoleObserver(Console(file=nowhere, width=100)), gate)
            order = Cooked("recipes.sl_basic:SlBasic", self.recipe().model_dump(mode="json"))
            run = pool.submit(execute, order, self.recipe(), self.kitchen(), "run", observers)
            run.add_done_callback(gate.over)
            try:
                # the first step includes the loading, and is dropped
                for number in range(self.setup.steps):
                    found = dict[str, dict[str, float]]()
                    for side in ("kitchen", "bare")[:: 1 if number % 2 else -1]:
                        started = perf_counter()
                        loss = next(hand) if side == "bare" else gate.step()
                        found[side] = {"seconds": perf_counter() - started, "loss": loss}
                    if run.done():  # it failed
                        break
                    yield found["kitchen"], found["bare"]
            finally:
                gate.go_on(
                    self.setup.steps + 1
                )  # its start and every step: it must not wait any more
            run.result()

    def recipe(self) -> SlBasic:
        return SlBasic(
            model=MODEL,
            max_steps=self.setup.steps,
            batch_size=BATCH,
            seed=self.setup.seed,
            save_every=0,
            eval_every=0,
            ahead=0,
            evaluation=EvalConfig(metric="loss"),
            reading=DataConfig(held_out_rows=1),
        )

    def kitchen(self) -> Kitchen:
        blobs, hub = LocalBlobs(str(self.setup.folder / f"runs-{self.training}")), LocalHub()
        client = (
            FakeTraining(blobs)
            if self.training == "fake"
            else PeftTraining(hub, blobs, device="cpu", dtype=self.setup.dtype)
        )
        return Kitchen(client, LocalDatasets(), hub, blobs)


def by_hand(recipe: SlBasic, kitchen: Kitchen) -> Iterator[float]:
    """Yield the loss of each step, in nats per trained token, from a loop written by hand."""
    assert kitchen.training is not None
    assert kitchen.datasets is not None
    most = recipe.rendering.rows_for_steps(recipe.max_steps, recipe.batch_size)
    rows = LoadDataset(recipe.dataset, recipe.reading, recipe.seed, most).run(kitchen.datasets)[0]
    lora = Lora(recipe.lora_rank, alpha=2.0 * recipe.lora_rank, seed=recipe.seed)
    session = kitchen.training.open(recipe.model, lora)
    data = recipe.rendering.run(rows, session.tokenizer())[0]
    [epoch] = Epochs(1, recipe.batch_size, recipe.max_steps).run(data)
    rate = make_schedule(recipe.schedule, recipe.learning_rate, recipe.warmup_steps)
    batches = list(ShuffledBatches(recipe.batch_size, recipe.seed).run(data, epoch))
    for number, batch in enumerate(batches):
        gradient = session.forward_backward(batch.data)
        stepped = session.optim_step(Adam(rate(number / len(batches), 1 / len(batches))))
        loss = gradient.result().metrics["loss:sum"]
        stepped.result()
        yield loss
    session.close()
