"""Sampling many rows, relative to the time in which weights and keys are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adapters.local.hub import LocalHub
from kitchen.ports.sampling import Sampler
from kitchen.types import Sampled
from tests.bench import kitchen_side, rows
from tests.bench.ceilings import read_rate
from tests.bench.flops import Shape
from tests.bench.gpu.workspace import Workspace
from tests.bench.interleave import interleave
from tests.bench.sampling import LOGPROB_TOLERANCE
from tests.bench.turns import Setup, Turns

SCORED = 4  # completions whose reported log-probabilities are compared with scored ones


@dataclass(frozen=True)
class Workload:
    """Distinct prompts of one length, with one completion each."""

    setup: Setup
    count: int = 256  # rows at once
    prompt: int = 512  # tokens
    answer: int = 256
    full_steps: int = 2

    @property
    def lengths(self) -> list[int]:
        """Return the tokens that each step generates: a warm-up, the prompts alone, full steps."""
        return [self.answer, 1, *[self.answer] * self.full_steps]


@dataclass(frozen=True)
class KitchenDecoding:
    """The local engine, with new prompts in each step."""

    work: Workload
    name: str = "kitchen"

    def run(self, turns: Turns) -> None:
        setup, count = self.work.setup, self.work.count
        client = kitchen_side.client(setup, sample_batch=count)
        sampler = kitchen_side.session(client, setup).snapshot().result()
        prompts = rows.prompts(setup, count * len(self.work.lengths), self.work.prompt)
        turns.loaded()
        for number, length in enumerate(self.work.lengths):
            batch = prompts[number * count : (number + 1) * count]
            turns.wait()
            futures = [
                sampler.sample(prompt, count=1, max_tokens=length, temperature=1.0, seed=row)
                for row, prompt in enumerate(batch)
            ]
            completions = [future.result()[0] for future in futures]
            turns.stop()
            turns.report(
                lengths=[len(completion.tokens) for completion in completions],
                logprob_error=_logprob_error(sampler, batch[:SCORED], completions[:SCORED]),
            )


@dataclass(frozen=True)
class ReadRate:
    """The memory read rate of the device."""

    device: str
    size: int  # bytes
    name: str = "the machine"

    def run(self, turns: Turns) -> None:
        turns.loaded()
        while True:
            turns.wait()
            rate = read_rate(self.device, self.size)
            turns.stop()
            turns.report(read_rate=rate)


def sampling_8b(workspace: Workspace) -> Mapping[str, Any]:
    return _decoding(workspace, "8B", Workload(workspace.setup("8b")))


def decoding_1b(workspace: Workspace) -> Mapping[str, Any]:
    return _decoding(workspace, "1B", Workload(workspace.setup("1b"), 32, 256, 64))


def _decoding(workspace: Workspace, size: str, work: Workload) -> Mapping[str, Any]:
    work = replace(work, count=4, prompt=32, answer=8) if workspace.dry else work
    setup = work.setup
    kitchen, gauge = (
        KitchenDecoding(work),
        ReadRate(setup.device, 2**22 if workspace.dry else 2**32),
    )
    measured = interleave([kitchen, gauge], setup.folder, len(work.lengths)).steps
    _, prefill, *full = measured[kitchen.name]
    rate = max(step.values["read_rate"] for step in measured[gauge.name])
    shares, rates, overall, each = (list[float]() for _ in range(4))
    for step in full:
        limit = bytes_read(setup, work.prompt, step.values["lengths"]) / rate / 1e9
        generating = step.seconds - prefill.seconds
        shares.append(limit / generating)
        each.append(1e3 * generating / (max(step.values["lengths"]) - 1))
        overall.append(limit / step.seconds)
        rates.append(sum(step.values["lengths"]) / step.seconds)
    error = max(step.values["logprob_error"] for step in full)
    return {
        "title": f"Sampling {size}, {work.count} rows, {work.prompt} + {work.answer} tokens",
        "figures": {
            "share of the limit": float(np.median(shares)),
            "with prompts": float(np.median(overall)),
            "ms for a token of all rows": float(np.median(each)),
        },
        "sides": {
            "kitchen": {
                "tokens_per_second": {"median": float(np.median(rates))},
                "seconds": [step.seconds for step in measured[kitchen.name]],
                "peak_mb": max(step.values["peak_mb"] for step in measured[kitchen.name]),
                "loaded_mb": prefill.values["loaded_mb"],
            }
        },
        "read_gb_per_second": rate,
        "prompts_seconds": prefill.seconds,
        "logprob_error": error,
        "sound": error <= LOGPROB_TOLERANCE[setup.dtype],
        "notes": [
            "share of the limit: the time of reading weights and keys once a token, relative "
            "to the time of a step without its prompts; with prompts: relative to the whole step"
        ],
    }


def bytes_read(setup: Setup, prompt: int, lengths: Sequence[int]) -> float:
    """Return the bytes of weights, keys and values that are read, each once a token.

    The first token of a completion is sampled from the logits of its prompt.
    """
    folder = LocalHub().fetch(setup.model)
    shape, config = Shape.of(folder, kitchen_side.LORA.rank), _config(folder)
    item = 4 if setup.dtype == "float32" else 2
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    per_token = 2 * shape.layers * config["num_key_value_heads"] * head_dim * item
    total = 0.0
    for token in range(1, max(lengths)):
        active = sum(length > token for length in lengths)
        total += (shape.body + shape.head) * item + active * (prompt + token) * per_token
    return total


def _config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def _logprob_error(
    sampler: Sampler, prompts: Sequence[Any], completions: Sequence[Sampled]
) -> float:
    """Return the mean absolute difference of reported and scored log-probabilities in nats."""
    scores = [
        sampler.logprobs(np.concatenate([prompt, completion.tokens]))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    differences = [
        completion.logprobs - score.result()[len(prompt) :]
        for prompt, completion, score in zip(prompts, completions, scores, strict=True)
    ]
    return float(np.abs(np.concatenate(differences)).mean())
