"""ensemble with a member behind a `kitchen serve` process that is killed in the middle."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.openai.client import OpenAISampling
from kitchen import Kitchen
from kitchen.config.order import Order
from kitchen.ports import Sampler
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from recipes.ensemble import Ensemble
from stages.ensemble.members import GIVE_UP
from tests.support.tinker_server import KEY
from tests.support.voters import DATA, Voters

pytestmark = pytest.mark.slow
MEMBER = "openai:large"
ANSWERED = 10  # requests before the server is killed


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = "packaged:smollm2-135m-instruct"  # the fake needs no more than its name
    served = ("--model", model, "--alias", f"large={model}", "--port", "0")
    options = ("--training", "fake", *served)
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "kitchen.cli", "serve", *options],
        env={**os.environ, "KITCHEN_SERVE_KEY": KEY, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class KillingSampling:
    """Kills the server before the request after the first ANSWERED ones."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, client: OpenAISampling, server: subprocess.Popen[str]) -> None:
        self.client, self.server, self.requests = client, server, 0

    def tokenizer(self, name: str) -> Any:
        return self.client.tokenizer(name)

    def sampler(self, weights: Any) -> Sampler:
        killing, sampler = self, self.client.sampler(weights)

        class KillingSampler:
            def sample(self, prompt: Any, **options: Any) -> Any:
                killing.requests += 1
                if killing.requests == ANSWERED + 1:
                    killing.server.kill()
                    killing.server.wait()
                return sampler.sample(prompt, **options)

            def close(self) -> None:
                sampler.close()

        return KillingSampler()  # type: ignore[return-value]


def test_member_whose_server_is_killed_is_counted(server: subprocess.Popen[str]) -> None:
    sampling = KillingSampling(
        OpenAISampling(FakeHub(), base_url=f"{address(server)}/v1", cache=False), server
    )
    recipe = Ensemble(
        members=("a-1", MEMBER, "b-1"),
        dataset="votes",
        splits=("held",),
        evaluation={"metric": "text", "max_tokens": 8},
        seconds=1,
        concurrency=1,
    )
    blobs = FakeBlobs()
    order = Order("recipes.ensemble:Ensemble", recipe.model_dump(mode="json"))
    kitchen = Kitchen(Voters(), DATA, None, blobs, sampling)
    execute(order, recipe, kitchen, "killed")
    rows = read_journal(blobs, "killed", "samples")
    failures = [row["votes"][1]["failed"] for row in rows]
    assert [not failure for failure in failures] == [True] * ANSWERED + [False] * 30
    assert sum(failure.startswith("not asked") for failure in failures) == 30 - 1 - GIVE_UP
    assert all(row["scores"]["exact_match"] == 1 for row in rows)
    metrics: dict[str, float] = {}
    for row in read_journal(blobs, "killed", "metrics"):
        metrics |= row
    assert metrics[f"held/failed/{MEMBER}"] == 30
    assert metrics["held/failed/a-1"] == metrics["held/unanswered"] == 0


def address(server: subprocess.Popen[str]) -> str:
    lines = []
    for line in server.stdout or ():
        lines.append(line)
        if (found := re.search(r"serving the Tinker API at (http://[\d.]+:\d+)", line)) is not None:
            return found[1]
    raise AssertionError("".join(lines))
