"""`kitchen export`: weights in a folder that other programs open."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import cast

from kitchen.artifacts.export import Format, export_weights
from kitchen.artifacts.open import open_weights
from kitchen.cli.console import console
from kitchen.cli.waits import showing_waits
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.errors import ConfigError

_CONTENT = MappingProxyType(
    {
        "adapter": "an adapter: peft opens it with its base model",
        "merged": "a model in float32: transformers opens it",
        "whole": "a fully fine-tuned model: transformers opens it",
        "gguf": "a model as GGUF: llama.cpp opens model.gguf, Ollama the Modelfile",
    }
)


def export(
    weights: str, folder: Path, adapters: AdapterChoice, *, merged: bool, gguf: str | None
) -> int:
    """Write weights into a new folder: an adapter, or a whole model if `merged` or `gguf`."""
    form = _format(merged, gguf)
    with showing_waits(f"Exporting {weights}"), open_weights(weights, adapters) as opened:
        written = export_weights(opened, folder, form)
    path = folder.expanduser().absolute()
    console().print(f"{path}  ({_CONTENT[written]})", soft_wrap=True)
    return 0


def _format(merged: bool, gguf: str | None) -> Format:
    if merged and gguf:
        raise ConfigError("--gguf writes a whole model, too: omit --merged")
    if gguf:
        return cast(Format, f"gguf {gguf}")
    return "merged" if merged else "adapter"
