"""A recipe on two processes: a run goes on when one of them is killed, or is resumed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.commands import kitchen, python_process
from tests.support.polling import wait_until
from tests.support.tiny_model import tiny_model

pytest.importorskip("torch")
pytest.importorskip("peft")

PROGRAM = b"adapters.peft.runtime.devices.process"
ATTEMPTS = 3  # of a run, which opens a lost session again twice
STEPS = 8
SETTINGS = (
    f"max_steps={STEPS}",
    "batch_size=4",
    "reading.limit=40",
    "eval_every=4",
    "save_every=2",
    "evaluation.max_tokens=8",
)
TWO = ("--set", "training.device=cpu", "--set", "training.threads=2", "--set", "training.devices=2")


def arguments(model: Path, name: str) -> tuple[str, ...]:
    return (
        *("run", "recipes.sl_basic", "--training", "peft", "--name", name),
        *(f"model=path:{model}", *SETTINGS, *TWO),
    )


def device_processes(starter: int) -> list[int]:
    """Return the running processes of further devices that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == starter and PROGRAM in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def recorded_steps(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def weights(folder: Path, name: str) -> bytes:
    return (folder / "runs" / name / "weights/final/adapter_model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
def test_a_run_survives_the_end_of_a_process(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "tiny", context=1024)
    whole = kitchen(tmp_path, *arguments(model, "whole"))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    with python_process(tmp_path, "-m", "kitchen.cli", *arguments(model, "killed")) as process:
        wait_until(lambda: recorded_steps(tmp_path / "runs/killed") >= 4, 120)
        for _ in range(ATTEMPTS):
            wait_until(lambda: bool(device_processes(process.pid)), 60)
            for number in device_processes(process.pid):
                os.kill(number, signal.SIGKILL)
            wait_until(lambda: not device_processes(process.pid), 60)
        out = "".join(process.communicate())
    assert process.returncode == 4, out
    assert out.count("device 1 (cpu): its process") == ATTEMPTS
    assert "kitchen resume killed" in out
    resumed = kitchen(tmp_path, "resume", "killed")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert weights(tmp_path, "killed") == weights(tmp_path, "whole")
