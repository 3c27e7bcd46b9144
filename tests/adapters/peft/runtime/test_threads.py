"""Which thread computes with how many of torch's."""

from __future__ import annotations

import atexit
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from adapters.peft import device as machine
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.threads import ComputeThread, all_cores_thread, default_threads
from adapters.peft.runtime.worker import Worker, raise_if_closed
from adapters.peft.sampling import batch as serving
from adapters.peft.sampling.fused_body import FusedBody
from adapters.peft.training import trainer
from adapters.peft.training.adamw import Optimiser
from adapters.peft.training.forward_backward import MicroBatchPass
from kitchen.errors import RunFailed
from kitchen.types import Adam, Datum, Floats

T = TypeVar("T")


def in_a_new_thread(work: Callable[[], T]) -> T:
    found = list[T]()
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    return found[0]


def test_a_thread_uses_as_many_as_it_wants_and_others_as_many_as_before() -> None:
    before, found, go = default_threads(), list[int](), threading.Event()

    class Few(ComputeThread):
        def work(self) -> None:
            go.wait(60)
            found.append(torch.get_num_threads())

    few = Few("few", before + 2)
    few.start()
    assert in_a_new_thread(torch.get_num_threads) == default_threads() == before
    go.set()
    few.join(60)
    assert found == [before + 2]


@pytest.mark.parametrize(
    ("owner", "start"),
    [("threading.Thread", "start"), ("adapters.peft.runtime.threads", "_set_torch_threads")],
)
def test_a_thread_that_cannot_begin_says_so(
    monkeypatch: pytest.MonkeyPatch, owner: str, start: str
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(f"{owner}.{start}", none)
    known = atexit._ncallbacks()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Worker("none")
    assert atexit._ncallbacks() == known  # type: ignore[attr-defined]


def test_what_takes_all_cores_is_done_by_one_thread_for_everybody() -> None:
    found = [
        lanes.run(lambda: (threading.current_thread().name, torch.get_num_threads()))
        for lanes in (Lanes(1, 3), Lanes(2, 3), Lanes(2, 3).single())
    ]
    assert found == [("all cores", 3)] * 3
    assert all_cores_thread(3) is all_cores_thread(3)
    assert all_cores_thread(3) is not all_cores_thread(2)


def test_what_goes_wrong_there_surfaces_and_others_go_on() -> None:
    lanes = Lanes(1, 2)
    with pytest.raises(ZeroDivisionError):
        lanes.run(lambda: 1 // 0)
    assert lanes.map(lambda lane, item: (lane, item), "ab") == [(0, "a"), (0, "b")]


def test_what_all_cores_do_for_a_worker_stops_when_it_is_closed() -> None:
    worker, lanes, begun = Worker("long"), Lanes(1, 2), threading.Event()

    def long() -> None:
        begun.set()
        while True:
            raise_if_closed()

    running = worker.submit(lambda: lanes.run(long))
    assert begun.wait(60)
    worker.close()
    with pytest.raises(RunFailed, match="closed while this call was running"):
        running.result(timeout=60)
    assert lanes.run(lambda: 1) == 1


def down(
    data: Sequence[Datum], logprobs: Sequence[Floats]
) -> tuple[float, list[Floats], dict[str, float]]:
    """A custom loss: the sum."""
    return (
        float(sum(each.sum() for each in logprobs)),
        [np.ones_like(each) for each in logprobs],
        {},
    )


def test_the_engine_computes_there(
    opened: Callable[..., Any], weighted: list[Datum], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = defaultdict[str, set[str]](set)

    def seen(owner: Any, name: str) -> None:
        true = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            found[f"{owner.__name__}.{name}"].add(threading.current_thread().name)
            return true(*given, **named)

        monkeypatch.setattr(owner, name, watched)

    for owner, name in (
        (machine, "load_base"),
        (Optimiser, "step"),
        (trainer, "own_slopes"),
        (serving, "Scheduler"),
        (FusedBody, "step"),
        (MicroBatchPass, "forward"),
    ):
        seen(owner, name)
    session = opened(threads=2)
    session.forward_backward(weighted[:1], loss=down).result()
    session.optim_step(Adam(0.01)).result()
    session.snapshot().result().sample(weighted[0].tokens, max_tokens=3).result()
    assert len(found) == 6
    assert all(names == {"all cores"} for names in found.values())


def test_a_worker_computes_little_itself() -> None:
    worker = Worker("little")
    assert worker.submit(torch.get_num_threads).result(timeout=60) == 1
    worker.close()
