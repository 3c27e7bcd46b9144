"""`kitchen export`."""

from __future__ import annotations

from pathlib import Path

from kitchen.artifacts.open import open_weights
from kitchen.artifacts.publish import require_export
from kitchen.cli.console import console
from kitchen.config.request import AdapterChoice


def export(typed: str, folder: Path, adapter_choice: AdapterChoice, *, merged: bool) -> int:
    """Write weights into a folder for other programs."""
    with open_weights(typed, adapter_choice) as opened:
        require_export(opened.training).export(opened.weights.source, folder, merged=merged)
    what = (
        "a model in float32: transformers opens it"
        if merged
        else "an adapter: peft opens it with its base model"
    )
    console().print(f"{folder.expanduser().absolute()}  ({what})", soft_wrap=True)
    return 0
