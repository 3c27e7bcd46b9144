"""A real model in `kitchen serve` as on-policy teacher of a student in another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from tests.support.commands import in_folder, output
from tests.support.tinker_server import KEY
from tests.support.tiny_model import byte_level_tokenizer, tiny_model

pytestmark = pytest.mark.slow
PEFT = ("--set", "training.device=cpu", "--set", "training.dtype=float32")
SETTINGS = (
    *("recipes.distillation", "model=path:student", "dataset=q.jsonl", "steps=4", "batch_size=4"),
    *("group=2", "playing.max_tokens=8", "reading.held_out=0.25", "evaluation.max_tokens=8"),
    *("learning_rate=0.01", *PEFT),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    tiny_model(tmp_path / "student", seed=0)
    tiny_model(tmp_path / "teacher", seed=1)
    rows = [{"prompt": f"to be {at}", "completion": f"or not to be {at}"} for at in range(16)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with in_folder(tmp_path):
        yield tmp_path


@pytest.fixture
def url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of `kitchen serve`, which has the teacher under the name `large`."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    options = ("--model", "path:teacher", "--alias", "large=path:teacher", "--port", "0", *PEFT)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "kitchen.cli", "serve", *options],
        cwd=folder,
        env={**os.environ, "KITCHEN_SERVE_KEY": KEY, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            yield f"{address(server)}/v1"
        finally:
            server.kill()


def address(server: subprocess.Popen[str]) -> str:
    lines = []
    for line in server.stdout or ():
        lines.append(line)
        if (found := re.search(r"serving the Tinker API at (http://[\d.]+:\d+)", line)) is not None:
            return found[1]
    raise AssertionError("".join(lines))


def curve(folder: Path, run: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of all stages by name, but for durations."""
    for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines():
        for name, value in json.loads(line).items():
            if isinstance(value, float) and name != "seconds" and "_per_s" not in name:
                yield name, value


@pytest.mark.parametrize("divergence", ["reverse", "forward"])
def test_the_curve_is_that_of_a_local_teacher(folder: Path, url: str, divergence: str) -> None:
    settings = (*SETTINGS, f"divergence={divergence}")
    output(0, "run", *settings, "teacher=path:teacher", "--name", "local")
    remote = ("--set", f"sampling.base_url={url}", "--set", "sampling.tokenizer=path:student")
    output(0, "run", *settings, "teacher=openai:large", *remote, "--name", "remote")
    local, elsewhere = list(curve(folder, "local")), list(curve(folder, "remote"))
    assert [name for name, _ in elsewhere] == [name for name, _ in local]
    assert {"kl", "kl_teacher" if divergence == "reverse" else "teacher_mass"} <= {*dict(local)}
    values = [value for _, value in local]
    assert [value for _, value in elsewhere] == pytest.approx(values, rel=0, abs=1e-4)


def test_a_teacher_with_another_tokenizer_is_refused(folder: Path, url: str) -> None:
    byte_level_tokenizer(folder / "teacher", ["an entirely different corpus of words " * 9], 300)
    remote = ("--set", f"sampling.base_url={url}", "teacher=openai:large")
    named = output(2, "check", *SETTINGS, *remote, "--set", "sampling.tokenizer=path:teacher")
    assert "has another tokenizer than the model that is trained" in named
    unnamed = ("--set", "sampling.tokenizer=path:student", "--name", "wrong")
    text = output(4, "run", *SETTINGS, *remote, *unnamed)
    assert "large on" in text
    assert "another tokenizer than sampling.tokenizer=path:student" in text
