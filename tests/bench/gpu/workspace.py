"""Random models, their start weights and the sizes of the rows, shared by all rows of a call."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.local.blobs import LocalBlobs
from adapters.local.datasets import LocalDatasets
from adapters.local.hub import LocalHub
from tests.bench.ceilings import Gauge
from tests.bench.kitchen_side import ADAM, LORA, START
from tests.bench.random_model import SIZES, write_random_model
from tests.bench.results import DROPPED, Options
from tests.bench.sft import Packs
from tests.bench.turns import Setup, Turns
from tests.bench.worker import Worker
from tests.support.tiny_model import byte_level_tokenizer

VOCABULARY = 4096  # of the tokenizer, which is trained on the data of the benchmarks
TINY: Mapping[str, Any] = {
    **SIZES["1b"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": VOCABULARY,
}


class NotMeasured(Exception):
    """Raised by a row that cannot be measured here, with the reason."""


@dataclass(frozen=True)
class Workspace:
    """The folder of a call. A dry run has tiny models and rows, in float32 on the CPU."""

    folder: Path
    out: Path  # profiles and logs
    dry: bool = False

    @property
    def pairs(self) -> int:
        """Return the number of counted steps of each side."""
        return 1 if self.dry else 3

    @property
    def gauge(self) -> Gauge:
        return Gauge(self.dtype, self.device, ((64, 64, 64),) if self.dry else ())

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    @property
    def dtype(self) -> str:
        return "float32" if self.dry else "bfloat16"

    @property
    def packs(self) -> Packs:
        """Return 16,384 tokens a step in rows of 256 to 4,096."""
        return Packs(4, 128, 16, 128) if self.dry else Packs()

    def setup(self, size: str) -> Setup:
        """Return the setup of a model size; writes the model on the first call."""
        folder = self.folder / size
        setup = Setup(
            folder, 0, DROPPED + self.pairs, self.dtype, f"path:{folder / 'model'}", self.device
        )
        if not (folder / "complete").is_file():
            self._prepare(size, folder, setup)
        return setup

    def options(self, setup: Setup) -> Options:
        return Options(setup.folder, setup.seed, self.pairs, setup.model, setup.device)

    def _prepare(self, size: str, folder: Path, setup: Setup) -> None:
        shutil.rmtree(folder, ignore_errors=True)  # of a row that was stopped
        (folder / "trl").mkdir(parents=True)
        config = {**TINY, "num_hidden_layers": 3} if size == "8b" else TINY
        helper = ModelAndStartWeights(config if self.dry else SIZES[size], setup)
        with Worker(helper, folder) as worker:
            worker.ready()
        (folder / "complete").touch()


@dataclass(frozen=True)
class ModelAndStartWeights:
    """A helper process that writes a tokenizer, a random model and the start weights."""

    config: Mapping[str, Any]
    setup: Setup
    name: str = "random model"

    def run(self, turns: Turns) -> None:
        rows = LocalDatasets().load("ingredients", split="train")
        texts = [message["content"] for at in range(len(rows)) for message in rows[at]["messages"]]
        model = write_random_model(self.config, self.setup.folder / "model", self.setup.device)
        byte_level_tokenizer(self.setup.folder / "model", texts, VOCABULARY)
        self._write_start_weights(model)

    def _write_start_weights(self, model: Any) -> None:
        """Write LoRA weights as after a first step, whose B is as large as the learning rate."""
        import torch

        from adapters.peft.checkpoints import checkpoint_metadata, weight_files, write_checkpoint
        from adapters.peft.model.base_model import BaseModel
        from adapters.peft.model.lora import LoraAdapter
        from adapters.peft.model.network import ForwardMode

        adapter = LoraAdapter(model, LORA, torch.float32)
        adapter.initialise()
        for layer in adapter.layers.values():
            torch.nn.init.normal_(layer.b, std=ADAM.learning_rate)
        name, digest = self.setup.model, LocalHub().sha256(self.setup.model)
        base = BaseModel(name, LocalHub().fetch(name), digest, model, ForwardMode.FUSED)
        write_checkpoint(
            LocalBlobs(str(self.setup.folder)),
            START,
            weight_files(adapter, base),
            checkpoint_metadata("weights", 1, 1, name, digest, LORA),
        )
