"""AdamW with its hyper-parameters given at each step (Loshchilov and Hutter, 2019,
arXiv:1711.05101).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from kitchen.errors import RunFailed
from kitchen.types import Adam


class Optimiser:
    """Steps along the summed gradient of named parameters, and clears it."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._inner = torch.optim.AdamW(self._parameters.values(), fused=True)
        self.steps = 0

    def step(self, adam: Adam) -> float:
        """Returns the norm of the gradient before clipping; raises RunFailed, weights as they were,
        if not finite.
        """
        parameters = list(self._parameters.values())
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        limit = adam.grad_clip_norm or float("inf")
        norm = float(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        if norm != norm or norm == float("inf"):
            raise RunFailed(
                f"optimiser step {self.steps + 1}: the gradient's norm is {norm}; the step is not "
                "applied. "
                "A smaller learning rate or clipping (grad_clip_norm) may mend it"
            )
        if norm > limit:
            torch._foreach_mul_(
                [p.grad for p in parameters if p.grad is not None], limit / (norm + 1e-6)
            )
        self._inner.param_groups[0].update(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        self._inner.step()
        self.clear()
        self.steps += 1
        return norm

    def clear(self) -> None:
        self._inner.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies on the CPU: `NAME/exp_avg`, `NAME/exp_avg_sq`, `NAME/step`; empty before the first
        step.
        """
        return {
            f"{name}/{key}": value.detach().cpu().clone()
            for name, parameter in self._parameters.items()
            for key, value in self._inner.state.get(parameter, {}).items()
        }

    def load(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        self.clear()
        self.steps = steps
        self._inner.state.clear()
        for name, parameter in self._parameters.items():
            keys = [key for key in ("exp_avg", "exp_avg_sq", "step") if f"{name}/{key}" in tensors]
            if keys:
                self._inner.state[parameter] = {
                    key: tensors[f"{name}/{key}"].to(parameter.device, copy=True) for key in keys
                }
