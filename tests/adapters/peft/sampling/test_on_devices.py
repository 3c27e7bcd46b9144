"""Sampling on two processes: the samples and scores of one, to rounding."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from kitchen.errors import ConfigError, SessionLost
from kitchen.ports.sampling import Sampler
from kitchen.types import Adam, Array, Datum, FullWeights, Lora, Sampled
from tests.support.one_model import OneModel
from tests.support.peft_sessions import trained

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession

pytest.importorskip("torch")

Opened = Callable[..., "PeftSession"]
ONE: Mapping[str, Any] = {"device": "cpu", "threads": 2}
TWO: Mapping[str, Any] = {"device": "cpu", "threads": 2, "devices": 2}
PROMPTS = [np.arange(5, 5 + length) for length in (3, 30, 7, 12, 3)]


def samples_and_scores(sampler: Sampler) -> tuple[list[Sequence[Sampled]], list[Array]]:
    """Return what a sampler answers to requests of one batch."""
    drawn = [
        sampler.sample(prompt, count=2, max_tokens=8, seed=number)
        for number, prompt in enumerate(PROMPTS)
    ]
    scored = [sampler.logprobs(prompt) for prompt in PROMPTS]
    top = sampler.top_logprobs(PROMPTS[1], 3)
    samples = [future.result() for future in drawn]
    return samples, [*(future.result() for future in scored), *top.result()]


def assert_same(actual: Any, expected: Any) -> None:
    for ours, theirs in zip(actual[0], expected[0], strict=True):
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine.tokens, other.tokens)
            np.testing.assert_allclose(mine.logprobs, other.logprobs, rtol=0, atol=1e-5)
    for ours, theirs in zip(actual[1], expected[1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("source", ["snapshot", "checkpoint", "name"])
def test_two_devices_sample_what_one_does(
    opened: Opened,
    client: Callable[..., PeftTraining],
    weighted: list[Datum],
    source: str,
) -> None:
    answers = []
    for number, devices in enumerate((ONE, TWO)):
        session = trained(opened(Lora(rank=4, seed=3), **devices), weighted)
        if source == "snapshot":
            sampler = session.snapshot().result()
            session.forward_backward(weighted)
            session.optim_step(Adam(0.5)).result()  # a snapshot does not change
        else:
            checkpoint = session.save_weights(f"weights-{number}").result()
            sampler = client(**devices).sampler(checkpoint if source == "checkpoint" else "tiny")
        answers.append(samples_and_scores(sampler))
        sampler.close()
    assert_same(answers[1], answers[0])


def test_all_weights_are_sampled_on_both_devices(
    client: Callable[..., PeftTraining], weighted: list[Datum]
) -> None:
    answers = []
    for devices in (ONE, TWO):
        session: Any = client(**devices).open("tiny", FullWeights())
        sampler = trained(session, weighted).snapshot().result()
        answers.append(samples_and_scores(sampler))
        sampler.close()
        session.close()
    assert_same(answers[1], answers[0])


def test_an_invalid_request_fails_alone(opened: Opened) -> None:
    sampler = opened(Lora(rank=4, seed=3), **TWO).snapshot().result()
    good = sampler.sample(PROMPTS[1], max_tokens=2)
    bad = sampler.sample(PROMPTS[0], max_tokens=0)
    assert len(good.result()) == 1
    with pytest.raises(ConfigError, match="max_tokens"):
        bad.result()


def test_streamed_tokens_arrive_beside_a_batch(opened: Opened) -> None:
    sampler: Any = opened(Lora(rank=4, seed=3), **TWO).snapshot().result()
    arrived = list[int]()
    future = sampler.stream(
        PROMPTS[0], lambda index, token: arrived.append(token), max_tokens=5, seed=1
    )
    others = [sampler.sample(prompt, max_tokens=5) for prompt in PROMPTS]
    [sampled] = future.result()
    assert arrived == sampled.tokens.tolist()
    assert all(other.result() for other in others)


@pytest.mark.slow
def test_a_process_killed_while_it_samples(folder: Path) -> None:
    client = PeftTraining(OneModel(folder), FakeBlobs(), dtype="float32", **TWO)
    session: Any = client.open("tiny", Lora(rank=4, seed=3))
    [process] = session.submit(lambda trainer: trainer.group.processes).result()
    sampler: Any = session.snapshot().result()
    os.kill(process, signal.SIGSTOP)
    stream = sampler.stream(
        PROMPTS[0], lambda index, token: os.kill(process, signal.SIGKILL), max_tokens=1
    )
    others = [sampler.sample(prompt, max_tokens=4) for prompt in PROMPTS]
    stream.result()
    errors = [future.work.exception() for future in others]
    lost = [error for error in errors if isinstance(error, SessionLost)]
    assert lost, errors
    assert all("SIGKILL" in str(error) for error in lost)
    assert len(lost) + errors.count(None) == len(errors)  # this process completed its own
    session.close()
