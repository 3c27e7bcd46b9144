"""The laws of executors: subclass `ExecutorLaws`, define `executor`, and run pytest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kitchen.errors import KitchenError
from kitchen.experiments.executors import Executor, Job

# ends with 130 on SIGTERM, after it has written how often it was asked
_POLITE = """
import pathlib, signal, sys
asked = 0
def ask(*_):
    global asked
    asked += 1
    pathlib.Path("asked").write_text(str(asked))
signal.signal(signal.SIGTERM, ask)
pathlib.Path("ready").write_text("")
while asked < int(sys.argv[1]):
    signal.pause()
sys.exit(130)
"""
_ENVIRONMENT = """
import os, pathlib, sys
found = [os.environ["POINT"], os.getcwd(), str("PATH" in os.environ), sys.stdin.read()]
pathlib.Path("found").write_text(chr(10).join(found))
"""
_MEET = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).write_text("")
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""


class ExecutorLaws:
    """A command runs here or elsewhere as it would in a shell, and can be asked to stop."""

    patience = 120.0  # seconds until a command must have ended

    def executor(self) -> Executor:
        """Return the executor under test, which has room for two commands at a time."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which executor the laws are for:\n"
            "    def executor(self) -> Executor:\n"
            "        return MyExecutor()"
        )

    @pytest.fixture(autouse=True)
    def _in_a_new_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def start(self, program: str, *arguments: str, **environment: str) -> Job:
        """Start a program in Python."""
        return self.executor().start([sys.executable, "-c", program, *arguments], environment)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, "the executor is too slow, or does not start"
            time.sleep(0.01)

    def code(self, job: Job) -> int:
        """Wait until a job has ended, and return its exit code."""
        self.wait(lambda: job.exit_code() is not None)
        code = job.exit_code()
        assert code is not None
        return code

    @pytest.mark.parametrize("code", [0, 3, 130])
    def test_exit_codes_are_returned(self, code: int) -> None:
        job = self.start(f"raise SystemExit({code})")
        assert self.code(job) == code
        assert job.exit_code() == code  # again

    def test_a_signal_is_a_negative_code(self) -> None:
        assert self.code(self.start("import os; os.kill(os.getpid(), 9)")) == -9

    def test_a_missing_program_is_an_error(self) -> None:
        try:
            code = self.code(self.executor().start(["no-such-program"], {}))
        except (OSError, KitchenError):
            return
        assert code != 0

    @pytest.mark.parametrize("times", [1, 2])
    def test_every_request_to_stop_is_received(self, tmp_path: Path, times: int) -> None:
        job = self.start(_POLITE, str(times))
        self.wait((tmp_path / "ready").exists)
        for number in range(1, times + 1):
            assert job.exit_code() is None
            job.stop()
            self.wait(lambda number=number: self.asked(tmp_path) == str(number))  # type: ignore[misc]
        assert self.code(job) == 130
        job.stop()  # it has ended, which is no error
        assert job.exit_code() == 130

    def asked(self, folder: Path) -> str:
        file = folder / "asked"
        return file.read_text() if file.exists() else ""

    def test_variables_and_folder_are_passed(self, tmp_path: Path) -> None:
        environment: Mapping[str, str] = {"POINT": "a b\t'½"}
        assert self.code(self.start(_ENVIRONMENT, **environment)) == 0
        found = (tmp_path / "found").read_text()
        assert found.split("\n") == [environment["POINT"], str(tmp_path), "True", ""]

    def test_output_is_dropped(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Output beyond the size of a pipe does not block, and does not reach the terminal."""
        program = "import sys; sys.stdout.write('o' * 10**6); sys.stderr.write('e' * 10**6)"
        assert self.code(self.start(program)) == 0
        shown = capfd.readouterr()
        assert "ooo" not in shown.out
        assert "eee" not in shown.err

    def test_two_commands_run_at_a_time(self) -> None:
        jobs = [self.start(_MEET, "one", "other"), self.start(_MEET, "other", "one")]
        assert [self.code(job) for job in jobs] == [0, 0]
