"""Checks of a model's configuration, before its weights are loaded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from adapters.folders import model_config
from kitchen.errors import BackendError

# the largest sizes that are tried, some hundred times those of any published model, by the end of
# their names, which differ between architectures: num_hidden_layers, n_layer, decoder_layers
MAX_SIZES = MappingProxyType(
    {
        "vocab_size": 100_000_000,
        "max_position_embeddings": 1_000_000_000,
        r"layers?": 10_000,
        r"heads?|n_head_kv|experts": 100_000,
        r"_size|_dim|n_embd|n_inner|d_model|d_ff|d_kv": 10_000_000,
    }
)
# settings by which models change their logits after the output layer, with the value that changes
# nothing, in the order in which they are applied
LOGIT_SETTINGS: Mapping[str, int | None] = MappingProxyType(
    {
        "logit_scale": 1,  # Cohere
        "lm_head_multiplier": 1,  # Falcon H1
        "output_multiplier": 1,
        "logits_scaling": 1,  # Granite
        "final_logit_softcapping": None,  # Gemma 2
        "logits_soft_cap": None,  # RecurrentGemma
    }
)
MULTIPLIES = frozenset({"hyperclovax"})  # model types that multiply by `logits_scaling`
LogitOperation = Literal["multiply", "divide", "cap"]


def check_config(folder: Path) -> None:
    """Raise BackendError for a model of an impossible size, or with an impossible logit scale."""
    config = model_config(folder)
    for name, size in config.items():
        most = _largest(name)
        if isinstance(size, int) and most is not None and size > most:
            raise BackendError(
                f"{folder / 'config.json'}: {name} is {size:,}, and a model with more than "
                f"{most:,} is not opened; correct the file, or fetch the model again"
            )
    for name in LOGIT_SETTINGS:
        value = config.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):
            raise BackendError(
                f"{folder / 'config.json'}: {name} is {json.dumps(value)}, but must be a number "
                "above 0, by which the logits are scaled or capped; correct the file, or fetch the "
                "model again"
            )


def logit_operation(name: str, model_type: str) -> LogitOperation:
    """Return the operation that one of `LOGIT_SETTINGS` stands for in a type of model."""
    if name.endswith(("capping", "cap")):
        return "cap"
    if name == "logits_scaling" and model_type not in MULTIPLIES:
        return "divide"
    return "multiply"


def _largest(name: str) -> int | None:
    """Return the largest size that is tried for a setting; None if it is not a size."""
    limits = (most for end, most in MAX_SIZES.items() if re.search(rf"(?:{end})$", name))
    return next(limits, None)
