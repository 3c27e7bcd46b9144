"""All weights of a model in training, with master copies of those that are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from adapters.peft.model.trained_weights import TrainedWeights
from kitchen.errors import BackendError


class FullModel(TrainedWeights):
    """The weights of a model's body and output layer; tied ones count once.

    A weight in a lower precision than `dtype` has a master copy in it. The optimiser updates the
    master copies, and the model computes with the rounded weights (Micikevicius et al., 2018,
    arXiv:1710.03740).
    """

    needed_to_load = "the model that was saved"

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        """Raises BackendError for a model whose weights are quantised."""
        self._weights = _used_parameters(model)
        self._masters = dict[str, nn.Parameter]()
        for name, weight in self._weights.items():
            if not weight.is_floating_point() or weight.itemsize < torch.bfloat16.itemsize:
                raise BackendError(
                    f"{type(model).__name__}: {name} is quantised ({weight.dtype}), and quantised "
                    "weights cannot be trained: choose a model that is not quantised, or set "
                    "train=lora"
                )
            weight.requires_grad_(True)
            exact = torch.promote_types(weight.dtype, dtype) == weight.dtype
            self._masters[name] = weight if exact else nn.Parameter(weight.detach().to(dtype))

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the weights, or the master copies of rounded ones, under their names."""
        return dict(self._masters)

    def in_model(self) -> Sequence[nn.Parameter]:
        return list(self._weights.values())

    @property
    def rounded(self) -> dict[str, nn.Parameter]:
        """The master copies of weights that the model holds rounded."""
        return {
            name: master
            for name, master in self._masters.items()
            if master is not self._weights[name]
        }

    def write_to_model(self) -> None:
        """Write the master copies, rounded, into the model."""
        masters = self.rounded
        with torch.no_grad():
            for name, master in masters.items():
                self._weights[name].copy_(master)


def _used_parameters(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters of the body and the output layer, each under its first name."""
    parts = model.base_model.parameters(), model.get_output_embeddings().parameters()
    used = {id(parameter) for parameter in chain.from_iterable(parts)}
    return {name: weight for name, weight in model.named_parameters() if id(weight) in used}
