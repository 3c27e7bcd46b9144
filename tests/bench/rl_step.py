"""A whole RL step: snapshot, rollouts, rewards, update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from kitchen.ports import Message
from kitchen.ports.environments import StepResult
from stages.rl.policy_gradient import ComputeAdvantages, mean_of
from stages.rl.rollouts import RolloutConfig, RolloutRunner, Rollouts
from tests.bench import kitchen_side, rows, trl_side
from tests.bench.contest import Contest, Same, hold
from tests.bench.results import Order, Result, named
from tests.bench.rl import GROUPS, MEMORY, SIZE, SPEED, grpo, recorded
from tests.bench.turns import Setup, Turns, Values

LENGTH, PAIRS = 64, 3  # tokens of a completion
DRAWN = 1.0  # nats between two sets of 16 completions; 0.7 was measured


def rl_step(order: Order, dtype: str = "float32") -> Result:
    """Compare time and memory of a step with sampling: prompts of 256, completions of 64 tokens."""
    setup = order.setup(PAIRS, dtype)
    return hold(
        Contest(
            named("rl_step", dtype),
            f"RL step, {GROUPS} prompts × {SIZE} completions, 256 + 64 tokens, {dtype}",
            KitchenStep(setup),
            (TrlStep(setup),),
            (Same("prompts", 0.0), Same("lengths", 0.0), Same("logprob", DRAWN)),
            SPEED,
            MEMORY,
            others=(TrlStep(setup, f"TRL {GROUPS * SIZE} micro-batches", GROUPS * SIZE),),
            about=(
                "each side draws for itself, at temperature 1, so texts and rewards differ; "
                "compared are the tokens of the "
                "prompts, how many were written after each, and roughly their mean "
                "log-probability; the work rl compares "
                "updates on the same completions, the works of sampling greedy texts",
                "every completion has 64 tokens: TRL by its settings, ours has a tokenizer in "
                "which none ends an answer",
                "tokens are those of 16 sequences, prompts included; generation: seconds until all "
                "texts are there, ours "
                "with the copy of the weights",
            ),
            part="generation",
        ),
        order,
        setup.steps,
    )


@dataclass(frozen=True)
class KitchenStep:
    """The local engine: the loop body of recipes/rl.py, from the snapshot to the optimiser step."""

    setup: Setup
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        setup = kitchen_side.endless(self.setup)
        session, batches = (
            kitchen_side.session(kitchen_side.client(setup), setup),
            _batches(self.setup),
        )
        tokenizer = session.tokenizer()
        turns.loaded()
        for number, texts in enumerate(batches):
            turns.wait()
            started = perf_counter()
            sampler = session.snapshot().result()
            player = RolloutRunner(sampler, tokenizer, RolloutConfig(max_tokens=LENGTH))
            rollouts = asyncio.run(
                player.run(list(map(FixedPrompt, texts)), SIZE, [setup.seed, number])
            )
            generated = perf_counter() - started
            data = mean_of(ComputeAdvantages().run(rollouts).examples).data
            session.forward_backward(data, "importance_sampling")
            session.optim_step(kitchen_side.ADAM).result()
            sampler.close()
            turns.stop()
            turns.tell(**_reported_values(rollouts), generation=generated)


@dataclass(frozen=True)
class TrlStep:
    """TRL's trainer, with generate() of transformers inside."""

    setup: Setup
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch

    def run(self, turns: Turns) -> None:
        import torch  # noqa: F401 before ours, which tells its threads not to spin while they wait

        prompts = [rows.asked(text) for batch in _batches(self.setup) for text in batch]
        trainer = grpo(
            self.setup,
            turns,
            prompts,
            LENGTH,
            _rewarded,
            self.accumulate,
            use_vllm=False,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            generation_kwargs={"min_new_tokens": LENGTH},
        )
        scored, written = recorded(trainer), _watched(trainer)
        trl_side.train(trainer, self.setup, turns, lambda: {**scored(), **written()})


@dataclass(frozen=True)
class FixedPrompt:
    """A task with its environment: one fixed message, and a reward for any answer."""

    text: str
    tag: str = "bench"

    def env(self) -> FixedPrompt:
        return self

    async def reset(self) -> Sequence[Message]:
        return rows.asked(self.text)

    async def step(self, answer: str) -> StepResult:
        return StepResult(worth(answer))


def worth(answer: str) -> float:
    """Return the number of different characters."""
    return float(len(set(answer)))


def _rewarded(completions: Sequence[Sequence[Message]], **kwargs: Any) -> list[float]:
    return [worth(messages[-1]["content"]) for messages in completions]


def _batches(setup: Setup) -> list[Sequence[str]]:
    texts = rows.questions(setup, setup.steps * GROUPS)
    return [texts[start : start + GROUPS] for start in range(0, len(texts), GROUPS)]


def _reported_values(rollouts: Rollouts) -> dict[str, Any]:
    episodes = [rollout.episodes[0] for rollout in rollouts.all()]
    return {
        "prompts": [one.tokens[~one.action_mask].tolist() for one in episodes],
        "lengths": [[int(one.action_mask.sum()) for one in episodes]],
        "logprob": float(
            np.concatenate([one.logprobs[one.action_mask] for one in episodes]).mean()
        ),
        "tokens": sum(len(one.tokens) for one in episodes),
    }


def _watched(trainer: Any) -> Callable[[], Values]:
    """Record what the trainer read and wrote in the last step, in the order of the batch."""
    seen: dict[str, Any] = {}
    generate = trainer._generate_single_turn

    def watching(prompts: Any, *args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        found = generate(prompts, *args, **kwargs)
        seen.update(generation=perf_counter() - started)
        seen.update(
            prompts=[list(map(int, ids)) for ids in prompts], lengths=[list(map(len, found[0]))]
        )
        return found

    trainer._generate_single_turn = watching
    return lambda: dict(seen)
