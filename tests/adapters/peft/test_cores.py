"""Which thread computes with how many of torch's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from adapters.peft.cores import all_cores, use_threads
from adapters.peft.lanes import Lanes
from adapters.peft.worker import Worker, stop_if_closed
from kitchen.errors import RunFailed

T = TypeVar("T")


def in_a_new_thread(work: Callable[[], T]) -> T:
    found = list[T]()
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    return found[0]


def test_a_thread_uses_as_many_as_it_wants_and_others_as_many_as_before() -> None:
    before = torch.get_num_threads()

    def few() -> int:
        use_threads(before + 2)
        return torch.get_num_threads()

    assert in_a_new_thread(few) == before + 2
    assert torch.get_num_threads() == before
    assert in_a_new_thread(torch.get_num_threads) == before


def test_what_takes_all_cores_is_done_by_one_thread_for_everybody() -> None:
    found = [lanes.together(lambda: (threading.current_thread().name, torch.get_num_threads()))
             for lanes in (Lanes(1, 3), Lanes(2, 3), Lanes(2, 3).one())]
    assert found == [("all cores", 3)] * 3
    assert all_cores(3) is all_cores(3)
    assert all_cores(3) is not all_cores(2)


def test_what_goes_wrong_there_surfaces_and_others_go_on() -> None:
    lanes = Lanes(1, 2)
    with pytest.raises(ZeroDivisionError):
        lanes.together(lambda: 1 // 0)
    assert lanes.each(lambda lane, item: (lane, item), "ab") == [(0, "a"), (0, "b")]


def test_what_all_cores_do_for_a_worker_stops_when_it_is_closed() -> None:
    worker, lanes, begun = Worker("long"), Lanes(1, 2), threading.Event()

    def long() -> None:
        begun.set()
        while True:
            stop_if_closed()

    running = worker.submit(lambda: lanes.together(long))
    assert begun.wait(60)
    worker.close()
    with pytest.raises(RunFailed, match="closed while this call was running"):
        running.result(timeout=60)
    assert lanes.together(lambda: 1) == 1


def test_a_worker_computes_little_itself() -> None:
    worker = Worker("little")
    assert worker.submit(torch.get_num_threads).result(timeout=60) == 1
    worker.close()
