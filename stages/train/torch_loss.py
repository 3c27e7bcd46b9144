"""A custom loss written in torch, as the core knows losses: values and gradients in numpy."""

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
    """A function of log-probabilities, and its gradient by torch.autograd; a kitchen.types.Loss."""

    function: Callable[..., Any]
    # it sums over runs of this many adjacent datums; None: it needs the batch whole
    group: int | None = None

    def __post_init__(self) -> None:
        _name(self.function)
        if self.group is not None and self.group < 1:
            raise ConfigError(f"group={self.group} must be 1 or more adjacent datums")

    def __repr__(self) -> str:
        return f"torch_loss({_name(self.function)}, group={self.group})"

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        """Value, gradients of the shapes of `logprobs`, and metrics; raises ConfigError for what is
        no loss.
        """
        import torch

        with torch.enable_grad():
            leaves = [torch.tensor(np.asarray(lp), requires_grad=True) for lp in logprobs]
            returned = self.function(data, leaves)
            value, metrics = returned if isinstance(returned, tuple) else (returned, {})
            if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
                raise ConfigError(
                    f"{self!r} must give one number that depends on the log-probabilities through "
                    "torch"
                )
            grads = torch.autograd.grad(value.reshape(()), leaves, allow_unused=True)
        gradients = [
            np.zeros(lp.shape, np.float32) if grad is None else grad.numpy().astype(np.float32)
            for lp, grad in zip(logprobs, grads, strict=True)
        ]
        return (
            value.item(),
            gradients,
            {
                key: number.item() if isinstance(number, torch.Tensor) else float(number)
                for key, number in metrics.items()
            },
        )


def torch_loss(function: TorchFunction, group: int | None = None) -> TorchLoss:
    """A loss from `function(data, logprobs)`, which gives a scalar tensor, or that and metrics.

    `logprobs` are float32 CPU tensors, one per datum, of the shape of its targets, in nats.
    `function` is one of a module, or a frozen dataclass with `__call__` where there are options:
    its name goes into the run's fingerprint. Raises ConfigError for a lambda or a closure, which no
    name describes.
    """
    return TorchLoss(function, group)


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, FunctionType):
        described = function.__name__ != "<lambda>" and not function.__closure__
        name = f"{function.__module__}.{function.__qualname__}"
    else:
        name = repr(function)
        described = " at 0x" not in name
    if not described:
        raise ConfigError(
            f"the loss {name} has no stable name; write it as a function of a module, "
            "or, with options, as a frozen dataclass with __call__"
        )
    return name
