"""A kitchen that trains a tiny model for an export."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.artifacts.export import Format, export_weights
from kitchen.artifacts.open import OpenWeights
from kitchen.artifacts.weights import Weights
from kitchen.types import Adam, Checkpoint, Datum, Lora

TOKENS = np.random.default_rng(7).integers(3, 250, 40)


class ExportKitchen:
    """A client and a checkpoint of slightly trained weights of a model in `base`."""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "base"
        self.hub, self.blobs = LocalHub(cache=str(folder / "cache")), FakeBlobs()
        self.training = PeftTraining(self.hub, self.blobs, device="cpu", dtype="float32", threads=1)

    def train(self, lora: Lora | None = None) -> Checkpoint:
        session = self.training.open(f"path:{self.base}", lora or Lora(rank=4, seed=1))
        try:
            inputs = {"target_tokens": TOKENS[1:], "weights": np.ones(len(TOKENS) - 1)}
            for _ in range(2):
                session.forward_backward([Datum(TOKENS[:-1], inputs)])
                session.optim_step(Adam(0.02))
            return session.save_weights("run/weights/final").result()
        finally:
            session.close()

    def export(self, source: str | Checkpoint, folder: Path, form: Format = "gguf f16") -> None:
        weights = Weights("run:soup@final", source, f"path:{self.base}", "soup")
        if isinstance(source, str):
            weights = Weights(source, source, source)
        export_weights(OpenWeights(weights, self.training, self.hub, self.blobs), folder, form)
