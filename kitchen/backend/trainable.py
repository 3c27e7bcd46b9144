"""Checks of the weights that a session is asked to train."""

from __future__ import annotations

from collections.abc import Collection

from kitchen.errors import ConfigError, did_you_mean
from kitchen.types import Lora, LoraKind, Trainable


def require_lora(trainable: Trainable, backend: str, kinds: Collection[LoraKind]) -> Lora:
    """Return the configuration of LoRA weights of one of some kinds.

    Raises ConfigError for other weights, which `backend`, a name for people, cannot train.
    """
    if not isinstance(trainable, Lora):
        raise ConfigError(f"{backend} trains LoRA weights, not all weights: set train=lora")
    if trainable.kind not in kinds:
        hint = did_you_mean(trainable.kind, sorted(kinds))
        raise ConfigError(f"{backend} does not train LoRA of the kind {trainable.kind!r}: {hint}")
    return trainable


def require_plain_lora(trainable: Trainable, backend: str) -> Lora:
    """Return the configuration of plain LoRA weights.

    Raises ConfigError for other kinds of weights, which `backend`, a name for people, cannot train.
    """
    if not isinstance(trainable, Lora):
        raise ConfigError(f"{backend} trains LoRA weights, not all weights: set train=lora")
    if trainable.kind != "lora":
        raise ConfigError(
            f"{backend} trains plain LoRA weights, not {trainable.kind}: set lora_kind=lora"
        )
    return trainable
