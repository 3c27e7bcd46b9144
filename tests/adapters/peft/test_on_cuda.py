"""All weights, DoRA and Qwen3 on a CUDA device: results of the CPU, resume and sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from adapters.peft.session import PeftSession
from kitchen.types import Datum, FullWeights, Lora
from tests.support.one_model import OneModel
from tests.support.peft_sessions import flat, step, trained
from tests.support.tiny_model import tiny_model
from tests.support.tiny_qwen import tiny_qwen3

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

DEVICE = "cuda"
CASES = {
    "all weights": (tiny_model, FullWeights()),
    "dora": (tiny_model, Lora(rank=4, seed=3, kind="dora")),
    "head norms": (tiny_qwen3, Lora(rank=4, seed=3)),
}
Opened = Callable[..., PeftSession]


@pytest.fixture(params=CASES)
def opened(request: pytest.FixtureRequest, blobs: FakeBlobs, tmp_path: Path) -> Iterator[Opened]:
    write, trainable = CASES[request.param]
    hub = OneModel(write(tmp_path / "model"))
    sessions: list[Any] = []

    def made(device: str = DEVICE, dtype: str = "float32") -> PeftSession:
        client = PeftTraining(hub, blobs, device=device, dtype=dtype, threads=1)
        sessions.append(client.open("tiny", trainable))
        return sessions[-1]

    yield made
    for session in sessions:
        session.close()


def test_a_step_is_that_of_the_cpu(opened: Opened, weighted: list[Datum]) -> None:
    on_cpu, on_cuda = trained(opened("cpu"), weighted), opened()
    on_cuda.load(on_cpu.save("trained").result()).result()
    (expected, gradient), (output, of_cuda) = (step(each, weighted) for each in (on_cpu, on_cuda))
    for ours, theirs in zip(output.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert of_cuda.keys() == gradient.keys()
    difference = np.linalg.norm(flat(of_cuda) - flat(gradient))
    assert difference < 1e-3 * np.linalg.norm(flat(gradient))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_session_is_equal_to_the_bit(
    opened: Opened, weighted: list[Datum], dtype: str
) -> None:
    straight, resumed = trained(opened(dtype=dtype), weighted), opened(dtype=dtype)
    resumed.load(straight.save("middle").result()).result()
    digests = [
        trained(session, weighted).save(f"end-{number}").result().sha256
        for number, session in enumerate((straight, resumed))
    ]
    assert digests[0] == digests[1]


def test_sampled_logprobs_are_scored_ones(opened: Opened, weighted: list[Datum]) -> None:
    prompt = weighted[0].tokens
    sampler = trained(opened(), weighted).snapshot().result()
    for completion in sampler.sample(prompt, count=3, max_tokens=12, seed=3).result():
        tokens = np.concatenate([prompt, completion.tokens])
        scored = sampler.logprobs(tokens).result()[len(prompt) :]
        np.testing.assert_allclose(completion.logprobs, scored, rtol=0, atol=1e-3)
    sampler.close()
