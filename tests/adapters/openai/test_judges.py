"""Judges behind OpenAI's API: scores and preferences, faults, and resumed runs."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.openai.client import OpenAISampling
from kitchen.errors import RunFailed
from kitchen.runs.record import OtherMachine
from kitchen.runs.store import read_run
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from stages.chat.messages import Message
from stages.judge.judge import Judge, JudgeConfig
from tests.adapters.openai.conftest import Connect
from tests.support.killing import KillAt
from tests.support.openai_server import Body, OpenAIServer
from tests.support.recording import RecordingObserver, numbers
from tests.support.tinker_server import KEY as SERVE_KEY
from tests.support.tinker_server import serving

ROWS = [{"prompt": f"Name dish {n}."} for n in range(4)]
DATA = FakeDatasets({"dishes": {"train": ROWS, "held": ROWS[:2]}})
SIZES = {
    "model": "any",
    "dataset": "dishes",
    "batch_size": 2,
    "group": 4,
    "steps": 3,
    "save_every": 2,
    "learning_rate": 0.1,
    "playing": {"max_tokens": 4},
}
MODEL = "openai:clever-large"
RUBRIC = Rl(**SIZES, reward="rubric", rubric={"model": MODEL})
LETTERS: Any = {"says": "letter", "epochs": 0, "draws": 2, "temperature": 1.0}


def judged(body: Body, index: int) -> str:
    """Reply with a score or a letter that follows from the whole prompt and the seed."""
    text = body["messages"][-1]["content"]
    number = sum(map(ord, text)) + (body.get("seed") or 0)
    return "AB"[number % 2] if "Reply with A or B" in text else f"Hm.\nScore: {number % 11}"


def ports(connect: Connect, server: OpenAIServer, blobs: FakeBlobs) -> dict[str, Any]:
    training = FakeTraining(blobs)
    return {
        "training": training,
        "datasets": DATA,
        "blobs": blobs,
        "sampling": connect(server),
    }


def test_a_killed_run_asks_no_judge_twice(connect: Connect) -> None:
    blobs, server = FakeBlobs(), OpenAIServer(write=judged)
    options = ports(connect, server, blobs)
    with pytest.raises(RunFailed, match="Killed"):
        kitchen.run(RUBRIC, **options, name="killed", observers=[KillAt(14)])
    resumed = kitchen.resume("killed", **options).result()
    assert max(server.answered.values()) == 1
    other = FakeBlobs()
    whole = kitchen.run(RUBRIC, **ports(connect, OpenAIServer(write=judged), other), name="killed")
    assert numbers(blobs, resumed) == numbers(other, whole)
    assert 0 < numbers(other, whole)[0][-1]["held/reward_before"] < 1


def test_another_server_needs_consent_on_resume(connect: Connect) -> None:
    blobs, server = FakeBlobs(), OpenAIServer(write=judged)
    options = ports(connect, server, blobs)
    with pytest.raises(RunFailed, match="Killed"):
        kitchen.run(RUBRIC, **options, name="killed", observers=[KillAt(14)])
    address = read_run(blobs, "killed")["facts"]["machine.rubric.server"]
    assert address == options["sampling"].server_of(MODEL)
    elsewhere = ports(connect, OpenAIServer(write=judged), blobs)
    with pytest.raises(OtherMachine, match=rf"machine.rubric.server = '{address}'.*same model"):
        kitchen.resume("killed", **elsewhere).result()
    with pytest.raises(RunFailed, match="Killed"):
        kitchen.resume("killed", **elsewhere, other_machine=True, observers=[KillAt(14)]).result()
    now = read_run(blobs, "killed")["facts"]["machine.rubric.server"]
    assert now == elsewhere["sampling"].server_of(MODEL) != address
    with pytest.raises(OtherMachine, match=rf"last had machine.rubric.server = '{now}'"):
        kitchen.resume("killed", **options).result()


def test_recorded_addresses_have_no_credentials() -> None:
    adapter = OpenAISampling(FakeHub(), base_url="http://cook:pa55word@gpu-box:8000/v1")
    address = adapter.server_of(MODEL)
    assert "gpu-box:8000/v1" in address
    assert "pa55word" not in address


def test_a_refused_reply_is_asked_for_again(connect: Connect) -> None:
    server = OpenAIServer("busy", "refusal", write=judged)
    adapter = connect(server)
    sampler, tokenizer = adapter.sampler(MODEL), adapter.tokenizer(MODEL)
    judge = Judge(sampler, tokenizer, JudgeConfig(**LETTERS))
    request = (Message("user", "Name a dish."),)
    compared = asyncio.run(judge.compare(request, "soup", "stew"))
    assert compared.value is not None
    replies = list(chain.from_iterable(each.replies for each in compared.judgements))
    assert [reply.text for reply in replies if reply.score is None] == ["I cannot help with that."]
    assert len(replies) == 5
    again = [body for body in server.bodies if "An earlier reply" in str(body["messages"])]
    assert "or refused" in again[0]["messages"][-1]["content"]


def test_a_judge_in_kitchen_serve_is_as_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has a run whose weights reply A or B, by the seed."""
    monkeypatch.setenv("OPENAI_API_KEY", SERVE_KEY)
    blobs = FakeBlobs()
    letters = [{"prompt": f"{at}", "completion": "AB"[at % 2]} for at in range(12)]
    data = FakeDatasets({"letters": {"train": letters}, "dishes": {"train": ROWS, "held": ROWS}})
    taught = SlBasic(
        model="tiny",
        dataset="letters",
        batch_size=12,
        epochs=40,
        learning_rate=0.05,
        eval_every=0,
        evaluation={"metric": "loss"},
        reading={"held_out_rows": 1},
    )
    options = {"training": FakeTraining(blobs), "datasets": data, "blobs": blobs}
    kitchen.run(taught, **options, name="letters")
    local, elsewhere = RecordingObserver(), RecordingObserver()

    def rlhf(judge: str) -> Rlhf:
        return Rlhf(**{**SIZES, "model": "run:letters"}, judge={**LETTERS, "model": judge})

    kitchen.run(rlhf("run:letters"), **options, observers=[local])
    with serving(FakeTraining(blobs), blobs) as server:
        options["sampling"] = OpenAISampling(FakeHub(), base_url=f"{server.url}/v1")
        kitchen.run(rlhf("openai:run:letters"), **options, observers=[elsewhere])
    assert len(set(local.series("reward"))) > 1
    for metric in ("reward", "judge/replies", "held/preferred"):
        assert elsewhere.series(metric) == local.series(metric) != []
