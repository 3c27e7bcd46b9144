"""Losses that only the server knows: they are sent, and the server judges their inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.backend.needs import needing
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Future, TrainingSession
from kitchen.ports.future import Failed
from kitchen.types import Adam, Datum, Lora, Trainable
from tests.support.tinker_server import ByteTinker, serving

PROMPT = np.arange(1, 6)
POLICY = {"logprobs": -np.ones(5, np.float32), "advantages": np.ones(5, np.float32)}
EXTRA = {"sequence_ids": np.zeros(5, np.int64)}
LORA = Lora(rank=4, seed=1)


class Newer(FakeTraining):
    """A backend with the loss `next_year`, which reads the input `sequence_ids` as well."""

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        return NewerSession(super().open(model, trainable))


class NewerSession:
    def __init__(self, session: TrainingSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def forward(self, data: Any, loss: Any = "cross_entropy", options: Any = None) -> Future[Any]:
        return self._call(self._session.forward, data, loss, options)

    def forward_backward(
        self, data: Any, loss: Any = "cross_entropy", options: Any = None
    ) -> Future[Any]:
        return self._call(self._session.forward_backward, data, loss, options)

    def _call(
        self, method: Callable[..., Future[Any]], data: Any, loss: Any, options: Any
    ) -> Future[Any]:
        if loss != "next_year":
            return method(data, loss, options)
        if any("sequence_ids" not in datum.loss_inputs for datum in data):
            return Failed(DataError("the field 'sequence_ids' is missing"))
        plain = [datum_of(POLICY) for _ in data]
        return method(plain, "importance_sampling", options)


def datum_of(inputs: Any) -> Datum:
    return Datum(PROMPT, {"target_tokens": PROMPT + 1, **inputs})


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITCHEN_CACHE", str(tmp_path / "cache"))


def test_a_loss_of_the_server_trains() -> None:
    local = FakeTraining(FakeBlobs()).open("tiny", LORA)
    local.forward_backward([datum_of(POLICY)], "importance_sampling").result()
    local.optim_step(Adam(0.1)).result()
    blobs = FakeBlobs()
    with serving(Newer(blobs), blobs) as server:
        with needing(["loss next_year"]):  # the inputs that it reads are not known here
            session = ByteTinker(FakeBlobs(), server.url).open("tiny", LORA)
        data = [datum_of(POLICY | EXTRA)]
        output = session.forward_backward(data, "next_year").result()
        assert output.metrics["loss:sum"]
        assert not output.scored
        session.optim_step(Adam(0.1)).result()
        moved = session.forward(data, "next_year").result()
        session.close()
    expected = local.forward([datum_of(POLICY)], "importance_sampling").result()
    np.testing.assert_allclose(moved.logprobs[0], expected.logprobs[0], rtol=1e-5)


@pytest.mark.parametrize(
    "loss, inputs, kind, text",
    [
        ("next_yaer", POLICY | EXTRA, ConfigError, "next_yaer"),
        ("next_year", POLICY, DataError, "sequence_ids"),
        ("next_year", {"sequence_ids": np.zeros(4)}, DataError, "sequence_ids"),
        ("next_year", {"logprobs": np.full(5, np.nan)}, DataError, "logprobs"),
        ("next_year", {"target_tokens": PROMPT - 7}, DataError, "target_tokens"),
    ],
)
def test_bad_input_of_such_a_loss_is_refused_by_name(
    loss: str, inputs: Any, kind: type[Exception], text: str
) -> None:
    blobs = FakeBlobs()
    with serving(Newer(blobs), blobs) as server:
        session = ByteTinker(FakeBlobs(), server.url).open("tiny", LORA)
        for method in (session.forward, session.forward_backward):
            with pytest.raises(kind, match=text):
                method([datum_of(inputs)], loss).result()
        session.close()


def test_absence_of_an_unlisted_loss_is_found_first() -> None:
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        with needing(["loss next_year"]):
            session = ByteTinker(FakeBlobs(), server.url).open("tiny", LORA)
        with pytest.raises(ConfigError, match=f"{server.url} lacks 'loss next_year'"):
            session.facts()
        session.close()
