"""Several clients in one process, each with its own server, key, project and metadata."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.server.records import Records, SessionRecord
from adapters.server.serve import TinkerServer
from kitchen.errors import KitchenError
from kitchen.types import Lora
from tests.support.fake_runs import run_recipe
from tests.support.tinker_server import MODELS, ByteTinker, RunningServer

KEYS = {"NORTH_KEY": "tml-of-the-north", "SOUTH_KEY": "tml-of-the-south"}


@pytest.fixture
def servers(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, tuple[RunningServer, FakeBlobs]]]:
    """A server for each key, with its blob store."""
    running = {}
    for variable, key in KEYS.items():
        monkeypatch.setenv(variable, key)
        server_blobs = FakeBlobs()
        running[variable] = (
            RunningServer(
                TinkerServer(FakeTraining(server_blobs), FakeHub(MODELS), server_blobs).app(
                    ["tiny"], {}, key
                )
            ),
            server_blobs,
        )
    yield running
    for served, _ in running.values():
        served.stop()


@pytest.mark.slow
def test_two_runs_train_at_the_same_time(
    servers: dict[str, tuple[RunningServer, FakeBlobs]],
) -> None:
    def cook(variable: str) -> list[float]:
        blobs = FakeBlobs()
        client = ByteTinker(blobs, servers[variable][0].url, key=variable)
        return [
            row["loss"] for row in run_recipe("sl_basic", client, blobs) if "learning_rate" in row
        ]

    with ThreadPoolExecutor(2) as pool:
        north, south = pool.map(cook, KEYS)
    assert len(north) > 3
    assert north == south


def test_each_sends_its_project_and_metadata(
    servers: dict[str, tuple[RunningServer, FakeBlobs]],
) -> None:
    for variable, (served, server_blobs) in servers.items():
        client = ByteTinker(
            FakeBlobs(),
            served.url,
            key=variable,
            project=f"of {variable}",
            metadata={"who": variable},
        )
        session = client.open("tiny", Lora(rank=4))
        session.facts()
        [record] = Records(server_blobs).all(SessionRecord)
        session.close()
        assert (record.project, record.metadata) == (f"of {variable}", {"who": variable})


def test_key_of_another_server_is_rejected(
    servers: dict[str, tuple[RunningServer, FakeBlobs]],
) -> None:
    wrong = ByteTinker(FakeBlobs(), servers["NORTH_KEY"][0].url, key="SOUTH_KEY")
    with pytest.raises(KitchenError, match="API key") as rejected:
        wrong.open("tiny", Lora(rank=4)).facts()
    assert "of-the-south" not in str(rejected.value)
