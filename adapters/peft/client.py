"""The local training client; torch is imported only when a session is opened."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from adapters.folders import hidden_size, model_folder, model_sha256
from adapters.peft.model.config_checks import check_config
from adapters.peft.settings import Settings
from kitchen.backend.losses import LOSSES
from kitchen.backend.trainable import require_lora
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.ports.training import TrainingSession
from kitchen.types import Checkpoint, FullWeights, Lora, LoraKind, Trainable

if TYPE_CHECKING:
    from adapters.peft.device import Machine

KINDS: Sequence[LoraKind] = ("lora", "rslora", "dora")
_NAME = "the local engine"


class PeftTraining:
    """Trains weights on this machine's CPU or GPU; checkpoints go to the blob store.

    Raises ConfigError for invalid settings, and BackendError for missing packages or devices once a
    model is opened.
    """

    packages = ("torch", "transformers", "peft", "safetensors")
    capabilities = frozenset(
        {
            *(f"loss {name}" for name in LOSSES),
            "custom loss",
            "dora",
            "grad_clip_norm",
            "lora_alpha",
            "lora_dropout",
            "lora_targets",
            "policy_lag",
            "rslora",
            "prompt_logprobs",
            "top_logprobs",
            "topk_targets",
            "export",
            "export merged",
            "export gguf",
            "full_weights",
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
        devices: int | Literal["all"] = 1,
    ) -> None:
        _set_environment()
        self._hub, self._blobs = hub, blobs
        self._settings = Settings(
            device,
            dtype,
            threads,
            micro_batch_tokens,
            checkpointing,
            quantization,
            sample_batch,
            devices,
        )
        self._lock = threading.Lock()
        self._machine: Machine | None = None

    def find(self, model: str) -> None:
        """Raise BackendError for an unknown model, an unsupported folder, or a missing device."""
        self._settings.check_device()
        self._hub.find(model)
        if model.startswith("path:"):
            from adapters.peft.adapter_folder import read_adapter

            if read_adapter(self._hub, model) is None:
                check_config(self._hub.fetch(model))

    def tokenizer(self, model: str) -> Tokenizer:
        """Return the tokenizer of a model or of an adapter's folder, fetched from the hub."""
        from adapters.tokenizer import fetch_tokenizer

        check_config(model_folder(self._hub, model))
        return fetch_tokenizer(self._hub, model)

    def checkpoint_tokenizer(self, checkpoint: Checkpoint) -> Tokenizer | None:
        """Return the tokenizer in a checkpoint that is a whole model; None for LoRA weights."""
        _check_packages()
        from adapters.peft.checkpoints import read_tokenizer

        return read_tokenizer(self._blobs, checkpoint)

    def hidden_size(self, model: str) -> int | None:
        """Return the hidden size in the configuration of a model or of an adapter's base."""
        return hidden_size(self._hub, model)

    def lora(self, model: str) -> Lora | None:
        """Return the kind, rank and alpha of an adapter's folder; None for a whole model."""
        from adapters.peft.adapter_folder import read_adapter

        adapter = read_adapter(self._hub, model)
        return None if adapter is None else adapter.lora

    def notes(self, model: str, trainable: Trainable) -> Sequence[tuple[str, str]]:
        """Return how a model would be computed, and which parts LoRA settings would not train."""
        _check_packages()
        from adapters.peft.device import choose_device, choose_dtype
        from adapters.peft.sampling.preview import preview_model

        if isinstance(trainable, FullWeights):
            self._check_full_weights(model)
        else:
            require_lora(trainable, _NAME, KINDS)
        settings = self._settings
        device = choose_device(settings.device, settings.device_count())
        return preview_model(
            model_folder(self._hub, model),
            trainable,
            quantization=settings.quantization,
            device=device,
            dtype=choose_dtype(settings.dtype, device),
        )

    def sha256(self, model: str) -> str:
        """Return the digest of a model, or of an adapter's folder together with its base."""
        return model_sha256(self._hub, model)

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        """Open a session without waiting for the model; an adapter's training continues.

        Errors of the model are raised by the session's futures and tokenizer.
        """
        if isinstance(trainable, FullWeights):
            self._check_quantization()
        else:
            _check_lora(require_lora(trainable, _NAME, KINDS))
        machine = self._shared_machine()
        from adapters.peft.session import PeftSession

        return PeftSession(machine, self._blobs, model, trainable)

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Return a sampler of a model by name, an adapter's folder (`path:DIR`) or a checkpoint."""
        machine = self._shared_machine()
        from adapters.peft.sampler import PeftSampler

        return PeftSampler.from_weights(machine, self._blobs, weights)

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Export a checkpoint or an adapter's folder for other programs."""
        _check_packages()
        from adapters.peft.exporting.export import export

        export(self._hub, self._blobs, weights, folder, merged=merged)

    def export_gguf(
        self, weights: str | Checkpoint, file: Path, *, quantization: str, chat_template: str | None
    ) -> None:
        """Export a checkpoint or an adapter's folder as the GGUF file of a merged model."""
        _check_packages("gguf")
        from adapters.peft.exporting.export import export_gguf

        export_gguf(
            self._hub,
            self._blobs,
            weights,
            file,
            quantization=quantization,
            chat_template=chat_template,
        )

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        """Return the saved checkpoints; raises CorruptCheckpoint for one that cannot be read."""
        _check_packages()
        from adapters.peft.checkpoints import list_checkpoints

        return list_checkpoints(self._blobs, prefix)

    def delete(self, checkpoint: Checkpoint) -> None:
        _check_packages()
        from adapters.peft.checkpoints import delete_checkpoint

        delete_checkpoint(self._blobs, checkpoint)

    def _check_full_weights(self, model: str) -> None:
        self._check_quantization()
        if self.lora(model) is not None:
            raise ConfigError(
                f"{model} is a LoRA adapter, and train=full needs a whole model: merge it first "
                "(kitchen export --merged), and give the folder of the result"
            )

    def _check_quantization(self) -> None:
        if self._settings.quantization != "none":
            raise ConfigError(
                f"training.quantization={self._settings.quantization} stores the weights rounded "
                "and frozen, so they cannot be trained with train=full; set "
                "training.quantization=none, or train=lora"
            )

    def _shared_machine(self) -> Machine:
        _check_packages()
        from adapters.peft.device import Machine

        with self._lock:
            if self._machine is None:
                self._machine = Machine(self._settings, self._hub)
            return self._machine


def _set_environment() -> None:
    """Set defaults of OpenMP, oneDNN and bitsandbytes, which read them when they are imported."""
    # it warns that a package which it does not need is missing, as soon as peft is imported
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    # Threads that spin while they wait stall each other where cores are shared: a training step
    # beside one busy process took 1.4 s with this and 3 to 30 s without. A few spins are worth it,
    # because waking a thread for each of the 200 operations of a token takes longer than computing.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    # By default oneDNN caches prepared products for 1,024 numbers of rows: gigabytes in bfloat16,
    # for batches of ever new lengths. 128 are as fast, 32 are not (docs/benchmarks.md).
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")


def _check_packages(*others: str) -> None:
    try:
        for other in others:
            import_module(other)
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
    problems = []
    if lora.rank < 1:
        problems.append(f"rank is {lora.rank}, but must be at least 1")
    if not 0 <= lora.dropout < 1:
        problems.append(f"dropout is {lora.dropout}, but must be at least 0 and below 1")
    if lora.dropout and lora.train_unembed:
        problems.append(
            f"dropout is {lora.dropout}, but is not supported with train_unembed: set dropout to "
            "0, or train_unembed to false"
        )
    if lora.alpha is not None and not lora.alpha > 0:
        problems.append(f"alpha is {lora.alpha}, but must be above 0")
    if lora.seed < 0:
        problems.append(f"seed is {lora.seed}, but must be at least 0")
    if not (lora.train_attn or lora.train_mlp or lora.train_unembed):
        problems.append(
            "train_attn, train_mlp and train_unembed are all false: nothing would be trained"
        )
    if problems:
        raise ConfigError("; ".join(problems))
