"""Supervised fine-tuning: the local adapter and TRL's SFTTrainer on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adapters.local.hub import LocalHub
from kitchen.types import Datum
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.agreement import losses_and_gradients
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.ceilings import Gauge
from tests.bench.flops import Shape, TokenCounts
from tests.bench.outcome import Target
from tests.bench.results import Options, Result, name_for
from tests.bench.turns import Setup, Turns

BATCH = 8  # rows
PAIRS = 5
# gradient accumulation steps: TRL's fastest of 2, 4 and 8
MICRO_BATCHES = {"A": 4, "B": 8}
TARGETS = {"float32": Target(2.2, 3.0), "bfloat16": Target(1.8, 2.5)}
NOTE = (
    "tokens: without padding; packed: the rows of a batch in one sequence, each row attending only "
    "to itself"
)


def sft(options: Options, kind: str, dtype: str) -> Result:
    """Compare tokens per second of supervised fine-tuning, batch 8, on data A or B."""
    setup = options.setup(PAIRS, dtype)
    data, micro_batches = Rows(kind), MICRO_BATCHES[kind]
    # roundings of two implementations differ more on a CPU than on a CUDA device
    needs_exact = dtype != "float32" and setup.device == "cpu"
    exact = KitchenSft(options.setup(PAIRS), data, "kitchen float32") if needs_exact else None
    return run_benchmark(
        Benchmark(
            f"sft_{kind.lower()}_{dtype}",
            f"SFT, data {kind}, {dtype}, batch {BATCH}",
            KitchenSft(setup, data),
            rivals(setup, data),
            losses_and_gradients(dtype),
            speed=TARGETS[dtype],
            share=Target(0.38, 0.6) if dtype == "float32" else None,
            others=(
                TrlSft(setup, data, f"TRL {micro_batches} micro-batches", accumulate=micro_batches),
            ),
            gauge=Gauge(dtype, setup.device),
            exact=exact,
            notes=(NOTE,),
        ),
        options,
        setup.steps,
    )


def rivals(setup: Setup, data: Rows) -> tuple[TrlSft, ...]:
    """Return TRL's sides; in bfloat16 also with autocast, which is TRL's default.

    Plain with autocast is left out on B, as its padding would need more memory than is available.
    """
    sides = (TrlSft(setup, data), TrlSft(setup, data, "TRL packed", padding_free=True))
    cast_sides = sides if data.kind == "A" else sides[1:]
    autocast = (replace(side, name=f"{side.name}, autocast", autocast=True) for side in cast_sides)
    return (*sides, *autocast) if setup.dtype == "bfloat16" else sides


def sft_memory(options: Options, dtype: str = "float32") -> Result:
    """Compare memory above the loaded weights: rows of 512 tokens, batch 8.

    TRL packed is left out: its attention over 4,096 × 4,096 tokens does not fit in 24 GiB.
    """
    setup = options.setup(1, dtype)
    data = Rows("512")
    return run_benchmark(
        Benchmark(
            name_for("sft_memory", dtype),
            f"SFT memory, rows of 512 tokens, {dtype}, batch 8",
            KitchenSft(setup, data),
            (TrlSft(setup, data),),
            losses_and_gradients(dtype),
            memory=Target(0.5, 0.35, at_most=True),
            others=(TrlSft(setup, data, f"TRL {BATCH} micro-batches", accumulate=BATCH),),
        ),
        options,
        setup.steps,
    )


@dataclass(frozen=True)
class Rows:
    """The data of a benchmark: "A", "B", or "512", which is B with rows of 512 tokens."""

    kind: str

    def batches(self, setup: Setup) -> list[Sequence[Datum]]:
        count = setup.steps * BATCH
        if self.kind == "A":
            data = rows.ingredients(setup, count)
        else:
            data = rows.log_uniform(setup, count, shortest=512 if self.kind == "512" else 64)
        return [data[start : start + BATCH] for start in range(0, count, BATCH)]

    def trl_rows(self, setup: Setup) -> list[dict[str, list[int]]]:
        return [_to_trl_row(datum) for batch in self.batches(setup) for datum in batch]

    @property
    def trl_batch(self) -> int:
        return BATCH


@dataclass(frozen=True)
class Packs:
    """Rows that fill packs of `size` tokens exactly, as an ideal packing would; TRL gets packs."""

    count: int = 4  # packs of a step
    size: int = 4096
    shortest: int = 256
    longest: int = 4096

    def batches(self, setup: Setup) -> list[Sequence[Datum]]:
        return [[datum for pack in packs for datum in pack] for packs in self._packs(setup)]

    def trl_rows(self, setup: Setup) -> list[dict[str, list[int]]]:
        return [_to_trl_pack(pack) for packs in self._packs(setup) for pack in packs]

    @property
    def trl_batch(self) -> int:
        return self.count

    def _packs(self, setup: Setup) -> list[Sequence[Sequence[Datum]]]:
        number = setup.steps * self.count
        packs = rows.packs(setup, number, self.size, self.shortest, self.longest)
        return [packs[start : start + self.count] for start in range(0, number, self.count)]


@dataclass(frozen=True)
class KitchenSft:
    """The local engine: forward_backward and optim_step."""

    setup: Setup
    rows: Rows | Packs
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        session = kitchen_side.session(kitchen_side.client(self.setup), self.setup)
        batches = [_with_mean_weights(batch) for batch in self.rows.batches(self.setup)]
        shape = Shape.of(LocalHub().fetch(self.setup.model), kitchen_side.LORA.rank)
        turns.loaded()
        for batch in batches:
            turns.wait()
            loss, step = session.forward_backward(batch), session.optim_step(kitchen_side.ADAM)
            grad_norm = step.result().metrics["grad_norm"]
            turns.stop()
            turns.report(
                loss=loss.result().metrics["loss:sum"],
                grad_norm=grad_norm,
                **_count_flops(batch, shape, full=self.setup.full),
            )


@dataclass(frozen=True)
class TrlSft:
    """TRL's trainer: one step of its own loop."""

    setup: Setup
    rows: Rows | Packs
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch
    # the rows of a micro-batch in one sequence, each attending only to itself
    padding_free: bool = False
    autocast: bool = False  # run the forward pass in bfloat16
    liger: bool = False  # fused norms, RoPE and SwiGLU of liger-kernel

    def run(self, turns: Turns) -> None:
        import trl
        from datasets import Dataset

        model = trl_side.base_model(self.setup)
        library: Any = trl
        settings = trl_side.settings(self.setup, self.rows.trl_batch, self.accumulate)
        args = library.SFTConfig(
            **{**settings, "bf16": self.autocast},
            use_liger_kernel=self.liger,
            padding_free=self.padding_free,
            max_length=None,
            packing=False,
        )
        trainer = library.SFTTrainer(
            model,
            args,
            train_dataset=Dataset.from_list(self.rows.trl_rows(self.setup)),
            processing_class=trl_side.fast_tokenizer(self.setup),
            peft_config=trl_side.lora_config(self.setup),
        )
        trl_side.train(trainer, self.setup, turns)


def _count_flops(batch: Sequence[Datum], shape: Shape, *, full: bool) -> dict[str, float]:
    tokens = [datum.tokens for datum in batch]
    scored = [datum.loss_inputs["weights"] != 0 for datum in batch]
    plain = TokenCounts.plain(tokens, scored)
    return {
        "tokens": plain.tokens,
        "flops": plain.training(shape, full=full),
        "flops_shared": TokenCounts.shared(tokens, scored).training(shape, full=full),
    }


def _with_mean_weights(batch: Sequence[Datum]) -> list[Datum]:
    """Scale the weights so that the summed loss is the mean over the trained tokens."""
    total = sum(float(datum.loss_inputs["weights"].sum()) for datum in batch)
    return [
        replace(
            datum,
            loss_inputs={**datum.loss_inputs, "weights": datum.loss_inputs["weights"] / total},
        )
        for datum in batch
    ]


def _to_trl_pack(pack: Sequence[Datum]) -> dict[str, list[int]]:
    """Concatenate rows as TRL's packing does, which also records their lengths."""
    rows = [_to_trl_row(datum) for datum in pack]
    joined = {key: [token for row in rows for token in row[key]] for key in rows[0]}
    return {**joined, "seq_lengths": [len(row["input_ids"]) for row in rows]}


def _to_trl_row(datum: Datum) -> dict[str, list[int]]:
    targets = np.where(datum.loss_inputs["weights"] != 0, datum.targets, -100)
    return {
        "input_ids": [*datum.tokens.tolist(), int(datum.targets[-1])],
        "labels": [-100, *targets.tolist()],
    }
