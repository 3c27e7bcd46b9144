"""AdamW with hyperparameters given at each step.

Loshchilov and Hutter, 2019, arXiv:1711.05101.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from kitchen.errors import Diverged
from kitchen.types import Adam

STATE = ("exp_avg", "exp_avg_sq", "step")


class Optimiser:
    """Applies the accumulated gradient of named parameters by AdamW, and clears it."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._inner = torch.optim.AdamW(self._parameters.values(), fused=True)
        self.steps = 0

    def step(self, adam: Adam) -> float:
        """Apply one step and return the norm of the gradient before clipping.

        Raises Diverged, with the weights unchanged, if the norm is not finite.
        """
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        limit = adam.grad_clip_norm or float("inf")
        norm = float(nn.utils.get_total_norm(gradients))
        if norm != norm or norm == float("inf"):
            raise Diverged(
                f"optimiser step {self.steps + 1}: the norm of the gradient is {norm}, so the step "
                "is not applied; lower the learning rate or clip the gradient (grad_clip_norm)"
            )
        if norm > limit:
            torch._foreach_mul_(gradients, limit / (norm + 1e-6))
        self._inner.param_groups[0].update(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        self._inner.step()
        # the fused step does not, and PackedLoraLinear copies the weights when it changes
        torch.autograd.graph.increment_version(list(self._parameters.values()))
        self.clear()
        self.steps += 1
        return norm

    def clear(self) -> None:
        """Discard the accumulated gradient."""
        self._inner.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the state, without copies, as `NAME/KEY`; empty before the first step."""
        tensors = {}
        for name, parameter in self._parameters.items():
            for key, value in self._inner.state.get(parameter, {}).items():
                tensors[f"{name}/{key}"] = value
        return tensors

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return copies of the state on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.state().items()}

    def load(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        """Replace the state by a saved one; empty tensors reset it."""
        self.clear()
        self.steps = steps
        self._inner.state.clear()
        for name, parameter in self._parameters.items():
            keys = [key for key in STATE if f"{name}/{key}" in tensors]
            if keys:
                self._inner.state[parameter] = {
                    key: tensors[f"{name}/{key}"].to(parameter.device, copy=True) for key in keys
                }
