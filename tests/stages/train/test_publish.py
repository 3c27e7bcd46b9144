"""Publication of trained weights, and recovery after it fails."""

from __future__ import annotations

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.local.hub import LocalHub
from kitchen import Kitchen, Observer, StageDone, Step, Table, sequence
from kitchen.artifacts.publish import NotPublished, publish
from kitchen.artifacts.weights import find_weights
from kitchen.config.order import Order
from kitchen.engine.plan import PlanError
from kitchen.engine.preview import verify
from kitchen.errors import ConfigError
from kitchen.ports import HubClient
from kitchen.runs.execute import execute
from kitchen.runs.store import read_run
from recipes.sl_basic import SlBasic
from stages.train.publish import Publish

CHATS = [
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "{}"}]}
] * 8
DATA = FakeDatasets({"chats": {"train": CHATS, "held": CHATS[:2]}})


class Soup(SlBasic):
    """Trains and publishes in one step of the outermost sequence."""

    def workflow(self) -> Step:
        return sequence(sequence(super().workflow(), Publish("me/soup")))


class KeepsToItself(FakeTraining):
    """A backend that exports nothing."""

    capabilities = FakeTraining.capabilities - {"export"}


class PublishedTables(Observer):
    def __init__(self) -> None:
        self.tables: list[Table] = []

    def stage_done(self, event: StageDone) -> None:
        self.tables += [each for each in event.published if isinstance(each, Table)]


def served(
    blobs: FakeBlobs, hub: HubClient, training: FakeTraining | None = None
) -> PublishedTables:
    recipe = Soup(model="tiny", dataset="chats", batch_size=2, max_steps=4, eval_every=0)
    order, observer = Order("tests:Soup", recipe.model_dump(mode="json")), PublishedTables()
    execute(
        order,
        recipe,
        Kitchen(training or FakeTraining(blobs), DATA, hub, blobs),
        "dish",
        (observer,),
    )
    return observer


def test_weights_and_model_card_are_published() -> None:
    blobs, hub = FakeBlobs(), FakeHub()
    observer = served(blobs, hub)
    assert observer.tables[-1].rows == (("me/soup", "memory://me/soup"),)
    assert hub.files("me/soup") == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    card = hub.file("me/soup", "README.md").read_text()
    assert "| held | 2 | exact match |" in card, "the evaluation of this very run"
    assert read_run(blobs, "dish")["facts"]["model.sha256"] in card


def test_publishing_is_idempotent() -> None:
    blobs, hub = FakeBlobs(), FakeHub()
    served(blobs, hub)
    first = {path: hub.file("me/soup", path).read_bytes() for path in hub.files("me/soup")}
    training = FakeTraining(blobs)
    publish(find_weights("run:dish", training, blobs), "me/soup", training, hub, blobs)
    assert {path: hub.file("me/soup", path).read_bytes() for path in hub.files("me/soup")} == first


def test_failed_publication_can_be_resumed() -> None:
    blobs, refuses = FakeBlobs(), LocalHub()
    with pytest.raises(NotPublished) as error:
        served(blobs, refuses)
    assert error.value.exit_code == 4
    assert "the local hub cannot publish 'me/soup'" in str(error.value)
    assert str(error.value).endswith("nothing is lost")
    record = read_run(blobs, "dish")
    assert (record["status"], record["exit_code"]) == ("failed", 4)
    training, hub = FakeTraining(blobs), FakeHub()
    publish(find_weights("run:dish", training, blobs), "me/pushed", training, hub, blobs)
    served(blobs, hub)
    assert read_run(blobs, "dish")["status"] == "completed"
    pushed, resumed = (
        hub.file(name, "adapter_model.safetensors").read_bytes()
        for name in ("me/pushed", "me/soup")
    )
    assert pushed == resumed


def test_bad_repo_is_found_before_the_run() -> None:
    blobs = FakeBlobs()
    with pytest.raises(
        PlanError, match=r"Publish\(repo='me/soup'\) needs 'export', which KeepsToItself lacks"
    ):
        served(blobs, FakeHub(), KeepsToItself(blobs))
    assert blobs.list() == []
    for repo in ("soup", "me/my soup", "me/soup@v1", "path:soup"):
        [problem] = verify(Publish(repo), {})
        assert isinstance(problem, ConfigError)
        assert "OWNER/NAME" in str(problem)
