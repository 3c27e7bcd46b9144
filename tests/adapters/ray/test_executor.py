"""Ray executor: its laws on a real cluster of this machine, and sweeps whose workers are killed."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'crucible-kitchen[ray]'")

if sys.platform != "linux":
    pytest.skip(
        "points on Ray need Linux, where they end with their worker", allow_module_level=True
    )

import ray

from adapters.ray.executor import RayExecutor
from kitchen.errors import BackendError, ConfigError
from kitchen.experiments.executors import Executor
from kitchen.testing.executors import ExecutorLaws


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("gpu=1", "did you mean 'gpus'"),
        ("cpus=0", "greater than 0"),
        ("cpus", "valid integer"),
    ],
)
def test_wrong_options_are_refused(options: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        RayExecutor(options)


def test_a_point_has_a_thread_per_cpu() -> None:
    assert RayExecutor("cpus=4 gpus=0.5").threads(8) == 4
    assert RayExecutor().threads(8) == 1


@pytest.fixture(scope="class")
def cluster() -> Iterator[None]:
    """A cluster of this machine with two CPUs, started by the executor."""
    os.environ.pop("RAY_ADDRESS", None)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestRay(ExecutorLaws):
    def executor(self) -> Executor:
        return RayExecutor()

    def test_a_point_ends_with_its_worker(self, tmp_path: Path) -> None:
        program = "import os, time; open('pids', 'w').write(f'{os.getpid()} {os.getppid()} '); "
        job = self.start(program + "time.sleep(600)")
        self.wait(lambda: bool(re.fullmatch(r"\d+ \d+ ", self.pids(tmp_path))))
        point, worker = map(int, self.pids(tmp_path).split())
        os.kill(worker, signal.SIGKILL)
        assert self.code(job) == -9
        self.wait(lambda: not is_alive(point))

    def test_a_waiting_point_can_be_stopped(self, tmp_path: Path) -> None:
        program = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"
        running = [self.start(program, name) for name in ("one", "other")]
        self.wait(lambda: (tmp_path / "one").exists() and (tmp_path / "other").exists())
        waiting = self.start("")
        waiting.stop()
        assert self.code(waiting) == -9
        for job in running:
            job.stop()
        assert [self.code(job) for job in running] == [-15, -15]

    def test_signal_handlers_stay(self) -> None:
        RayExecutor().prepare()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_too_large_points_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="never starts, for this machine has"):
            RayExecutor("cpus=1000").prepare()

    def pids(self, folder: Path) -> str:
        file = folder / "pids"
        return file.read_text() if file.exists() else ""


def test_an_unreachable_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(BackendError, match=r"RAY_ADDRESS=127\.0\.0\.1:1: "):
        RayExecutor().prepare()


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that only its parent must still reap does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
