"""Observed ports: calls are timed until their results arrive, and nothing else changes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import inspect
import pickle
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.backend.observed_ports import ObservedPorts
from kitchen.backend.port_call import PortCall, current_call
from kitchen.errors import BackendError
from kitchen.ports import (
    BlobStore,
    Done,
    Failed,
    Pending,
    Sampler,
    TrainingClient,
    TrainingSession,
    start,
)
from kitchen.types import Lora


class Refused(Exception):
    """An error of an HTTP client."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code


@dataclass(frozen=True)
class OwnFuture:
    """A future of an adapter's own class."""

    value: Any

    def result(self, timeout: float | None = None) -> Any:
        if timeout is not None:
            raise TimeoutError
        return self.value

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from asyncio.sleep(0).__await__()
        return self.value


class Client:
    """A client with one verb for each kind of result."""

    capabilities = frozenset({"forward"})

    def __init__(self) -> None:
        self.work = concurrent.futures.Future[int]()

    def plain(self) -> int:
        return 1

    def done(self) -> Done[int]:
        return Done(2)

    def failed(self) -> Failed:
        return Failed(KeyError("late"))

    def pending(self) -> Pending[int]:
        return Pending(self.work)

    def started(self) -> Any:
        return start(self.coroutine())

    async def coroutine(self) -> int:
        await asyncio.sleep(0)
        return 5

    def own(self) -> OwnFuture:
        return OwnFuture(6)

    def refused(self) -> None:
        call = current_call()
        assert call is not None
        call.add_response(429)
        call.add_response(503, retried=True)
        try:
            raise Refused(503)
        except Refused as error:
            raise BackendError("the server is overloaded") from error


def observed(port: Any, value: Any) -> tuple[Any, list[PortCall]]:
    calls: list[PortCall] = []
    caller = {"kitchen.stage": "Stage", "kitchen.step": 4}
    return ObservedPorts(calls.append).wrap({"p": port}, {"p": value}, caller)["p"], calls


def test_row_is_complete_when_the_result_arrives() -> None:
    raw = Client()
    client, calls = observed(TrainingClient, raw)

    async def use() -> None:
        assert client.plain() == 1
        assert await client.done() == 2
        pending = client.pending()
        assert [call.verb for call in calls] == ["plain", "done"]
        raw.work.set_result(4)
        assert [call.verb for call in calls][2:] == ["pending"]
        assert pending.result() == await pending == 4
        assert await client.started() == await client.coroutine() == 5
        own = client.own()
        with pytest.raises(TimeoutError):
            own.result(0.0)
        assert len(calls) == 5, "waiting in vain does not end a call"
        assert await own == await own == own.result() == 6

    asyncio.run(use())
    verbs = ["plain", "done", "pending", "started", "coroutine", "own"]
    assert [call.verb for call in calls] == verbs
    assert {(call.port, *call.caller.values()) for call in calls} == {
        ("TrainingClient", "Stage", 4)
    }
    assert not any(call.error_type for call in calls)
    assert client.capabilities == {"forward"}


def test_error_is_recorded_with_the_http_status_of_its_cause() -> None:
    client, calls = observed(TrainingClient, Client())
    with pytest.raises(BackendError, match="overloaded"):
        client.refused()
    with pytest.raises(KeyError):
        client.failed().result()
    refused, failed = calls
    assert (refused.error_type, refused.http_status, refused.retries) == ("BackendError", 503, 1)
    assert (failed.error_type, failed.http_status, failed.retries) == ("KeyError", None, 0)
    assert current_call() is None


def test_ports_that_a_port_opens_are_observed_with_their_model() -> None:
    blobs = FakeBlobs()
    client, calls = observed(TrainingClient, FakeTraining(blobs))
    session = client.open("tiny", Lora(rank=4))
    sampler = session.snapshot().result()
    sampler.sample(np.array([1, 2, 3]), count=2, max_tokens=5).result()
    sampler.logprobs(tokens=np.array([1, 2])).result()
    assert [(call.port, call.verb, call.model) for call in calls] == [
        ("TrainingClient", "open", None),
        ("TrainingSession", "snapshot", "tiny"),
        ("Sampler", "sample", "tiny"),
        ("Sampler", "logprobs", "tiny"),
    ]
    assert (calls[2].input_tokens, calls[3].input_tokens) == (3, 2)
    assert 2 <= (calls[2].output_tokens or 0) <= 10
    assert calls[3].output_tokens is None


def test_calls_on_other_threads_are_those_of_the_stage() -> None:
    client, calls = observed(TrainingClient, FakeTraining(FakeBlobs()))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        sampler = pool.submit(client.sampler, "tiny").result()
        pool.submit(sampler.logprobs, np.array([1, 2])).result()
    assert [(call.verb, *call.caller.values()) for call in calls] == [
        ("sampler", "Stage", 4),
        ("logprobs", "Stage", 4),
    ]


def test_model_is_known_after_the_sampler_was_in_scope() -> None:
    calls: list[PortCall] = []
    ports = ObservedPorts(calls.append)
    client = ports.wrap({"c": TrainingClient}, {"c": FakeTraining(FakeBlobs())}, {})["c"]
    raw = ports.unwrap(client.sampler("tiny"))
    assert type(raw).__module__.startswith("adapters.fake")
    again = ports.wrap({"s": Sampler}, {"s": raw}, {})["s"]
    again.logprobs(np.array([1, 2]))
    assert calls[-1].model == "tiny"


def test_wrapper_passes_for_the_port_inside() -> None:
    blobs = FakeBlobs()
    wrapped, _ = observed(BlobStore, blobs)
    assert isinstance(wrapped, FakeBlobs)
    assert wrapped == blobs == ObservedPorts().unwrap(wrapped)
    assert hash(wrapped) == hash(blobs)
    assert bool(wrapped), "it has no __len__"


class Model:
    """An object that can be called, as models of torch can."""

    def __call__(self, value: int) -> int:
        return value

    def layers(self) -> int:
        return 2


@dataclass
class Scorer:
    """A port that a user wrote, with special methods and attributes."""

    weight: int = 1
    model: Model = field(default_factory=Model)
    opened: bool = False

    def score(self, *, port: int = 0, verb: str = "", method: str = "", self_: int = 0) -> str:
        return f"{port}{verb}{method}{self_}"

    async def later(self) -> int:
        return self.weight

    def __enter__(self) -> Scorer:
        self.opened = True
        return self

    def __exit__(self, *error: object) -> None:
        self.opened = False

    def __bool__(self) -> bool:
        return False

    def __lt__(self, other: object) -> bool:
        return True

    def __str__(self) -> str:
        return "scorer"


def test_wrapper_is_used_as_the_port_inside() -> None:
    raw = Scorer()
    wrapped, calls = observed(TrainingClient, raw)
    with wrapped as entered:
        assert raw.opened
        assert entered.score(port=3, verb="v", method="m", self_=4) == "3vm4"
    assert not raw.opened
    assert [call.verb for call in calls] == ["score"]
    wrapped.weight = 7
    assert raw.weight == 7
    assert asyncio.run(wrapped.later()) == 7
    assert wrapped.model.layers() == wrapped.model(2) == 2
    assert not wrapped
    assert wrapped < raw
    assert (str(wrapped), repr(wrapped)) == ("scorer", repr(raw))
    assert vars(wrapped) == vars(raw)
    del wrapped.weight
    assert "weight" not in vars(raw)


def unpickled(port: Any) -> Any:
    return pickle.loads(pickle.dumps(port))  # noqa: S301 written here


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, replace, unpickled],
)
def test_copy_of_a_wrapper_is_a_port(copied: Callable[[Any], Any]) -> None:
    wrapped, _ = observed(TrainingClient, Scorer(weight=5))
    again = copied(wrapped)
    assert type(again) is Scorer
    assert again.weight == 5


def test_method_of_a_wrapper_is_inspected_as_that_of_the_port() -> None:
    raw = Scorer()
    wrapped, _ = observed(TrainingClient, raw)
    assert inspect.iscoroutinefunction(wrapped.later)
    assert inspect.signature(wrapped.score) == inspect.signature(raw.score)
    assert wrapped.score == wrapped.score == raw.score
    assert wrapped.score.__name__ == "score"


class Trainer:
    """A session that reads its data once."""

    def forward_backward(self, data: Any) -> int:
        return len(list(data))


def test_data_that_can_be_read_once_reach_the_session() -> None:
    session, calls = observed(TrainingSession, Trainer())
    assert session.forward_backward(iter([1, 2])) == 2
    assert session.forward_backward([1, 2]) == 2, "which are no data"
    assert [call.input_tokens for call in calls] == [None, None]
