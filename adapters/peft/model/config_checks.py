"""Checks of a model's configuration, before its weights are loaded."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

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
# settings that change logits after the output layer, with the value that changes nothing
LOGIT_CHANGES = MappingProxyType(
    {"final_logit_softcapping": None, "logits_scaling": 1, "logit_scale": 1}
)


def check_config(folder: Path) -> None:
    """Raise BackendError for a model of an impossible size, and for one that changes its logits."""
    config = model_config(folder)
    for name, size in config.items():
        most = _largest(name)
        if isinstance(size, int) and most is not None and size > most:
            raise BackendError(
                f"{folder / 'config.json'}: {name} is {size:,}, and a model with more than "
                f"{most:,} is not opened; correct the file, or fetch the model again"
            )
    for name, neutral in LOGIT_CHANGES.items():
        if config.get(name) not in (None, neutral):
            raise BackendError(
                f"{folder / 'config.json'}: {name}={config[name]} changes the model's logits after "
                "the output layer, which the local adapter cannot train; choose another "
                "architecture"
            )


def _largest(name: str) -> int | None:
    """Return the largest size that is tried for a setting; None if it is not a size."""
    limits = (most for end, most in MAX_SIZES.items() if re.search(rf"(?:{end})$", name))
    return next(limits, None)
