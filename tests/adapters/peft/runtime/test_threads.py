"""The threads that compute, each with its number of torch threads."""

from __future__ import annotations

import atexit
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.threads import ComputeThread, all_cores_thread, default_threads
from adapters.peft.runtime.worker import Worker, raise_if_closed
from kitchen.errors import RunFailed
from kitchen.types import Adam, Datum, Floats, Lora
from tests.support.one_model import OneModel

T = TypeVar("T")


def in_a_new_thread(work: Callable[[], T]) -> T:
    results = list[T]()
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(60)
    return results[0]


def test_a_thread_sets_only_its_own_torch_threads() -> None:
    before, thread_counts, go = default_threads(), list[int](), threading.Event()

    class Few(ComputeThread):
        def work(self) -> None:
            go.wait(60)
            thread_counts.append(torch.get_num_threads())

    few = Few("few", before + 2)
    few.start()
    assert in_a_new_thread(torch.get_num_threads) == default_threads() == before
    go.set()
    few.join(60)
    assert thread_counts == [before + 2]


@pytest.mark.parametrize("function", ["threading.Thread.start", "torch.set_num_threads"])
def test_a_thread_that_cannot_start_raises(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    failures = [RuntimeError("can't start new thread")]

    def fail_once(*_: object) -> None:
        if failures:
            raise failures.pop()

    # a real failure would need a process that has used up the threads of the system
    monkeypatch.setattr(function, fail_once)
    known = atexit._ncallbacks()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Worker("none")
    assert atexit._ncallbacks() == known  # type: ignore[attr-defined]


def test_all_cores_work_runs_on_one_thread() -> None:
    names_and_counts = [
        lanes.run(lambda: (threading.current_thread().name, torch.get_num_threads()))
        for lanes in (Lanes(1, 3), Lanes(2, 3), Lanes(2, 3).single())
    ]
    assert names_and_counts == [("all cores", 3)] * 3
    assert all_cores_thread(3) is all_cores_thread(3)
    assert all_cores_thread(3) is not all_cores_thread(2)


def test_errors_in_lanes_surface() -> None:
    lanes = Lanes(1, 2)
    with pytest.raises(ZeroDivisionError):
        lanes.run(lambda: 1 // 0)
    assert lanes.map(lambda lane, item: (lane, item), "ab") == [(0, "a"), (0, "b")]


def test_work_in_lanes_stops_when_its_worker_closes() -> None:
    worker, lanes, started = Worker("long"), Lanes(1, 2), threading.Event()

    def long() -> None:
        started.set()
        while True:
            raise_if_closed()

    running = worker.submit(lambda: lanes.run(long))
    assert started.wait(60)
    worker.close()
    with pytest.raises(RunFailed, match="closed while this call was running"):
        running.result(timeout=60)
    assert lanes.run(lambda: 1) == 1


class ThreadRecordingHub(OneModel):
    """A hub that records the thread that loads a model, which asks for its digest."""

    def __init__(self, folder: Path, names: set[str]) -> None:
        super().__init__(folder)
        self._names = names

    def sha256(self, model: str) -> str:
        self._names.add(threading.current_thread().name)
        return super().sha256(model)


def test_the_engine_computes_on_the_all_cores_thread(folder: Path, weighted: list[Datum]) -> None:
    names = defaultdict[str, set[str]](set)

    def record(what: str) -> Callable[..., None]:
        return lambda *_: names[what].add(threading.current_thread().name)

    def loss(data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        record("loss")()
        return 0.0, [np.ones_like(lp) for lp in logprobs], {}

    hub = ThreadRecordingHub(folder, names["load"])
    client = PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float32", threads=2)
    session: Any = client.open("tiny", Lora(rank=2))
    model = session.submit(lambda trainer: trainer.network.model).result()
    model.get_input_embeddings().register_forward_hook(record("forward"))
    hook = register_optimizer_step_post_hook(record("step"))
    session.forward_backward(weighted[:1], loss=loss).result()
    session.optim_step(Adam(0.01)).result()
    hook.remove()
    sampler = session.snapshot().result()
    sampler.model.result().network.model.get_input_embeddings().register_forward_hook(
        record("sample")
    )
    sampler.sample(weighted[0].tokens, max_tokens=3).result()
    sampler.close()
    session.close()
    assert set(names) == {"load", "loss", "forward", "step", "sample"}
    assert all(threads == {"all cores"} for threads in names.values())


def test_a_worker_has_one_torch_thread() -> None:
    worker = Worker("little")
    assert worker.submit(torch.get_num_threads).result(timeout=60) == 1
    worker.close()
