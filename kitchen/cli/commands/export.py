"""`kitchen export`: weights in a folder that peft or transformers opens."""

from __future__ import annotations

from pathlib import Path

from kitchen.artifacts.open import open_weights
from kitchen.artifacts.publish import require_export, write_chat_template
from kitchen.cli.console import console
from kitchen.config.adapter_choice import AdapterChoice


def export(weights: str, folder: Path, adapters: AdapterChoice, *, merged: bool) -> int:
    """Write weights into a new folder: an adapter, or a whole model if `merged`."""
    with open_weights(weights, adapters) as opened:
        require_export(opened.training).export(opened.weights.source, folder, merged=merged)
        write_chat_template(opened.weights, folder.expanduser())
    content = "an adapter: peft opens it with its base model"
    if merged:
        content = "a model in float32: transformers opens it"
    console().print(f"{folder.expanduser().absolute()}  ({content})", soft_wrap=True)
    return 0
