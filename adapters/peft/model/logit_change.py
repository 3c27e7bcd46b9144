"""Scaled and capped logits: operations that some models apply after the output layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from adapters.peft.model.config_checks import LOGIT_SETTINGS, LogitOperation, logit_operation


class ChangedHead(nn.Module):
    """An output layer whose logits are scaled or capped, in the order in which they are given."""

    def __init__(self, base: nn.Module, changes: LogitChanges) -> None:
        super().__init__()
        self.base, self.changes = base, changes

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(..., H) states to (..., V) logits."""
        logits: torch.Tensor = self.base(states)
        return change_logits(logits, self.changes)


LogitChanges = tuple[tuple[LogitOperation, float], ...]


def read_logit_changes(config: Any) -> LogitChanges:
    """Return the operations that a model of transformers applies to its logits; often none."""
    kind = str(config.model_type)
    changes = []
    for name, neutral in LOGIT_SETTINGS.items():
        value = getattr(config, name, None)
        if value not in (None, neutral):
            changes.append((logit_operation(name, kind), float(value)))
    return tuple(changes)


def change_logits(logits: torch.Tensor, changes: LogitChanges) -> torch.Tensor:
    """Apply the operations in the dtype of the logits, as transformers does."""
    for operation, value in changes:
        if operation == "multiply":
            logits = logits * value
        elif operation == "divide":
            logits = logits / value
        else:  # x to c · tanh(x / c), which stays between -c and c
            logits = torch.tanh(logits / value) * value
    return logits
