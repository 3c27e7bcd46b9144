"""DPO with 4 pairs per step, including the reference pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.local.hub import LocalHub
from kitchen.ports.sampling import Sampler
from kitchen.types import Datum
from stages.preference.comparisons import as_batch
from stages.preference.dpo_losses import PairLoss
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.agreement import losses_and_gradients
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.ceilings import Gauge
from tests.bench.flops import Shape, TokenCounts
from tests.bench.outcome import Target
from tests.bench.results import Options, Result, name_for
from tests.bench.rows import Pair
from tests.bench.turns import Setup, Turns

BATCH, PAIRS, DEFAULT_LOSS = 4, 5, PairLoss(beta=0.1)


def dpo(options: Options, dtype: str = "float32", loss: PairLoss = DEFAULT_LOSS) -> Result:
    """Compare time and memory of a DPO step: prompts of 256, answers of 64 tokens."""
    setup = options.setup(PAIRS, dtype)
    return run_benchmark(
        Benchmark(
            name_for("dpo", dtype),
            f"DPO, {BATCH} pairs, prompt 256 + 2 × 64 tokens, {dtype}",
            KitchenDpo(setup, loss),
            (TrlDpo(setup, loss),),
            losses_and_gradients(dtype),
            Target(2.5, 4.0),
            Target(0.3, 0.2, at_most=True),
            others=(TrlDpo(setup, loss, f"TRL {BATCH} micro-batches", BATCH),),
            gauge=Gauge(dtype, setup.device),
            notes=(
                "tokens: those of 8 sequences; useful GFLOP/s: every sequence separately / the "
                "prompt of a pair counted once, both with the reference pass",
            ),
        ),
        options,
        setup.steps,
    )


@dataclass(frozen=True)
class KitchenDpo:
    """The local engine: score 8 sequences with the base model, forward_backward, optim_step."""

    setup: Setup
    loss: PairLoss
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        training = kitchen_side.client(self.setup)
        session, reference = (
            kitchen_side.session(training, self.setup),
            training.sampler(self.setup.model),
        )
        batches = _batches(self.setup)
        shape = Shape.of(LocalHub().fetch(self.setup.model), kitchen_side.LORA.rank)
        reference.logprobs(batches[0][0].prompt).result()  # loads the model
        turns.loaded()
        for batch in batches:
            turns.wait()
            data = _with_reference(batch, reference)
            loss = session.forward_backward(data, self.loss)
            grad_norm = session.optim_step(kitchen_side.ADAM).result().metrics["grad_norm"]
            turns.stop()
            turns.report(
                loss=loss.result().metrics["loss:sum"],
                grad_norm=grad_norm,
                **_count_flops(data, shape),
            )


@dataclass(frozen=True)
class TrlDpo:
    """TRL's trainer; the reference is the model with its LoRA switched off."""

    setup: Setup
    loss: PairLoss
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch

    def run(self, turns: Turns) -> None:
        import trl
        from datasets import Dataset

        model = trl_side.base_model(self.setup)
        text = Dataset.from_list([{"prompt": "a", "chosen": " b", "rejected": " c"}])
        library: Any = trl
        args = library.DPOConfig(
            **trl_side.settings(self.setup, BATCH, self.accumulate),
            beta=self.loss.scale,
            max_length=None,
            loss_type=[self.loss.kind],
        )
        trainer = library.DPOTrainer(
            model,
            args=args,
            train_dataset=text,
            processing_class=trl_side.fast_tokenizer(self.setup),
            peft_config=trl_side.lora_config(self.setup),
        )
        # TRL accepts only text, which it would encode as other tokens
        trainer.train_dataset = Dataset.from_list(
            [_to_trl_row(pair) for batch in _batches(self.setup) for pair in batch]
        )
        trl_side.train(trainer, self.setup, turns)


def _batches(setup: Setup) -> list[Sequence[Pair]]:
    data = rows.pairs(setup, setup.steps * BATCH)
    return [data[start : start + BATCH] for start in range(0, len(data), BATCH)]


def _with_reference(batch: Sequence[Pair], reference: Sampler) -> Sequence[Datum]:
    """Create the datums of a batch, with the log-probabilities of the reference model."""
    sequences = [
        np.concatenate([pair.prompt, answer])
        for pair in batch
        for answer in (pair.chosen, pair.rejected)
    ]
    scores = [reference.logprobs(tokens) for tokens in sequences]
    data = [
        rows.datum(tokens, len(batch[0].prompt), reference=np.asarray(score.result()[1:]))
        for tokens, score in zip(sequences, scores, strict=True)
    ]
    return as_batch(list(zip(data[::2], data[1::2], strict=True)))


def _to_trl_row(pair: Pair) -> dict[str, Any]:
    return {
        "prompt_ids": pair.prompt.tolist(),
        "chosen_ids": pair.chosen.tolist(),
        "rejected_ids": pair.rejected.tolist(),
    }


def _count_flops(data: Sequence[Datum], shape: Shape) -> dict[str, float]:
    """Count tokens and FLOPs; the reference scores the positions that the loss reads."""
    tokens = [datum.tokens for datum in data]
    scored = [datum.loss_inputs["weights"] != 0 for datum in data]
    plain, shared = TokenCounts.plain(tokens, scored), TokenCounts.shared(tokens, scored)
    return {
        "tokens": plain.tokens,
        "flops": plain.training(shape) + plain.forward(shape),
        "flops_shared": shared.training(shape) + shared.forward(shape),
    }
