"""The Tinker adapter obeys the laws of its port, through the SDK and `kitchen serve`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.local.hub import LocalHub
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.training import TrainingLaws
from kitchen.types import Checkpoint
from tests.support.tinker_server import KEY, ByteTinker, RunningServer, serving


@pytest.fixture(scope="module", autouse=True)
def _key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", KEY)
        patch.setenv("TINKER_TELEMETRY", "0")
        yield


LAWS_PER_CLIENT = 10  # sessions stay open, and a server allows 64 models per client


class Laws(TrainingLaws):
    """The laws with a shared server, and checkpoints whose index entry can be corrupted."""

    server: RunningServer
    blobs: FakeBlobs
    clients: list[tuple[TrainingClient, TrainingSession]]
    laws: Iterator[int]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _shared(cls, _server: None) -> Iterator[None]:
        cls.clients, cls.laws = [], count()
        yield
        for _, holder in cls.clients:
            holder.close()

    @pytest.fixture
    def training(self, tmp_path: Path) -> TrainingClient:
        """A client shared by several laws, with a session that keeps its connection open."""
        if next(self.laws) % LAWS_PER_CLIENT == 0:
            for _, holder in self.clients:
                holder.close()
            client = self.client(tmp_path)
            self.clients[:] = [(client, client.open(self.model, self.lora))]
        return self.clients[0][0]

    def corrupt(self, client: TrainingClient, checkpoint: Checkpoint) -> None:
        name = f"{checkpoint.path}/tinker.json"
        data = self.blobs.read(name)
        assert data
        self.blobs.write(name, data.replace(b"tinker://", b"tinker:/-"))


class TestFakeServer(Laws):
    rounding = agreement = 1e-5  # log-probabilities travel in float32
    curvature = 0.03

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _server(cls) -> Iterator[None]:
        server_blobs = FakeBlobs()
        with serving(FakeTraining(server_blobs), server_blobs) as cls.server:
            yield

    def client(self, tmp_path: Path) -> TrainingClient:
        type(self).blobs = FakeBlobs()
        return ByteTinker(self.blobs, self.server.url)

    def opened_again(self, training: TrainingClient, folder: Path) -> Sampler:
        return FakeTraining().sampler(f"path:{folder}")


@pytest.mark.slow
class TestHedgedServer(TestFakeServer):
    """Every request to sample is sent twice."""

    def client(self, tmp_path: Path) -> TrainingClient:
        type(self).blobs = FakeBlobs()
        return ByteTinker(self.blobs, self.server.url, hedge="fixed:0.001", hedge_extra=1.0)


@pytest.mark.slow
class TestEngineServer(Laws):
    """A server of the local engine, with a Llama of two layers."""

    hub: LocalHub
    unknown_model = "path:no-such-folder"
    context = 256

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        from adapters.peft.client import PeftTraining
        from tests.support.tiny_model import tiny_model

        cls.hub = LocalHub(cache=str(tmp_path_factory.mktemp("cache")))
        cls.model = f"path:{tiny_model(tmp_path_factory.mktemp('tiny'), context=cls.context)}"
        server_blobs = FakeBlobs()
        engine = PeftTraining(cls.hub, server_blobs, device="cpu", dtype="float32", threads=2)
        with serving(engine, server_blobs, cls.hub, [cls.model]) as cls.server:
            yield

    def client(self, tmp_path: Path) -> TrainingClient:
        from adapters.tinker.client import TinkerTraining

        type(self).blobs = FakeBlobs()
        return TinkerTraining(self.hub, self.blobs, base_url=self.server.url, server="kitchen")

    def opened_again(self, training: TrainingClient, folder: Path) -> Sampler:
        from adapters.peft.client import PeftTraining

        return PeftTraining(self.hub, FakeBlobs(), device="cpu", dtype="float32").sampler(
            f"path:{folder}"
        )
