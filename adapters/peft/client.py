"""The local training client; torch is imported once a session is opened."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.folders import model_sha256, model_size
from adapters.peft.settings import Settings
from kitchen.backend.losses import LOSSES
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.ports.training import TrainingSession
from kitchen.types import Checkpoint, Lora

if TYPE_CHECKING:
    from adapters.peft.device import Machine


class PeftTraining:
    """Trains LoRA weights on this machine's CPU or CUDA device; checkpoints go through the blob
    store.

    Raises ConfigError for settings that cannot be; once a model is asked for, BackendError for what
    is missing.
    """

    packages = ("torch", "transformers", "peft", "safetensors")
    capabilities = frozenset(
        {
            *(f"loss {name}" for name in LOSSES),
            "custom loss",
            "lora_alpha",
            "lora_dropout",
            "lora_targets",
            "top_logprobs",
            "export",
            "export merged",
        }
    )

    def __init__(
        self,
        hub: HubClient,
        blobs: BlobStore,
        *,
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 0,
        micro_batch_tokens: int = 0,
        checkpointing: bool = False,
        quantization: str = "none",
        sample_batch: int = 128,
    ) -> None:
        # Threads that spin while they wait stall each other where cores are shared: a training step
        # beside one busy
        # process took 1.4 s with this and 3 to 30 s without. Some rounds are worth it: to wake one
        # for each of the 200
        # operations of a token takes longer than to compute them. OpenMP reads both when torch is
        # first imported.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
            os.environ.setdefault("GOMP_SPINCOUNT", "5000")
        # oneDNN keeps what it has prepared for each number of rows, 1,024 such things where nothing
        # else is said:
        # gigabytes in bfloat16, for batches of ever new lengths. 128 are as fast, 32 are not
        # (docs/benchmarks.md).
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
        self._hub, self._blobs = hub, blobs
        self._settings = Settings(
            device, dtype, threads, micro_batch_tokens, checkpointing, quantization, sample_batch
        )
        self._lock = threading.Lock()
        self._made: Machine | None = None

    def find(self, model: str) -> None:
        self._hub.find(model)

    def tokenizer(self, model: str) -> Tokenizer:
        """Of the model's folder, which is fetched for it, or of an adapter's."""
        from adapters.tokenizer import fetched_tokenizer

        return fetched_tokenizer(self._hub, model)

    def hidden_size(self, model: str) -> int | None:
        """As the model's configuration says, of an adapter's folder that of its base."""
        return model_size(self._hub, model)

    def sha256(self, model: str) -> str:
        """As the hub says, of an adapter's folder with its base."""
        return model_sha256(self._hub, model)

    def open(self, model: str, lora: Lora) -> TrainingSession:
        """Comes back at once; what is wrong with the model surfaces on the session's futures and
        tokenizer.
        """
        _check_lora(lora)
        machine = self._machine()
        from adapters.peft.session import PeftSession

        return PeftSession(machine, self._blobs, model, lora)

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Of a model by name, an adapter's folder (`path:DIR`), or a checkpoint of either kind."""
        machine = self._machine()
        from adapters.peft.sampler import PeftSampler

        return PeftSampler.named(machine, self._blobs, weights)

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Of a checkpoint of either kind, or of an adapter's folder."""
        _import()
        from adapters.peft.export import export

        export(self._hub, self._blobs, weights, folder, merged=merged)

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        """Raises CorruptCheckpoint for one that cannot be read."""
        _import()
        from adapters.peft.checkpoints import listed

        return listed(self._blobs, prefix)

    def delete(self, checkpoint: Checkpoint) -> None:
        _import()
        from adapters.peft.checkpoints import forget

        forget(self._blobs, checkpoint)

    def _machine(self) -> Machine:
        _import()
        from adapters.peft.device import Machine

        with self._lock:
            if self._made is None:
                self._made = Machine(self._settings, self._hub)
            return self._made


def _import() -> None:
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401

        import peft  # noqa: F401
    except ImportError as error:
        raise BackendError(
            f"the local training adapter needs the package {error.name}, which is missing: "
            "pip install 'crucible-kitchen[local]'"
        ) from error


def _check_lora(lora: Lora) -> None:
    rules = {
        f"rank is {lora.rank}, and must be at least 1": lora.rank >= 1,
        f"dropout is {lora.dropout}, and must be at least 0 and below 1": 0 <= lora.dropout < 1,
        f"dropout is {lora.dropout}, and has not been fitted to an output layer in training: set "
        "it to 0, or "
        "train_unembed=false": not (lora.dropout and lora.train_unembed),
        f"alpha is {lora.alpha}, and must be above 0": lora.alpha is None or lora.alpha > 0,
        f"seed is {lora.seed}, and must be at least 0": lora.seed >= 0,
        "train_attn, train_mlp and train_unembed are all false: nothing would be "
        "trained": lora.train_attn or lora.train_mlp or lora.train_unembed,
    }
    if broken := [text for text, kept in rules.items() if not kept]:
        raise ConfigError("; ".join(broken))
