"""The local adapter, opened through its port with the settings of all benchmarks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from adapters.local.blobs import LocalBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.tokenizer import TURN_ENDS
from kitchen.ports.training import TrainingSession
from kitchen.types import Adam, FullWeights, Lora
from tests.bench.rows import ingredients
from tests.bench.turns import Setup, Turns

START = "start"  # the checkpoint that both sides start from, in PEFT's format
ADAM = Adam(
    learning_rate=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, grad_clip_norm=1.0
)
LORA = Lora(rank=16, alpha=32.0)  # on all linear layers of attention and MLP


def client(setup: Setup, sample_batch: int = 128) -> PeftTraining:
    """Create a client on the device of the benchmark."""
    return PeftTraining(
        LocalHub(),
        LocalBlobs(str(setup.folder)),
        device=setup.device,
        dtype=setup.dtype,
        quantization=setup.quantization,
        sample_batch=sample_batch,
    )


def session(training: PeftTraining, setup: Setup) -> TrainingSession:
    """Open a session with the start weights; returns once they are loaded."""
    if setup.full:
        opened = training.open(setup.model, FullWeights())
        opened.facts()  # waits for the model
        return opened
    opened = training.open(setup.model, LORA)
    opened.load_weights(next(iter(training.checkpoints(START)))).result()
    return opened


def without_end_tokens(setup: Setup) -> Setup:
    """Copy the model without its end tokens, so that no completion stops early.

    The local engine has no setting for a minimum length.
    """
    source = LocalHub().fetch(setup.model)
    folder = Path(mkdtemp(prefix="no-end-tokens-", dir=setup.folder))
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path)
        else:
            text = _remove_end_tokens(path.read_text(), path.suffix == ".json")
            (folder / path.name).write_text(text)
    return replace(setup, model=f"path:{folder}")


def _remove_end_tokens(text: str, is_json: bool) -> str:
    """Rename the end tokens, which keep their ids, and remove settings that name them."""
    for end in TURN_ENDS:
        text = text.replace(end, end.upper())
    if not is_json:
        return text
    return json.dumps(
        {key: value for key, value in json.loads(text).items() if not key.startswith("eos_token")}
    )


@dataclass(frozen=True)
class StartWeights:
    """A helper process that saves the start weights of both sides, after one training step.

    Initial LoRA weights are zero in one factor, so that their products would be zero.
    """

    setup: Setup
    name: str = "start weights"

    def run(self, turns: Turns) -> None:
        opened = client(self.setup).open(self.setup.model, LORA)
        opened.forward_backward(ingredients(self.setup, 8))
        opened.optim_step(ADAM)
        opened.save_weights(START).result()
