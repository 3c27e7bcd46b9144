"""A tiny model, and clients, sessions and samplers of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from kitchen.errors import KitchenError
from kitchen.types import Datum, Lora
from tests.support.one_model import OneModel
from tests.support.peft_sessions import trained
from tests.support.tiny_model import tiny_model

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession
    from kitchen.ports.blobs import BlobStore

DEVICE = os.environ.get("KITCHEN_TEST_DEVICE", "cpu")  # where there is one: cuda


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def cpu_flags(request: pytest.FixtureRequest) -> Iterator[None]:
    """The flags of the processor to assume; to be parametrized, several with spaces between."""
    from adapters.peft.runtime.cpu import assume_cpu_flags

    with assume_cpu_flags(*request.param.split()):
        yield


@pytest.fixture
def blobs() -> FakeBlobs:
    return FakeBlobs()


class Clients:
    """Clients by model folder and settings, each with its base model loaded once."""

    def __init__(self) -> None:
        self._clients: dict[str, tuple[PeftTraining, CurrentBlobs, Any]] = {}

    def get(self, folder: Path, blobs: FakeBlobs, settings: dict[str, Any]) -> PeftTraining:
        key = f"{folder} {sorted(settings.items())}"
        if key not in self._clients:
            current = CurrentBlobs()
            client = PeftTraining(OneModel(folder), cast("BlobStore", current), **settings)
            try:  # an open session holds the base model
                holder: Any = client.open("tiny", Lora(rank=1))
            except KitchenError:
                return client  # settings that the test expects to fail
            self._clients[key] = client, current, holder
        client, current, _ = self._clients[key]
        current.blobs = blobs
        return client

    def close(self) -> None:
        for _, _, holder in self._clients.values():
            holder.close()


class CurrentBlobs:
    """A blob store that passes calls on to the store of the test that runs."""

    blobs: FakeBlobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)


@pytest.fixture(scope="session")
def clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.close()


@pytest.fixture
def client(folder: Path, blobs: FakeBlobs, clients: Clients) -> Callable[..., PeftTraining]:
    def get(**settings: Any) -> PeftTraining:
        defaults = {"device": DEVICE, "dtype": "float32", "threads": 1}
        return clients.get(folder, blobs, {**defaults, **settings})

    return get


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


@pytest.fixture
def data() -> list[Datum]:
    """Six datums of 5 to 40 tokens with all the inputs that some named loss reads."""
    rng, datums = np.random.default_rng(0), []
    for length in (17, 5, 40, 9, 23, 31):
        ids = rng.integers(3, 300, length + 1)
        weights = np.where(rng.random(length) < 0.6, rng.normal(size=length), 0.0)
        datums.append(
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
    return datums


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
    """A session with slightly trained weights."""
    return trained(opened(), weighted)


@pytest.fixture
def sampler(session: PeftSession) -> Iterator[Any]:
    sampler = session.snapshot().result()
    yield sampler
    sampler.close()
