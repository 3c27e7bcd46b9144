"""A tiny model and what opens it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from kitchen.errors import BackendError
from kitchen.types import Adam, Datum, Lora
from tests.support.tiny_model import tiny_model

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession

DEVICE = os.environ.get("KITCHEN_TEST_DEVICE", "cpu")  # where there is one: cuda


class OneModel:
    """A hub that has one model, under any name but "nothing", and folders as path:DIR."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, model: str) -> Path:
        if model == "nothing":
            raise BackendError("there is no model 'nothing'")
        return Path(model.removeprefix("path:")) if model.startswith("path:") else self._folder

    def find(self, model: str) -> None:
        self.fetch(model)

    def sha256(self, model: str) -> str:
        return "5" * 64

    def files(self, model: str) -> list[str]:
        return sorted(path.name for path in self.fetch(model).iterdir())

    def publish(self, model: str, folder: Path, *, message: str) -> str:
        raise BackendError("this hub publishes nothing")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def blobs() -> FakeBlobs:
    return FakeBlobs()


@pytest.fixture
def client(folder: Path, blobs: FakeBlobs) -> Callable[..., PeftTraining]:
    def made(**settings: Any) -> PeftTraining:
        return PeftTraining(
            OneModel(folder),
            blobs,
            **{"device": DEVICE, "dtype": "float32", "threads": 1, **settings},
        )

    return made


@pytest.fixture
def opened(client: Callable[..., PeftTraining]) -> Iterator[Callable[..., PeftSession]]:
    sessions: list[PeftSession] = []

    def made(lora: Lora | None = None, **settings: Any) -> PeftSession:
        session = client(**settings).open("tiny", lora or Lora(rank=8, seed=1))
        sessions.append(cast("PeftSession", session))
        return sessions[-1]

    yield made
    for session in sessions:
        session.close()


def trained(session: PeftSession, data: list[Datum]) -> PeftSession:
    for _ in range(3):
        session.forward_backward(data)
        session.optim_step(Adam(0.01))
    return session


@pytest.fixture
def data() -> list[Datum]:
    """Six datums of 5 to 40 tokens with all the inputs that some named loss reads."""
    rng, made = np.random.default_rng(0), []
    for length in (17, 5, 40, 9, 23, 31):
        ids = rng.integers(3, 300, length + 1)
        weights = np.where(rng.random(length) < 0.6, rng.normal(size=length), 0.0)
        made.append(
            Datum(
                ids[:-1],
                {
                    "target_tokens": ids[1:],
                    "weights": weights,
                    "logprobs": -4 + rng.normal(size=length),
                    "advantages": np.where(rng.random(length) < 0.8, rng.normal(size=length), 0.0),
                },
            )
        )
    return made


def only(data: list[Datum], *names: str) -> list[Datum]:
    return [
        Datum(d.tokens, {name: d.loss_inputs[name] for name in ("target_tokens", *names)})
        for d in data
    ]


@pytest.fixture
def weighted(data: list[Datum]) -> list[Datum]:
    """The same for cross_entropy."""
    return only(data, "weights")


@pytest.fixture
def judged(data: list[Datum]) -> list[Datum]:
    """The same for losses of policies."""
    return only(data, "logprobs", "advantages")


@pytest.fixture
def session(opened: Callable[..., PeftSession], weighted: list[Datum]) -> PeftSession:
    """Of weights that have learnt a little."""
    return trained(opened(), weighted)


@pytest.fixture
def sampler(session: PeftSession) -> Iterator[Any]:
    sampler = session.snapshot().result()
    yield sampler
    sampler.close()
