"""Checks of the weights that a session is asked to train."""

from __future__ import annotations

from kitchen.errors import ConfigError
from kitchen.types import Lora, Trainable


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
