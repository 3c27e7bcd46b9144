"""Several adapters in one process, each with a server, a key, a project and metadata of its own."""

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
from tests.adapters.tinker.dishes import cooked
from tests.adapters.tinker.serving import MODELS, ByteTinker, Served

KEYS = {"NORTH_KEY": "tml-of-the-north", "SOUTH_KEY": "tml-of-the-south"}


@pytest.fixture
def kitchens(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[Served, FakeBlobs]]]:
    """A server for each key, and what it keeps."""
    made = {}
    for variable, key in KEYS.items():
        monkeypatch.setenv(variable, key)
        kept = FakeBlobs()
        made[variable] = (
            Served(TinkerServer(FakeTraining(kept), FakeHub(MODELS), kept).app(["tiny"], {}, key)),
            kept,
        )
    yield made
    for served, _ in made.values():
        served.stop()


def test_two_cook_at_the_same_time(kitchens: dict[str, tuple[Served, FakeBlobs]]) -> None:
    def cook(variable: str) -> list[float]:
        blobs = FakeBlobs()
        client = ByteTinker(blobs, kitchens[variable][0].url, key=variable)
        return [row["loss"] for row in cooked("sl_basic", client, blobs) if "learning_rate" in row]

    with ThreadPoolExecutor(2) as pool:
        north, south = pool.map(cook, KEYS)
    assert len(north) > 3
    assert north == south


def test_each_says_its_project_and_its_metadata(
    kitchens: dict[str, tuple[Served, FakeBlobs]],
) -> None:
    for variable, (served, kept) in kitchens.items():
        client = ByteTinker(
            FakeBlobs(),
            served.url,
            key=variable,
            project=f"of {variable}",
            metadata={"who": variable},
        )
        session = client.open("tiny", Lora(rank=4))
        session.facts()
        [found] = Records(kept).all(SessionRecord)
        session.close()
        assert (found.project, found.metadata) == (f"of {variable}", {"who": variable})


def test_a_key_opens_its_own_server_alone(kitchens: dict[str, tuple[Served, FakeBlobs]]) -> None:
    wrong = ByteTinker(FakeBlobs(), kitchens["NORTH_KEY"][0].url, key="SOUTH_KEY")
    with pytest.raises(KitchenError, match="refuses the API key") as refused:
        wrong.open("tiny", Lora(rank=4)).facts()
    assert "of-the-south" not in str(refused.value)
