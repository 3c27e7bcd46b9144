"""Overhead of a kitchen run over a bare loop with the same port calls."""

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
from kitchen.backend.logs import configure
from kitchen.cli.console import ConsoleObserver
from kitchen.config.order import Order as RunOrder
from kitchen.runs.execute import execute
from recipes.sl_basic import SlBasic
from stages.data.dataset import DataConfig, Epochs, LoadDataset, ShuffledBatches
from stages.evaluate.evaluation import EvalConfig
from stages.train.optim import ReportStep
from stages.train.schedules import make_schedule
from tests.bench.outcome import ReportedMetric, Target, with_targets
from tests.bench.quartiles import Quartiles, Ratio
from tests.bench.results import DROPPED, Options, Result
from tests.bench.rows import MODEL
from tests.bench.turns import Setup, Turns
from tests.bench.worker import Worker

BATCH = 2  # rows; the overhead does not depend on the cost of a step
PAIRS = {"peft": 30, "fake": 600}  # counted steps of each loop
TARGET = Target(0.98, 0.995)
NOTES = (
    "recipes.sl_basic with run record, journals, log and console, against a bare loop with the "
    "same port calls on prepared batches: two sessions in one process, which step in turn. The "
    "order alternates, because the first of a pair prepares matrix products of new sizes for both. "
    "A step takes from the end of the step before it to its own end.",
    "ahead=0, so that the kitchen does not work while the engine computes; no evaluation, export "
    "or save point during the steps",
)


def kitchen_run(options: Options, training: str) -> Result:
    """Compare the speed of a run with that of the bare loop, and measure its overhead per step."""
    pairs = _pairs_of_steps(options, training)
    run_seconds = [pair["kitchen"]["seconds"] for pair in pairs[DROPPED:]]
    bare = [pair["bare"]["seconds"] for pair in pairs[DROPPED:]]
    sound = all(pair["kitchen"]["loss"] == pair["bare"]["loss"] for pair in pairs)
    added = _milliseconds([ours - theirs for ours, theirs in zip(run_seconds, bare, strict=True)])
    ratio = Ratio.of(bare, run_seconds)
    reported = _reported(ratio, training)
    work = f"kitchen_run_{training}"
    record = {
        "work": work,
        "kitchen": run_seconds,
        "bare": bare,
        "speed": ratio.of_medians,
        "added_ms": Quartiles.of(added).record(),
        "sound": sound,
    }
    return Result(
        work,
        f"A kitchen run against a bare loop: {training}, batches of {BATCH}",
        ("side", "ms/step, median [quartiles]"),
        (
            ("kitchen run", Quartiles.of(_milliseconds(run_seconds)).format(3)),
            ("bare loop", Quartiles.of(_milliseconds(bare)).format(3)),
        ),
        (
            reported.note,
            f"overhead per step: {Quartiles.of(added).format(3)} ms, "
            f"mean {sum(added) / len(added):.3f} ms",
            f"agreement: the losses of all steps are {'' if sound else 'NOT '}bit-identical",
            *NOTES,
        ),
        (record,),
        sound,
        with_targets([reported]),
    )


def _pairs_of_steps(options: Options, training: str) -> list[Any]:
    """Take steps of both loops in turn; return their seconds and losses, by side."""
    setup = Setup(options.folder, options.seed, DROPPED + (options.pairs or PAIRS[training]))
    with Worker(BothLoops(setup, training), options.folder) as worker:
        worker.ready()
        return [worker.step().values for _ in range(setup.steps)]


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [1e3 * value for value in seconds]


def _reported(ratio: Ratio, training: str) -> ReportedMetric:
    """Return the relative speed; it has a target only with a real engine."""
    name, text = "speed against the bare loop", f"{ratio.of_medians:.4f}"
    text += f" (pairs {ratio.pairs.format(4)})"
    if training == "peft":
        return ReportedMetric(name, ratio.of_medians, text, TARGET)
    return ReportedMetric(name, ratio.of_medians, f"{text}, with an engine that takes no time")


class StepGate(Observer):
    """An observer that blocks a run at its start and after each step until it may continue."""

    def __init__(self) -> None:
        self.loss = 0.0  # nats per trained token, of the last step
        self._step_done, self._may_continue = Semaphore(0), Semaphore(0)

    def stage_done(self, event: StageDone) -> None:
        if isinstance(event.stage, ReportStep):
            [self.loss] = (value["loss"] for value in event.published if isinstance(value, Metrics))
            self._step_done.release()
            self._may_continue.acquire()

    def run_started(self, run: str, step: Step) -> None:
        self._may_continue.acquire()

    def let_continue(self, steps: int = 1) -> None:
        self._may_continue.release(steps)

    def step(self) -> float:
        """Let the run take one step and return its loss."""
        self.let_continue()
        self._step_done.acquire()
        return self.loss

    def run_ended(self, _: object) -> None:
        self._step_done.release()


@dataclass(frozen=True)
class BothLoops:
    """A side with both loops in one process, so that only the framework differs."""

    setup: Setup
    training: str  # "peft" or "fake"
    name: str = "kitchen and bare"

    def run(self, turns: Turns) -> None:
        configure()
        pairs = self.pairs()
        for _ in range(self.setup.steps):
            turns.wait()
            ours, bare = next(pairs)
            turns.stop()
            turns.report(kitchen=ours, bare=bare)
        next(pairs, None)  # ends the run, or raises its error

    def pairs(self) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        """Yield seconds and loss of each step, by the framework and by the bare loop."""
        bare, gate = bare_loop(self.recipe(), self.kitchen()), StepGate()
        with Path(os.devnull).open("w") as devnull, ThreadPoolExecutor(1) as pool:
            observers = (ConsoleObserver(Console(file=devnull, width=100)), gate)
            run_order = RunOrder("recipes.sl_basic:SlBasic", self.recipe().model_dump(mode="json"))
            run = pool.submit(execute, run_order, self.recipe(), self.kitchen(), "run", observers)
            run.add_done_callback(gate.run_ended)
            try:
                # the first step includes the loading, and is dropped
                for number in range(self.setup.steps):
                    pair = dict[str, dict[str, float]]()
                    for side in ("kitchen", "bare")[:: 1 if number % 2 else -1]:
                        started = perf_counter()
                        loss = next(bare) if side == "bare" else gate.step()
                        pair[side] = {"seconds": perf_counter() - started, "loss": loss}
                    if run.done():  # the run failed
                        break
                    yield pair["kitchen"], pair["bare"]
            finally:
                gate.let_continue(self.setup.steps + 1)  # the start and every step: unblock the run
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


def bare_loop(recipe: SlBasic, kitchen: Kitchen) -> Iterator[float]:
    """Train in a plain loop; yield the loss of each step in nats per trained token."""
    assert kitchen.training is not None
    assert kitchen.datasets is not None
    max_rows = recipe.rendering.rows_for_steps(recipe.max_steps, recipe.batch_size)
    rows = LoadDataset(recipe.dataset, recipe.reading, recipe.seed, max_rows).run(kitchen.datasets)[
        0
    ]
    lora = Lora(recipe.lora_rank, alpha=2.0 * recipe.lora_rank, seed=recipe.seed)
    session = kitchen.training.open(recipe.model, lora)
    data = recipe.rendering.run(rows, session.tokenizer())[0]
    [epoch] = Epochs(1, recipe.batch_size, recipe.max_steps).run(data)
    rate = make_schedule(recipe.schedule, recipe.learning_rate, recipe.warmup_steps)
    batches = list(ShuffledBatches(recipe.batch_size, recipe.seed).run(data, epoch))
    for number, batch in enumerate(batches):
        pass_future = session.forward_backward(batch.data)
        step_future = session.optim_step(Adam(rate(number / len(batches), 1 / len(batches))))
        loss = pass_future.result().metrics["loss:sum"]
        step_future.result()
        yield loss
    session.close()
