"""Weights in training: the parameters that the optimiser updates, and those of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import nn


class TrainedWeights(ABC):
    """The weights that a session trains: those of LoRA, or all weights of a model."""

    @abstractmethod
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the optimiser updates; gradients are summed in their dtype."""

    def in_model(self) -> Sequence[nn.Parameter]:
        """Return the parameters that the model computes with, in the same order."""
        return list(self.named_parameters().values())

    def write_to_model(self) -> None:
        """Write updated parameters into those that the model computes with, if they differ."""
        return

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of the parameters that the optimiser updates, on the CPU."""
        return {
            name: tensor.detach().cpu().clone() for name, tensor in self.named_parameters().items()
        }

    @abstractmethod
    def load(self, tensors: Mapping[str, torch.Tensor], source: str) -> None:
        """Load weights; raises ConfigError, which names the source, if names or shapes differ."""
