"""Checks of a model's configuration, before its weights are loaded."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from adapters.folders import model_config
from kitchen.errors import BackendError

# the largest sizes that are tried, some hundred times those of any published model
MAX_SIZES = MappingProxyType(
    {
        "num_hidden_layers": 10_000,
        "n_layer": 10_000,
        "num_attention_heads": 100_000,
        "num_experts": 100_000,
        "num_local_experts": 100_000,
        "n_routed_experts": 100_000,
        "hidden_size": 1_000_000,
        "intermediate_size": 10_000_000,
        "vocab_size": 100_000_000,
        "max_position_embeddings": 1_000_000_000,
    }
)
# settings that change logits after the output layer, with the value that changes nothing
LOGIT_CHANGES = MappingProxyType(
    {"final_logit_softcapping": None, "logits_scaling": 1, "logit_scale": 1}
)


def check_config(folder: Path) -> None:
    """Raise BackendError for a model of an impossible size, and for one that changes its logits."""
    config = model_config(folder)
    for name, most in MAX_SIZES.items():
        size = config.get(name)
        if isinstance(size, int) and size > most:
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
