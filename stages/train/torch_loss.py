"""Custom losses written in torch, with the values and gradients in numpy that the core expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kitchen.errors import ConfigError
from kitchen.types import Datum, Floats

if TYPE_CHECKING:
    import torch

Value: TypeAlias = "torch.Tensor | tuple[torch.Tensor, Mapping[str, float | torch.Tensor]]"
TorchFunction: TypeAlias = "Callable[[Sequence[Datum], list[torch.Tensor]], Value]"


@dataclass(frozen=True, repr=False)
class TorchLoss:
    """A kitchen.types.Loss from a torch function of log-probabilities, by torch.autograd."""

    function: Callable[..., Any]
    # size of the groups of adjacent datums that the loss sums over; None if it needs all datums
    group: int | None = None

    def __post_init__(self) -> None:
        _name(self.function)
        if self.group is not None and self.group < 1:
            raise ConfigError(f"group={self.group} must be 1 or more: a number of adjacent datums")

    def __repr__(self) -> str:
        return f"torch_loss({_name(self.function)}, group={self.group})"

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        """Return the value, gradients of the shapes of `logprobs`, and metrics.

        Raises ConfigError if the function returns no differentiable number.
        """
        import torch

        with torch.enable_grad():
            leaves = [torch.tensor(np.asarray(array), requires_grad=True) for array in logprobs]
            returned = self.function(data, leaves)
            value, metrics = returned if isinstance(returned, tuple) else (returned, {})
            if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
                raise ConfigError(
                    f"{self!r} must return one number that depends on the log-probabilities "
                    "through torch"
                )
            grads = torch.autograd.grad(value.reshape(()), leaves, allow_unused=True)
        gradients = [
            np.zeros(array.shape, np.float32) if grad is None else grad.numpy().astype(np.float32)
            for array, grad in zip(logprobs, grads, strict=True)
        ]
        return value.item(), gradients, {key: _as_float(number) for key, number in metrics.items()}


def _as_float(number: Any) -> float:
    return float(number.item() if hasattr(number, "item") else number)


def torch_loss(function: TorchFunction, group: int | None = None) -> TorchLoss:
    """Return a loss from `function(data, logprobs)`.

    The function returns a scalar tensor, or a tuple of it and metrics. `logprobs` are float32 CPU
    tensors in nats, one per datum, of the shape of its targets. `function` is a module-level
    function, or a frozen dataclass with `__call__` if it has options: its name is part of the run's
    fingerprint. Raises ConfigError for a lambda or a closure, which have no stable name.
    """
    return TorchLoss(function, group)


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, FunctionType):
        is_stable = function.__name__ != "<lambda>" and not function.__closure__
        name = f"{function.__module__}.{function.__qualname__}"
    else:
        name = repr(function)
        is_stable = " at 0x" not in name
    if not is_stable:
        raise ConfigError(
            f"the loss {name} has no stable name; write it as a module-level function, "
            "or, with options, as a frozen dataclass with __call__"
        )
    return name
