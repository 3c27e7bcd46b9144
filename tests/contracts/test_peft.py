"""The local PEFT adapter obeys the laws of its port, on a generated Llama with two layers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from kitchen.errors import ConfigError
from kitchen.ports.training import CheckpointStore, TrainingClient, TrainingSession
from kitchen.testing.refusals import TRAINABLES
from kitchen.testing.subject import Open
from kitchen.testing.training import TrainingLaws
from kitchen.types import Adam, Checkpoint, FullWeights, Lora
from tests.support.tiny_model import tiny_gemma2, tiny_model
from tests.support.tiny_qwen import tiny_qwen3

torch = pytest.importorskip("torch")
pytest.importorskip("peft")


# the master copies are compared with torch's AdamW in tests/adapters/peft/test_full_weights.py
ROUNDED = "small steps of one size in all weights are below the spacing of bfloat16"


def flip_last_bit(blobs: FakeBlobs, name: str) -> None:
    data = blobs.read(name)
    assert data
    blobs.write(name, data[:-1] + bytes([data[-1] ^ 1]))


class TestFloat32(TrainingLaws):
    unknown_model = "path:no-such-folder"
    context = 256
    device, dtype, quantization = "cpu", "float32", "none"
    devices = 1

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _folder(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        cls.model = f"path:{tiny_model(tmp_path_factory.mktemp('tiny'), context=cls.context)}"

    def client(self, tmp_path: Path) -> TrainingClient:
        from adapters.peft.client import PeftTraining

        self.blobs = FakeBlobs()
        return PeftTraining(
            LocalHub(cache=str(tmp_path)),
            self.blobs,
            device=self.device,
            dtype=self.dtype,
            threads=2,
            quantization=self.quantization,
            devices=self.devices,
        )

    def corrupt(self, client: TrainingClient, checkpoint: Checkpoint) -> None:
        flip_last_bit(self.blobs, f"{checkpoint.path}/adapter_model.safetensors")


@pytest.mark.slow
class TestTwoDevices(TestFloat32):
    """Two processes that share each batch."""

    devices = 2


@pytest.mark.slow
class TestFullWeights(TestFloat32):
    """All weights of the model are trained."""

    lora = FullWeights()

    def corrupt(self, client: TrainingClient, checkpoint: Checkpoint) -> None:
        flip_last_bit(self.blobs, f"{checkpoint.path}/model.safetensors")


@pytest.mark.slow
class TestFullWeightsBfloat16(TestFullWeights):
    """Weights in bfloat16 with master copies in float32."""

    dtype = "bfloat16"
    agreement = rounding = 2e-2
    curvature, loss_drop, logprob_noise = 0.3, 2.0, 0.03

    def test_a_first_step_ignores_the_scale_of_the_gradient(self, opened: Open) -> None:
        pytest.skip(ROUNDED)

    def test_the_moments_are_averaged_and_corrected(self, opened: Open) -> None:
        pytest.skip(ROUNDED)


@pytest.mark.slow
class TestRslora(TestFloat32):
    """LoRA that is scaled by alpha / √rank."""

    lora = Lora(rank=8, alpha=8.0, seed=1, kind="rslora")


@pytest.mark.slow
class TestDora(TestFloat32):
    """LoRA with trained magnitudes, computed by the modules of transformers."""

    lora = Lora(rank=8, seed=1, kind="dora")

    def test_weight_decay_is_decoupled(self, opened: Open) -> None:
        """Magnitudes decay as well, as in TRL, so that all weights become 0."""
        session: Any = opened()
        session.forward_backward(self.data(session))
        session.optim_step(Adam(learning_rate=0.5, weight_decay=2.0, eps=1e30)).result()
        weights = session.submit(lambda trainer: trainer.adapter.tensors()).result()
        assert all(float(tensor.abs().max()) < 1e-6 for tensor in weights.values())
        assert any("magnitude" in name for name in weights)


@pytest.mark.slow
class TestBfloat16(TestFloat32):
    """A base model in bfloat16 with LoRA weights in float32, and larger tolerances."""

    dtype = "bfloat16"
    agreement = rounding = 2e-2
    curvature, loss_drop, logprob_noise = 0.3, 2.0, 0.03


@pytest.mark.slow
class TestCappedLogits(TestFloat32):
    """A Gemma 2 with strongly capped logits, read one sequence at a time."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _folder(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tiny_gemma2(tmp_path_factory.mktemp("tiny"), context=cls.context)
        cls.model = f"path:{folder}"


@pytest.mark.slow
class TestHeadNorms(TestFloat32):
    """A Qwen3, whose queries and keys have norms."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _folder(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tiny_qwen3(tmp_path_factory.mktemp("tiny"), extra_rows=0)
        cls.model = f"path:{folder}"


@pytest.mark.slow
class TestGraphs(TestFloat32):
    """Decoding as on a CUDA device, with recorded calls in place of CUDA graphs."""

    @pytest.fixture(autouse=True)
    def _paged_decoding(self) -> Iterator[None]:
        from adapters.peft.sampling.paged.choice import paged_decoding_everywhere

        with paged_decoding_everywhere():
            yield


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestCuda(TestFloat32):
    device = "cuda"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestCudaBfloat16(TestBfloat16):
    device = "cuda"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("bitsandbytes"), reason="bitsandbytes is not installed")
class TestFourBit(TestFloat32):
    """A base model in 4 bits, dequantised to float32 in each product."""

    quantization = "4bit"

    @pytest.mark.parametrize("kind", TRAINABLES)
    def test_a_kind_of_weights_is_trained_or_refused(
        self, training: TrainingClient, kind: str
    ) -> None:
        if kind != "full_weights":
            super().test_a_kind_of_weights_is_trained_or_refused(training, kind)
            return
        with pytest.raises(ConfigError, match="train=full"):
            training.open(self.model, FullWeights())

    # merged weights are quantised again, which rounds them differently
    @pytest.mark.parametrize("merged", [False])
    def test_exported_weights_give_the_same_logprobs(
        self,
        training: TrainingClient,
        store: CheckpointStore,
        session: TrainingSession,
        weights: Checkpoint,
        tmp_path: Path,
        merged: bool,
    ) -> None:
        super().test_exported_weights_give_the_same_logprobs(
            training, store, session, weights, tmp_path, merged
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestCudaFourBit(TestFourBit, TestCudaBfloat16):
    agreement = 3e-2
