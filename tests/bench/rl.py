"""The RL update on given completions: 2 groups of 8."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adapters.local.hub import LocalHub
from kitchen.types import Datum
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.ceilings import Gauge
from tests.bench.contest import Contest, Goal, Same, hold
from tests.bench.flops import Counted, Shape
from tests.bench.results import Order, Result, named
from tests.bench.rows import Group
from tests.bench.same import losses_and_gradients
from tests.bench.turns import Setup, Turns, Values

GROUPS, SIZE, PAIRS = 2, 8, 3  # groups of a step, completions of a group
SPEED, MEMORY = Goal(3.0, 6.0), Goal(0.2, 0.12, at_most=True)


def rl(order: Order, dtype: str = "float32") -> Result:
    """Compare time and memory of an update: prompts of 256, completions of 64 tokens."""
    setup = order.setup(PAIRS, dtype)
    return hold(
        Contest(
            named("rl", dtype),
            f"RL update, {GROUPS} groups of {SIZE}, 256 + 64 tokens, {dtype}",
            KitchenRl(setup),
            (TrlGrpo(setup),),
            (*losses_and_gradients(dtype), Same("logprob", 1e-3 if dtype == "float32" else 3e-2)),
            SPEED,
            MEMORY,
            others=(TrlGrpo(setup, f"TRL {GROUPS * SIZE} micro-batches", GROUPS * SIZE),),
            gauge=Gauge(dtype, setup.device),
            about=(
                "the loss of a fresh batch is 0, for the advantages of a group add up to that; the "
                "gradient and the mean "
                "log-probability of the completions tell more",
                "tokens are those of 16 sequences; GFLOP/s needed: each for itself / the prompt of "
                "a group once",
            ),
        ),
        order,
        setup.steps,
    )


@dataclass(frozen=True)
class KitchenRl:
    """The local engine: forward_backward with importance_sampling, and optim_step.

    Before the clock starts, the completions get the log-probabilities that a sampler would have
    reported.
    """

    setup: Setup
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        session = kitchen_side.session(kitchen_side.client(self.setup), self.setup)
        shape = Shape.of(LocalHub().fetch(self.setup.model), kitchen_side.LORA.rank)
        turns.loaded()
        for batch in _batches(self.setup):
            data = [datum for group in batch for datum in _data(group)]
            found = session.forward(data, "importance_sampling").result().logprobs
            drawn = [
                replace(
                    datum,
                    loss_inputs={
                        **datum.loss_inputs,
                        "logprobs": np.where(datum.loss_inputs["advantages"] != 0, lp, 0),
                    },
                )
                for datum, lp in zip(data, found, strict=True)
            ]
            turns.wait()
            loss, step = (
                session.forward_backward(drawn, "importance_sampling"),
                session.optim_step(kitchen_side.ADAM),
            )
            grad_norm = step.result().metrics["grad_norm"]
            turns.stop()
            output = loss.result()
            on = [datum.loss_inputs["advantages"] != 0 for datum in data]
            logprobs = [lp[mask] for lp, mask in zip(output.logprobs, on, strict=True)]
            turns.tell(
                loss=output.metrics["loss:sum"],
                grad_norm=grad_norm,
                logprob=float(np.concatenate(logprobs).mean()),
                **_needed(data, shape),
            )


@dataclass(frozen=True)
class TrlGrpo:
    """TRL's trainer, with its rollout replaced by the given completions."""

    setup: Setup
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch

    def run(self, turns: Turns) -> None:
        import torch  # noqa: F401 before ours, which tells its threads not to spin while they wait

        groups = [group for batch in _batches(self.setup) for group in batch]
        trainer = grpo(
            self.setup,
            turns,
            list(map(str, range(len(groups)))),
            len(groups[0].completions[0]),
            _given,
            self.accumulate,
            rollout=_Rollout(groups),
        )
        trl_side.train(trainer, self.setup, turns, recorded(trainer))


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
    """Create TRL's trainer: one update per batch, no reference, our advantages, a token mean."""
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


def recorded(trainer: Any) -> Callable[[], Values]:
    """Return the mean log-probability of the last step's completions, as the trainer scores it."""
    seen: list[float] = []
    scored = trainer._get_per_token_logps_and_entropies

    def recording(*args: Any, **kwargs: Any) -> Any:
        found = scored(*args, **kwargs)
        seen.append(float(found[0].detach().mean()))
        return found

    def reported() -> Values:
        means, seen[:] = list(seen), []
        return {"logprob": float(np.mean(means))}

    trainer._get_per_token_logps_and_entropies = recording
    return reported


@dataclass(frozen=True)
class _Rollout:
    """A rollout that looks completions up; prompts are group numbers, one for each completion."""

    groups: Sequence[Group]

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        asked = [(self.groups[int(prompt)], at % SIZE) for at, prompt in enumerate(prompts)]
        ids = [group.completions[at].tolist() for group, at in asked]
        return {
            "prompt_ids": [group.prompt.tolist() for group, _ in asked],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(one) for one in ids],  # read for vLLM alone
            "worth": [group.rewards[at] for group, at in asked],
        }


def _given(completions: Sequence[str], worth: Sequence[float], **kwargs: Any) -> list[float]:
    return list(worth)


def _batches(setup: Setup) -> list[Sequence[Group]]:
    data = rows.groups(setup, setup.steps * GROUPS, SIZE)
    return [data[start : start + GROUPS] for start in range(0, len(data), GROUPS)]


def _data(group: Group) -> list[Datum]:
    """Create datums with advantages relative to the group mean, over all tokens of the step."""
    found = []
    for completion, reward in zip(group.completions, group.rewards, strict=True):
        row = np.concatenate([group.prompt, completion])
        advantage = (reward - float(np.mean(group.rewards))) / (GROUPS * SIZE * len(completion))
        on = np.arange(1, len(row)) >= len(group.prompt)
        found.append(
            Datum(
                row[:-1],
                {
                    "target_tokens": row[1:],
                    "logprobs": np.zeros(len(on), np.float32),
                    "advantages": np.where(on, advantage, 0.0).astype(np.float32),
                },
            )
        )
    return found


def _needed(data: Sequence[Datum], shape: Shape) -> dict[str, float]:
    read, scored = (
        [datum.tokens for datum in data],
        [datum.loss_inputs["advantages"] != 0 for datum in data],
    )
    plain = Counted.plain(read, scored)
    return {
        "tokens": plain.tokens,
        "flops": plain.training(shape),
        "flops_shared": Counted.shared(read, scored).training(shape),
    }
