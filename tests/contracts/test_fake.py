"""The fake adapters obey the laws of their ports."""

from __future__ import annotations

from pathlib import Path

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.hub import FakeHub
from adapters.fake.text_sampling import FakeSampling
from adapters.fake.training import FakeTraining
from kitchen.ports.training import TrainingClient
from kitchen.testing.blobs import BlobLaws
from kitchen.testing.datasets import Data, DatasetLaws
from kitchen.testing.hub import HubLaws
from kitchen.testing.text_sampling import TextSamplingLaws
from kitchen.testing.training import TrainingLaws
from kitchen.types import Checkpoint, FullWeights


class TestFakeTraining(TrainingLaws):
    rounding = agreement = 1e-6
    curvature = 0.03
    thorough = True

    def client(self, tmp_path: Path) -> FakeTraining:
        self.blobs = FakeBlobs()
        return FakeTraining(self.blobs)

    def corrupt(self, client: TrainingClient, checkpoint: Checkpoint) -> None:
        name = f"{checkpoint.path}/weights.npz"
        data = self.blobs.read(name)
        assert data
        self.blobs.write(name, data[:-1] + bytes([data[-1] ^ 1]))


class TestFakeFullWeights(TestFakeTraining):
    lora = FullWeights()


class TestFakeBlobs(BlobLaws):
    def store(self, tmp_path: Path) -> FakeBlobs:
        return FakeBlobs()


class TestFakeDatasets(DatasetLaws):
    def store(self, tmp_path: Path, data: Data) -> FakeDatasets:
        return FakeDatasets(data)


class TestFakeHub(HubLaws):
    def hub(self, tmp_path: Path) -> FakeHub:
        return FakeHub()


class TestFakeSampling(TextSamplingLaws):
    model = "openai:echo"

    def client(self, tmp_path: Path) -> FakeSampling:
        return FakeSampling()
