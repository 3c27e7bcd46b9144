"""`kitchen export`."""

from __future__ import annotations

from pathlib import Path

from kitchen.commands.opening import open_weights
from kitchen.commands.ordering import Larder
from kitchen.console import console
from kitchen.publishing import check_exports


def export(typed: str, folder: Path, larder: Larder, *, merged: bool) -> int:
    """Write weights into a folder for other programs."""
    with open_weights(typed, larder) as opened:
        check_exports(opened.training)
        opened.training.export(opened.weights.source, folder, merged=merged)
    what = "a model in float32: transformers opens it" if merged else "an adapter: peft opens it with its base model"
    console().print(f"{folder.expanduser().absolute()}  ({what})", soft_wrap=True)
    return 0
