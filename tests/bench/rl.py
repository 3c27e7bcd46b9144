"""An RL update on given completions: 2 groups of 8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adapters.local.hub import LocalHub
from kitchen.types import Datum
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.agreement import AgreementCheck, losses_and_gradients
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.ceilings import Gauge
from tests.bench.flops import Shape, TokenCounts
from tests.bench.outcome import Target
from tests.bench.results import Options, Result, name_for
from tests.bench.rows import Group
from tests.bench.turns import Setup, Turns, Values

GROUPS, SIZE, PAIRS = 2, 8, 3  # groups per step, completions per group, counted steps
SPEED, MEMORY = Target(3.0, 6.0), Target(0.2, 0.12, at_most=True)


def rl(options: Options, dtype: str = "float32") -> Result:
    """Compare time and memory of an update: prompts of 256, completions of 64 tokens."""
    setup = options.setup(PAIRS, dtype)
    return run_benchmark(
        Benchmark(
            name_for("rl", dtype),
            f"RL update, {GROUPS} groups of {SIZE}, 256 + 64 tokens, {dtype}",
            KitchenRl(setup),
            (TrlGrpo(setup),),
            (
                *losses_and_gradients(dtype),
                AgreementCheck("logprob", 1e-3 if dtype == "float32" else 3e-2),
            ),
            SPEED,
            MEMORY,
            others=(TrlGrpo(setup, f"TRL {GROUPS * SIZE} micro-batches", GROUPS * SIZE),),
            gauge=Gauge(dtype, setup.device),
            notes=(
                "the loss is 0, because the advantages of a group sum to 0; the gradient and the "
                "mean log-probability of the completions are compared too",
                "tokens: those of 16 sequences; useful GFLOP/s: every sequence separately / the "
                "prompt of a group counted once",
            ),
        ),
        options,
        setup.steps,
    )


@dataclass(frozen=True)
class KitchenRl:
    """The local engine: forward_backward with importance_sampling, and optim_step.

    Before the measurement, the log-probabilities of the completions are computed as a sampler
    would have reported them.
    """

    setup: Setup
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        session = kitchen_side.session(kitchen_side.client(self.setup), self.setup)
        shape = Shape.of(LocalHub().fetch(self.setup.model), kitchen_side.LORA.rank)
        turns.loaded()
        for batch in _batches(self.setup):
            data = [datum for group in batch for datum in _data(group)]
            logprobs = session.forward(data, "importance_sampling").result().logprobs
            sampled = [
                replace(
                    datum,
                    loss_inputs={
                        **datum.loss_inputs,
                        "logprobs": np.where(datum.loss_inputs["advantages"] != 0, lp, 0),
                    },
                )
                for datum, lp in zip(data, logprobs, strict=True)
            ]
            turns.wait()
            loss, step = (
                session.forward_backward(sampled, "importance_sampling"),
                session.optim_step(kitchen_side.ADAM),
            )
            grad_norm = step.result().metrics["grad_norm"]
            turns.stop()
            output = loss.result()
            masks = [datum.loss_inputs["advantages"] != 0 for datum in data]
            logprobs = [lp[mask] for lp, mask in zip(output.logprobs, masks, strict=True)]
            turns.report(
                loss=output.metrics["loss:sum"],
                grad_norm=grad_norm,
                logprob=float(np.concatenate(logprobs).mean()),
                **_count_flops(data, shape),
            )


@dataclass(frozen=True)
class TrlGrpo:
    """TRL's trainer, with its rollout replaced by the given completions."""

    setup: Setup
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch

    def run(self, turns: Turns) -> None:
        import torch  # noqa: F401 before our engine, which sets OMP_WAIT_POLICY

        groups = [group for batch in _batches(self.setup) for group in batch]
        trainer = grpo(
            self.setup,
            turns,
            list(map(str, range(len(groups)))),
            len(groups[0].completions[0]),
            _given_rewards,
            self.accumulate,
            rollout=_Rollout(groups),
        )
        trl_side.train(trainer, self.setup, turns, record_logprobs(trainer))


def grpo(
    setup: Setup,
    turns: Turns,
    prompts: Sequence[Any],
    length: int,
    rewards: Callable[..., list[float]],
    accumulate: int,
    *,
    rollout: Any = None,
    **options: Any,
) -> Any:
    """Create TRL's trainer.

    One update per batch, no reference model, unscaled advantages, and a mean over tokens.
    """
    import trl
    from datasets import Dataset

    model = trl_side.base_model(setup)
    library: Any = trl
    args = library.GRPOConfig(
        **trl_side.settings(setup, GROUPS * SIZE, accumulate),
        num_generations=SIZE,
        max_completion_length=length,
        beta=0.0,
        num_iterations=1,
        scale_rewards="none",
        loss_type="dapo",
        shuffle_dataset=False,
        log_completions=False,
        **options,
    )
    return library.GRPOTrainer(
        model,
        args=args,
        reward_funcs=rewards,
        rollout_func=rollout,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=trl_side.fast_tokenizer(setup),
        peft_config=trl_side.lora_config(setup),
    )


def record_logprobs(trainer: Any) -> Callable[[], Values]:
    """Record the mean log-probability that the trainer computes for the completions of a step."""
    means: list[float] = []
    compute = trainer._get_per_token_logps_and_entropies

    def recording(*args: Any, **kwargs: Any) -> Any:
        scores = compute(*args, **kwargs)
        means.append(float(scores[0].detach().mean()))
        return scores

    def reported() -> Values:
        mean = float(np.mean(means))
        means.clear()
        return {"logprob": mean}

    trainer._get_per_token_logps_and_entropies = recording
    return reported


@dataclass(frozen=True)
class _Rollout:
    """A rollout function that returns given completions; a prompt is the number of its group."""

    groups: Sequence[Group]

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        samples = [(self.groups[int(prompt)], i % SIZE) for i, prompt in enumerate(prompts)]
        ids = [group.completions[i].tolist() for group, i in samples]
        return {
            "prompt_ids": [group.prompt.tolist() for group, _ in samples],
            "completion_ids": ids,
            "logprobs": [
                [0.0] * len(completion) for completion in ids
            ],  # TRL reads them only with vLLM
            "given_rewards": [group.rewards[i] for group, i in samples],
        }


def _given_rewards(
    completions: Sequence[str], given_rewards: Sequence[float], **kwargs: Any
) -> list[float]:
    return list(given_rewards)


def _batches(setup: Setup) -> list[Sequence[Group]]:
    data = rows.groups(setup, setup.steps * GROUPS, SIZE)
    return [data[start : start + GROUPS] for start in range(0, len(data), GROUPS)]


def _data(group: Group) -> list[Datum]:
    """Create datums with advantages relative to the group mean, divided by the step's tokens."""
    data = []
    for completion, reward in zip(group.completions, group.rewards, strict=True):
        row = np.concatenate([group.prompt, completion])
        advantage = (reward - float(np.mean(group.rewards))) / (GROUPS * SIZE * len(completion))
        mask = np.arange(1, len(row)) >= len(group.prompt)
        data.append(
            Datum(
                row[:-1],
                {
                    "target_tokens": row[1:],
                    "logprobs": np.zeros(len(mask), np.float32),
                    "advantages": np.where(mask, advantage, 0.0).astype(np.float32),
                },
            )
        )
    return data


def _count_flops(data: Sequence[Datum], shape: Shape) -> dict[str, float]:
    tokens = [datum.tokens for datum in data]
    scored = [datum.loss_inputs["advantages"] != 0 for datum in data]
    plain = TokenCounts.plain(tokens, scored)
    return {
        "tokens": plain.tokens,
        "flops": plain.training(shape),
        "flops_shared": TokenCounts.shared(tokens, scored).training(shape),
    }
