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
from tests.bench.agreement import AgreementCheck
from tests.bench.benchmark import Benchmark, run_benchmark
from tests.bench.results import Options, Result, name_for
from tests.bench.rl import GROUPS, MEMORY, SIZE, SPEED, grpo, record_logprobs
from tests.bench.turns import Setup, Turns, Values

LENGTH, PAIRS = 64, 3  # tokens of a completion, counted steps
LOGPROB_TOLERANCE = 1.0  # nats, between two different sets of 16 completions; 0.7 was measured


def rl_step(options: Options, dtype: str = "float32") -> Result:
    """Compare time and memory of a step with sampling: prompts of 256, completions of 64 tokens."""
    setup = options.setup(PAIRS, dtype)
    return run_benchmark(
        Benchmark(
            name_for("rl_step", dtype),
            f"RL step, {GROUPS} prompts × {SIZE} completions, 256 + 64 tokens, {dtype}",
            KitchenStep(setup),
            (TrlStep(setup),),
            (
                AgreementCheck("prompts", 0.0),
                AgreementCheck("lengths", 0.0),
                AgreementCheck("logprob", LOGPROB_TOLERANCE),
            ),
            SPEED,
            MEMORY,
            others=(TrlStep(setup, f"TRL {GROUPS * SIZE} micro-batches", GROUPS * SIZE),),
            notes=(
                "each side samples its own completions at temperature 1, so texts and rewards "
                "differ. The prompt tokens and the lengths of completions must be equal, and "
                "their mean log-probabilities similar. The benchmark rl compares updates on the "
                "same completions, and the sampling benchmarks compare greedy completions.",
                "every completion has 64 tokens: TRL sets min_new_tokens, and our tokenizer has no "
                "end token",
                "tokens: those of 16 sequences, with prompts; generation: seconds until all "
                "completions are sampled, in ours with the snapshot of the weights",
            ),
            part="generation",
        ),
        options,
        setup.steps,
    )


@dataclass(frozen=True)
class KitchenStep:
    """The local engine: the loop body of recipes/rl.py, from the snapshot to the optimiser step."""

    setup: Setup
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        setup = kitchen_side.without_end_tokens(self.setup)
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
            runner = RolloutRunner(sampler, tokenizer, RolloutConfig(max_tokens=LENGTH))
            rollouts = asyncio.run(
                runner.run(list(map(FixedPrompt, texts)), SIZE, [setup.seed, number])
            )
            generated = perf_counter() - started
            data = mean_of(ComputeAdvantages().run(rollouts).examples).data
            session.forward_backward(data, "importance_sampling")
            session.optim_step(kitchen_side.ADAM).result()
            sampler.close()
            turns.stop()
            turns.report(**_reported_values(rollouts), generation=generated)


@dataclass(frozen=True)
class TrlStep:
    """TRL's trainer, with generate() of transformers inside."""

    setup: Setup
    name: str = "TRL plain"
    accumulate: int = 1  # micro-batches of a batch

    def run(self, turns: Turns) -> None:
        import torch  # noqa: F401 before our engine, which sets OMP_WAIT_POLICY

        prompts = [rows.chat_messages(text) for batch in _batches(self.setup) for text in batch]
        trainer = grpo(
            self.setup,
            turns,
            prompts,
            LENGTH,
            _rewards,
            self.accumulate,
            use_vllm=False,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            generation_kwargs={"min_new_tokens": LENGTH},
        )
        logprobs, generation = record_logprobs(trainer), _record_generation(trainer)
        trl_side.train(trainer, self.setup, turns, lambda: {**logprobs(), **generation()})


@dataclass(frozen=True)
class FixedPrompt:
    """A task with a fixed prompt; its reward counts the distinct characters of the answer."""

    text: str
    tag: str = "bench"

    def env(self) -> FixedPrompt:
        return self

    async def reset(self) -> Sequence[Message]:
        return rows.chat_messages(self.text)

    async def step(self, answer: str) -> StepResult:
        return StepResult(distinct_characters(answer))


def distinct_characters(answer: str) -> float:
    """Return the number of distinct characters."""
    return float(len(set(answer)))


def _rewards(completions: Sequence[Sequence[Message]], **kwargs: Any) -> list[float]:
    return [distinct_characters(messages[-1]["content"]) for messages in completions]


def _batches(setup: Setup) -> list[Sequence[str]]:
    texts = rows.questions(setup, setup.steps * GROUPS)
    return [texts[start : start + GROUPS] for start in range(0, len(texts), GROUPS)]


def _reported_values(rollouts: Rollouts) -> dict[str, Any]:
    episodes = [rollout.episodes[0] for rollout in rollouts.all()]
    return {
        "prompts": [episode.tokens[~episode.action_mask].tolist() for episode in episodes],
        "lengths": [[int(episode.action_mask.sum()) for episode in episodes]],
        "logprob": float(
            np.concatenate([episode.logprobs[episode.action_mask] for episode in episodes]).mean()
        ),
        "tokens": sum(len(episode.tokens) for episode in episodes),
    }


def _record_generation(trainer: Any) -> Callable[[], Values]:
    """Record prompts, lengths of completions and generation time of a step, in batch order."""
    recorded: dict[str, Any] = {}
    generate = trainer._generate_single_turn

    def recording(prompts: Any, *args: Any, **kwargs: Any) -> Any:
        started = perf_counter()
        output = generate(prompts, *args, **kwargs)
        recorded.update(generation=perf_counter() - started)
        recorded.update(
            prompts=[list(map(int, ids)) for ids in prompts], lengths=[list(map(len, output[0]))]
        )
        return output

    trainer._generate_single_turn = recording
    return lambda: dict(recorded)
