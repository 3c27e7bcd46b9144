"""Supervised fine-tuning: the local adapter and TRL's SFTTrainer on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adapters.local.hub import LocalHub
from kitchen.types import Datum
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.ceilings import Gauge
from tests.bench.contest import Contest, Goal, hold
from tests.bench.flops import Counted, Shape
from tests.bench.results import Order, Result, named
from tests.bench.same import losses_and_gradients
from tests.bench.turns import Setup, Turns

BATCH = 8  # rows
PAIRS = 5
# the fastest for TRL of 2, 4 and 8, by gradient accumulation
MICRO_BATCHES = {"A": 4, "B": 8}
GOALS = {"float32": Goal(2.2, 3.0), "bfloat16": Goal(1.8, 2.5)}
ABOUT = (
    "tokens are those that the model reads, without padding; packed: the rows of a batch in one "
    "sequence, "
    "each attending to itself"
)


def sft(order: Order, kind: str, dtype: str) -> Result:
    """Compare tokens per second of supervised fine-tuning, batch 8, on data A or B."""
    setup = order.setup(PAIRS, dtype)
    data, parts = Rows(kind), MICRO_BATCHES[kind]
    # two ways of rounding differ more on a CPU than in the products of a CUDA device
    apart = dtype != "float32" and setup.device == "cpu"
    exact = KitchenSft(order.setup(PAIRS), data, "kitchen float32") if apart else None
    return hold(
        Contest(
            f"sft_{kind.lower()}_{dtype}",
            f"SFT, data {kind}, {dtype}, batch {BATCH}",
            KitchenSft(setup, data),
            rivals(setup, data),
            losses_and_gradients(dtype),
            speed=GOALS[dtype],
            share=Goal(0.38, 0.6) if dtype == "float32" else None,
            others=(TrlSft(setup, data, f"TRL {parts} micro-batches", accumulate=parts),),
            gauge=Gauge(dtype, setup.device),
            exact=exact,
            about=(ABOUT,),
        ),
        order,
        setup.steps,
    )


def rivals(setup: Setup, data: Rows) -> tuple[TrlSft, ...]:
    """Return TRL's sides; in bfloat16 also with autocast, which is TRL's default.

    Not plain on B: its padding would need more memory than is left beside the others.
    """
    sides = (TrlSft(setup, data), TrlSft(setup, data, "TRL packed", padding_free=True))
    cast = sides if data.kind == "A" else sides[1:]
    more = (replace(side, name=f"{side.name}, autocast", autocast=True) for side in cast)
    return (*sides, *more) if setup.dtype == "bfloat16" else sides


def sft_memory(order: Order, dtype: str = "float32") -> Result:
    """Compare memory above the loaded weights: rows of 512 tokens, batch 8.

    Packed, TRL's attention is over 4,096 × 4,096 tokens: a machine with 24 GiB killed it.
    """
    setup = order.setup(1, dtype)
    data = Rows("512")
    return hold(
        Contest(
            named("sft_memory", dtype),
            f"SFT memory, rows of 512 tokens, {dtype}, batch 8",
            KitchenSft(setup, data),
            (TrlSft(setup, data),),
            losses_and_gradients(dtype),
            memory=Goal(0.5, 0.35, at_most=True),
            others=(TrlSft(setup, data, f"TRL {BATCH} micro-batches", accumulate=BATCH),),
        ),
        order,
        setup.steps,
    )


@dataclass(frozen=True)
class Rows:
    """The rows of a batch: "A", "B", or "512", which is B with rows of 512 tokens."""

    kind: str

    def batches(self, setup: Setup) -> list[Sequence[Datum]]:
        count = setup.steps * BATCH
        if self.kind == "A":
            data = rows.ingredients(setup, count)
        else:
            data = rows.log_uniform(setup, count, shortest=512 if self.kind == "512" else 64)
        return [data[start : start + BATCH] for start in range(0, count, BATCH)]


@dataclass(frozen=True)
class KitchenSft:
    """The local engine: forward_backward and optim_step."""

    setup: Setup
    rows: Rows
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        session = kitchen_side.session(kitchen_side.client(self.setup), self.setup)
        batches = [_mean(batch) for batch in self.rows.batches(self.setup)]
        shape = Shape.of(LocalHub().fetch(self.setup.model), kitchen_side.LORA.rank)
        turns.loaded()
        for batch in batches:
            turns.wait()
            loss, step = session.forward_backward(batch), session.optim_step(kitchen_side.ADAM)
            grad_norm = step.result().metrics["grad_norm"]
            turns.stop()
            turns.tell(
                loss=loss.result().metrics["loss:sum"], grad_norm=grad_norm, **_needed(batch, shape)
            )


@dataclass(frozen=True)
class TrlSft:
    """TRL's trainer: one step of its own loop."""

    setup: Setup
    rows: Rows
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch
    # the rows of a micro-batch in one sequence, each attending to itself
    padding_free: bool = False
    autocast: bool = False  # to bfloat16

    def run(self, turns: Turns) -> None:
        import trl
        from datasets import Dataset

        model = trl_side.base_model(self.setup)
        batches = self.rows.batches(self.setup)
        data = [datum for batch in batches for datum in batch]
        library: Any = trl
        args = library.SFTConfig(
            **{**trl_side.settings(self.setup, BATCH, self.accumulate), "bf16": self.autocast},
            padding_free=self.padding_free,
            max_length=None,
            packing=False,
        )
        trainer = library.SFTTrainer(
            model,
            args,
            train_dataset=Dataset.from_list([_labelled(datum) for datum in data]),
            processing_class=trl_side.fast_tokenizer(self.setup),
            peft_config=trl_side.lora_config(self.setup),
        )
        trl_side.train(trainer, self.setup, turns)


def _needed(batch: Sequence[Datum], shape: Shape) -> dict[str, float]:
    read, scored = (
        [datum.tokens for datum in batch],
        [datum.loss_inputs["weights"] != 0 for datum in batch],
    )
    plain = Counted.plain(read, scored)
    return {
        "tokens": plain.tokens,
        "flops": plain.training(shape),
        "flops_shared": Counted.shared(read, scored).training(shape),
    }


def _mean(batch: Sequence[Datum]) -> list[Datum]:
    """Return weights that turn the sum over the batch into a mean over its trained tokens."""
    total = sum(float(datum.loss_inputs["weights"].sum()) for datum in batch)
    return [
        replace(
            datum,
            loss_inputs={**datum.loss_inputs, "weights": datum.loss_inputs["weights"] / total},
        )
        for datum in batch
    ]


def _labelled(datum: Datum) -> dict[str, list[int]]:
    targets = np.where(datum.loss_inputs["weights"] != 0, datum.targets, -100)
    return {
        "input_ids": [*datum.tokens.tolist(), int(datum.targets[-1])],
        "labels": [-100, *targets.tolist()],
    }
