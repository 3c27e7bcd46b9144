"""Processes of further devices: one that ends is an error, and none outlives its starter."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from kitchen.errors import BackendError, ConfigError, RunFailed, SessionLost
from kitchen.types import Adam, Datum, Floats, Lora
from tests.support.device_faults import exhaust_memory_in_sums, running_functions
from tests.support.one_model import OneModel
from tests.support.peft_sessions import trained
from tests.support.polling import wait_until

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def training(folder: Path) -> PeftTraining:
    """A separate client, whose processes are killed; each next session starts new ones."""
    return PeftTraining(
        OneModel(folder), FakeBlobs(), device="cpu", dtype="float32", threads=2, devices=2
    )


@pytest.fixture
def session(training: PeftTraining) -> Iterator[Any]:
    session = training.open("tiny", Lora(rank=4, seed=1))
    yield session
    session.close()


def process_of(session: PeftSession) -> int:
    """Return the id of the second device's process."""
    group: Any = session.submit(lambda trainer: vars(trainer)["group"]).result()
    [process] = group.processes
    return int(process)


class KillingLoss:
    """A loss that kills a process when it is called."""

    group = 1

    def __init__(self, process: int) -> None:
        self._process = process

    def __call__(self, data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        os.kill(self._process, signal.SIGKILL)
        return 0.0, [np.zeros(lp.shape) for lp in logprobs], {}


def assert_lost(process: int, call: Callable[[], object]) -> None:
    expected = rf"device 1 \(cpu\): its process {process} ended .*SIGKILL.*`kitchen resume RUN`"
    with pytest.raises(SessionLost, match=expected):
        call()


def test_a_process_killed_in_forward_backward(session: PeftSession, weighted: list[Datum]) -> None:
    process, sampler = process_of(session), session.snapshot().result()
    future = session.forward_backward(weighted, KillingLoss(process))
    assert_lost(process, future.result)
    scores = [sampler.logprobs(np.arange(5, 9)) for _ in range(3)]
    for score in scores:  # none of one batch is served, whichever device it belongs to
        assert_lost(process, score.result)
    sampler.close()
    with pytest.raises(SessionLost, match="an earlier one failed"):
        session.optim_step(Adam(0.01)).result()


class Failing:
    def __call__(self, data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        raise ValueError("no such reward")


def test_processes_end_with_a_client_whose_loss_failed(folder: Path, weighted: list[Datum]) -> None:
    client = PeftTraining(
        OneModel(folder), FakeBlobs(), device="cpu", dtype="float32", threads=2, devices=2
    )
    session: Any = client.open("tiny", Lora(rank=4, seed=1))
    process = process_of(session)
    with pytest.raises(ValueError, match="no such reward"):
        session.forward_backward(weighted, Failing()).result()
    session.close()
    del client, session
    wait_until(lambda: gc.collect() >= 0 and not _is_running(process))


def test_a_device_that_fails_before_a_sum_ends_the_step(
    session: PeftSession, weighted: list[Datum]
) -> None:
    trained(session, weighted)
    sampler = session.snapshot().result()
    session.submit(exhaust_memory_in_sums).result()
    session.forward_backward(weighted).result()
    with pytest.raises(
        BackendError, match=r"device 1: out of memory.*training\.checkpointing=true"
    ):
        session.optim_step(Adam(0.01)).result()
    with pytest.raises(RunFailed, match="an earlier one failed: device 1: out of memory"):
        session.forward(weighted).result()
    with pytest.raises(SessionLost, match=r"device 1: out of memory.*`kitchen resume RUN`") as lost:
        sampler.logprobs(np.arange(5, 9)).result()
    assert str(lost.value).count("device 1") == 1
    sampler.close()


def test_a_device_that_fails_before_the_first_sum(
    session: PeftSession, weighted: list[Datum]
) -> None:
    session.submit(exhaust_memory_in_sums).result()
    session.forward_backward(weighted).result()
    with pytest.raises(BackendError, match="device 1: out of memory"):
        session.optim_step(Adam(0.01)).result()
    assert "_connect" not in running_functions()  # device 0 no longer waits


@pytest.mark.slow
def test_a_process_killed_in_the_sum_of_gradients(
    session: PeftSession, weighted: list[Datum]
) -> None:
    trained(session, weighted)
    process = process_of(session)
    session.forward_backward(weighted).result()
    os.kill(process, signal.SIGSTOP)
    future = session.optim_step(Adam(0.01))
    wait_until(lambda: "_sum" in running_functions())
    os.kill(process, signal.SIGKILL)
    assert_lost(process, future.result)


@pytest.mark.slow
def test_a_process_killed_between_two_calls(
    training: PeftTraining, session: PeftSession, weighted: list[Datum]
) -> None:
    process = process_of(session)
    os.kill(process, signal.SIGKILL)
    assert_lost(process, session.forward(weighted).result)
    trained(training.open("tiny", Lora(rank=4, seed=1)), weighted)  # on new processes


PROGRAM = """
import sys
from pathlib import Path
from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from kitchen.types import Lora
from tests.support.one_model import OneModel
client = PeftTraining(
    OneModel(Path(sys.argv[1])), FakeBlobs(), device="cpu", dtype="float32", threads=2, devices=2
)
session = client.open("tiny", Lora(rank=4))
print(*session.submit(lambda trainer: trainer.group.processes).result(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_their_starter(
    folder: Path, number: signal.Signals, tmp_path: Path
) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
    )
    assert starter.stdout is not None
    assert starter.stderr is not None
    process = int(starter.stdout.readline())
    assert list(tmp_path.glob("kitchen-devices-*"))
    starter.send_signal(number)
    starter.wait()
    wait_until(lambda: not _is_running(process))
    assert not list(tmp_path.glob("kitchen-devices-*"))
    assert starter.stderr.read().count(b"Traceback") == (1 if number == signal.SIGINT else 0)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"devices": 0}, ConfigError, "devices is 0, but must be a whole number of at least 1"),
        ({"devices": True}, ConfigError, "devices is True"),
        ({"devices": "both"}, ConfigError, "devices is 'both'"),
        ({"devices": 2, "device": "cuda:1"}, ConfigError, "'cuda:1', which names one device"),
        ({"devices": 2, "device": "mps"}, ConfigError, "which names one device"),
        (
            {"devices": 3, "device": "cpu", "threads": 2},
            BackendError,
            "devices=3 needs 3 CPU threads, but this run uses 2; set training.threads=3, or .*=2",
        ),
    ],
)
def test_devices_that_cannot_be_used(
    settings: dict[str, Any], error: type[Exception], text: str, folder: Path
) -> None:
    with pytest.raises(error, match=text):
        PeftTraining(OneModel(folder), FakeBlobs(), **settings).find("tiny")


def test_all_devices_of_a_cpu_are_one() -> None:
    from adapters.peft.settings import Settings

    assert Settings(device="cpu", devices="all").device_count() == 1


@pytest.mark.parametrize(
    ("visible", "expected"), [("", "1"), ("4,7", "7"), ("GPU-a,GPU-b", "GPU-b")]
)
def test_a_process_sees_only_its_own_cuda_device(visible: str, expected: str) -> None:
    from adapters.peft.runtime.devices.peer import environment_of

    environment = environment_of("cuda:1", {"CUDA_VISIBLE_DEVICES": visible})
    assert environment["CUDA_VISIBLE_DEVICES"] == expected
    assert "CUDA_VISIBLE_DEVICES" not in environment_of("cpu", {})
