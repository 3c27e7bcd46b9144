"""Passes that a server refuses: the session continues, unless a gradient may lack their data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeSession, FakeTraining
from adapters.tinker.client import TinkerTraining
from kitchen.errors import DataError, RunFailed
from kitchen.ports import TrainingSession
from kitchen.types import Adam, Datum, Floats, Lora, LossOutput, Trainable
from tests.support.tinker_server import MODELS, ByteTinker, serving

PROMPT = np.arange(1, 6)
LORA = Lora(rank=4, seed=1)
STEP = Adam(0.1)


def datum(target: int = 2, weight: float = 1.0) -> Datum:
    weights = np.full(5, weight, np.float32)
    return Datum(PROMPT, {"target_tokens": np.full(5, target), "weights": weights})


GOOD, NAN, BEYOND = datum(), datum(weight=np.nan), datum(target=100_000)


class Keeping(FakeTraining):
    """A backend that keeps the gradient of a batch of which it has refused a pass."""

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        return KeepingSession(model, trainable, self._blobs)


class KeepingSession(FakeSession):
    def _backward(self, data: object, loss: object, options: object) -> LossOutput:
        kept = self.gradient
        try:
            return super()._backward(data, loss, options)  # type: ignore[arg-type]
        except DataError:
            self._refused.clear()
            self.gradient = kept
            raise


@pytest.fixture
def session() -> Iterator[TrainingSession]:
    """A session on a server that does not discard gradients."""
    blobs = FakeBlobs()
    with serving(Keeping(blobs), blobs) as server:
        client = TinkerTraining(FakeHub(MODELS), FakeBlobs(), base_url=server.url, server="tinker")
        session = client.open("tiny", LORA)
        yield session
        session.close()


def score(session: TrainingSession) -> Floats:
    return session.forward([GOOD]).result().logprobs[0]


def test_step_sent_before_the_refusal_ends_the_session(session: TrainingSession) -> None:
    """The server has applied a part of the batch by then."""
    futures = [
        session.forward_backward([GOOD]),
        session.forward_backward([BEYOND]),
        session.optim_step(STEP),
    ]
    with pytest.raises(DataError, match="target_tokens"):
        futures[1].result()
    with suppress(RunFailed):  # it may be answered before the pass
        futures[2].result()
    with pytest.raises(RunFailed, match="lacks the data"):
        session.save("later").result()


@pytest.mark.parametrize("bad", [NAN, BEYOND], ids=["here", "there"])
def test_incomplete_gradient_is_not_applied(session: TrainingSession, bad: Datum) -> None:
    before = score(session)
    session.forward_backward([GOOD]).result()
    with pytest.raises(DataError):
        session.forward_backward([bad]).result()
    np.testing.assert_array_equal(score(session), before)  # other calls continue
    session.forward_backward([GOOD]).result()
    with pytest.raises(RunFailed, match="cannot be discarded"):
        session.optim_step(STEP).result()


def test_the_batch_after_a_refused_one_is_applied(session: TrainingSession) -> None:
    local = FakeTraining(FakeBlobs()).open("tiny", LORA)
    local.forward_backward([GOOD]).result()
    local.optim_step(STEP).result()
    with pytest.raises(DataError):
        session.forward_backward([BEYOND]).result()
    session.forward_backward([GOOD])
    session.optim_step(STEP).result()
    assert session.save("later").result().step == 1
    np.testing.assert_allclose(score(session), score(local), rtol=1e-5)


def test_a_refused_part_of_a_large_batch_ends_the_session() -> None:
    """The SDK sends it in several requests, and the others have added to the gradient."""
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        session = ByteTinker(FakeBlobs(), server.url).open("tiny", LORA)
        with pytest.raises(DataError, match="target_tokens"):
            session.forward_backward([GOOD] * 1_030 + [BEYOND]).result()
        with pytest.raises(RunFailed, match="accepts no more calls"):
            session.save("later").result()
        session.close()


def test_refused_samples_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The SDK would log each of them before it raises."""
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        sampler = ByteTinker(FakeBlobs(), server.url).sampler("tiny")
        for _ in range(2):
            with pytest.raises(DataError, match="outside the vocabulary"):
                sampler.sample(np.array([100_000]), max_tokens=2).result()
        sampler.close()
    assert not [record for record in caplog.records if record.name.startswith("tinker.lib.retry")]
