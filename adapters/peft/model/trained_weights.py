"""Weights in training: the parameters that the optimiser updates, and those of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import nn

from kitchen.errors import ConfigError


class TrainedWeights(ABC):
    """The weights that a session trains: those of LoRA, or all weights of a model."""

    needed_to_load: ClassVar[str]  # what a session is opened with, so that weights fit

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

    def load(self, tensors: Mapping[str, torch.Tensor], source: str) -> None:
        """Load weights of any precision, and keep them in that of the optimiser's updates.

        Raises ConfigError, which names the source, if names or shapes differ; all are checked
        before any weight is changed.
        """
        parameters = self.named_parameters()
        expected = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
        saved = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name in sorted(expected.keys() | saved.keys()):
            if expected.get(name) != saved.get(name):
                raise ConfigError(
                    f"{source}: {name} has shape {saved.get(name)}, but this session expects "
                    f"{expected.get(name)}; open the session with {self.needed_to_load}"
                )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[name])
        self.write_to_model()
