"""Commands on models of another server: sample, chat, eval, and off-policy distillation."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from tests.support.commands import in_folder, output, python_process
from tests.support.openai_server import OpenAIServer, serving_openai
from tests.support.polling import LineReader, wait_until

MODEL = "openai:clever-large"
FAKE = ("--training", "fake", "--hub", "fake")
DISTIL = (
    *("recipes.distillation_off_policy", *FAKE, "model=fake/bigram", f"teacher={MODEL}"),
    *("dataset=q.jsonl", "reading.held_out=0.25", "max_steps=3", "batch_size=4"),
)
ROWS = 24


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    rows = [{"prompt": f"what is {at} + 1?", "completion": str(at + 1)} for at in range(ROWS)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with in_folder(tmp_path):
        yield tmp_path


def set_url(url: str) -> tuple[str, str]:
    return "--set", f"sampling.base_url={url}"


def teacher_answers(folder: Path, run: str) -> list[str]:
    lines = (folder / "runs" / run / "samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows if row["when"] == "teacher answer"]


def test_weights_commands_take_its_models(folder: Path) -> None:
    with serving_openai(OpenAIServer()) as url:
        adapters = (*FAKE, *set_url(url))
        assert "on 'hi' with seed 0, choice 1" in output(
            0, "sample", MODEL, "hi", "--n", "2", *adapters
        )
        chatted = output(0, "chat", MODEL, *adapters, typed="first\nsecond\n")
        assert "on 'first' with seed 1" in chatted
        assert "on 'second' with seed 2" in chatted
        options = ("--dataset", "q.jsonl", *adapters)
        assert "0 of 24 answers" in output(0, "eval", MODEL, "evaluation.metric=text", *options)
        assert "text only" in output(2, "eval", MODEL, *options)
        assert "'clever-large'" in output(4, "sample", "openai:clever-lage", "hi", *adapters)


def test_check_online_asks_for_the_model(folder: Path) -> None:
    with serving_openai(OpenAIServer()) as url:
        asked = ("check", *DISTIL, *set_url(url), "--online")
        assert "has clever-large, and is used for text" in output(0, *asked)
        assert "'clever-small'" in output(4, *asked, "teacher=openai:clever-smal")


def test_the_plan_refuses_a_teacher_of_text(folder: Path) -> None:
    settings = ("model=fake/bigram", f"teacher={MODEL}", "dataset=q.jsonl")
    url = set_url("http://127.0.0.1:9/v1")
    for command in ("check", "run"):
        text = output(2, command, "recipes.distillation", *FAKE, *settings, *url)
        assert "text only" in text
    assert not (folder / "runs").exists()


@pytest.mark.slow
def test_a_killed_run_resumes_without_paying_twice(folder: Path) -> None:
    numbers = count()
    server = OpenAIServer(*[""] * 7, *["held"] * 9, write=lambda *_: f"answer {next(numbers)}")
    with serving_openai(server) as url:
        adapters = (*set_url(url), "--set", "sampling.concurrency=3")
        with python_process(folder, "-m", "kitchen.cli", "run", *DISTIL, "--name", "a", *adapters):
            wait_until(lambda: len(server.bodies) == 10)  # and is killed at the end of the block
        answered = list(server.answered)
        assert len(answered) == 7
        server.faults.clear()
        server.gate.set()
        output(0, "resume", "a")
        for request in answered:
            assert server.answered[request] == 1
        asked = len(server.bodies)
        assert asked <= 12 + 3, "only the requests that the kill interrupted"
        output(0, "run", *DISTIL, "--name", "b", *adapters)
        assert len(server.bodies) == asked
    assert teacher_answers(folder, "a") == teacher_answers(folder, "b")
    assert len(teacher_answers(folder, "a")) == 12


@pytest.mark.slow
def test_a_run_that_fails_waits_for_paid_answers(folder: Path) -> None:
    server = OpenAIServer("held", "no_key", *["held"] * 20)
    with serving_openai(server) as url:
        adapters = (*set_url(url), "--set", "sampling.concurrency=2")
        command = ("-m", "kitchen.cli", "run", *DISTIL, *adapters)
        with python_process(folder, *command, stderr=subprocess.STDOUT) as process:
            LineReader(process.stdout).wait_for("failed in")
            server.gate.set()
            assert process.wait(60) == 4
    assert len(server.bodies) <= 3, "requests that were not sent are dropped"
    kept = list((folder / "cache" / "openai").glob("??/*.json"))
    assert len(kept) == len(server.answered) >= 1


def test_fields_of_requests_are_a_mapping_on_the_command_line(folder: Path) -> None:
    server = OpenAIServer()
    with serving_openai(server) as url:
        fields = "sampling.fields={temperature: null, options: {effort: low}, 'user': me}"
        output(0, "sample", MODEL, "hi", *FAKE, *set_url(url), "--set", fields)
    [body] = server.bodies
    assert "temperature" not in body
    assert (body["options"], body["user"]) == ({"effort": "low"}, "me")
