"""An adapter may implement one, two or all three of the training ports."""

from __future__ import annotations

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import sequence
from kitchen.artifacts.weights import find_weights
from kitchen.config.adapters import Kitchen
from kitchen.engine.plan import check
from kitchen.errors import BackendError
from kitchen.ports import (
    BlobStore,
    CheckpointStore,
    ModelCatalog,
    Sampler,
    TrainingClient,
    TrainingSession,
)
from kitchen.ports.training import training_ports
from kitchen.types import Checkpoint, Trainable
from recipes.sl_basic import SlBasic
from stages.train.publish import Publish
from stages.train.session import FinalWeights, OpenSession, SaveFinal


class ClientAlone:
    """A training client with the three methods that it must have."""

    def __init__(self, blobs: BlobStore) -> None:
        self._inner = FakeTraining(blobs)
        self.capabilities = self._inner.capabilities

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        return self._inner.open(model, trainable)

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        return self._inner.sampler(weights)


def test_an_adapter_is_offered_as_what_it_implements() -> None:
    whole, part = FakeTraining(), ClientAlone(FakeBlobs())
    assert training_ports(whole) == {
        TrainingClient: whole,
        ModelCatalog: whole,
        CheckpointStore: whole,
    }
    assert training_ports(part) == {TrainingClient: part}


def test_three_methods_are_enough_to_train() -> None:
    blobs = FakeBlobs()
    kitchen = Kitchen(ClientAlone(blobs), FakeDatasets(), None, blobs)
    recipe = SlBasic(model="any", dataset="sums", max_steps=2, eval_every=0)
    context = kitchen.cook(recipe, name="minimal")
    assert context[FinalWeights].step == 2


@pytest.mark.parametrize(
    "adapter, expected",
    [
        (ClientAlone(FakeBlobs()), ["CheckpointStore", "ClientAlone lists no checkpoints"]),
        (FakeTraining(), []),
    ],
    ids=["without", "with"],
)
def test_the_plan_names_the_port_to_implement(adapter: TrainingClient, expected: list[str]) -> None:
    step = sequence(OpenSession("m"), SaveFinal(), Publish("owner/name"))
    problems = check(step, training_ports(adapter)).problems
    found = [problem for problem in problems if "CheckpointStore" in problem]
    assert len(found) == bool(expected)
    assert all(text in found[0] for text in expected)


def test_weights_of_a_run_need_a_checkpoint_store() -> None:
    blobs = FakeBlobs()
    with pytest.raises(BackendError, match="CheckpointStore"):
        find_weights("run:dish", ClientAlone(blobs), blobs)
