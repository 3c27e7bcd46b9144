"""Export of opened weights into a folder for other programs: an adapter, a model or GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, cast

from kitchen.artifacts.model_card import Form, model_card
from kitchen.artifacts.ollama import GGUF_FILE, modelfile
from kitchen.artifacts.open import OpenWeights, rendering_settings
from kitchen.artifacts.publish import (
    evaluation,
    exported_form,
    name_base,
    name_base_portably,
    require_export,
    with_license,
    write_chat_template,
)
from kitchen.backend.atomic_folder import atomic_folder
from kitchen.backend.edited_files import CARD
from kitchen.errors import BackendError
from kitchen.ports import TrainingClient
from kitchen.types import Checkpoint

Format = Literal["adapter", "merged", "gguf f32", "gguf f16", "gguf q8_0"]


class GgufExporter(Protocol):
    """A training adapter with the capability "export gguf"."""

    def export_gguf(
        self, weights: str | Checkpoint, file: Path, *, quantization: str, chat_template: str | None
    ) -> None:
        """Write the merged model as a new GGUF file of the type `quantization`: f32, f16 or q8_0.

        A `chat_template` replaces that of the tokenizer. Raises BackendError, before the model is
        loaded, if a GGUF file cannot hold it.
        """
        ...


def export_weights(opened: OpenWeights, folder: Path, form: Format) -> Form:
    """Write weights with a model card into a new folder, which appears whole or not at all.

    Returns their form: "whole" if all weights of the model were trained. No file names a folder of
    this machine. A GGUF file has a Modelfile for Ollama beside it. Raises BackendError for weights
    that cannot be exported in this form, ConfigError for a folder in use, RunFailed for a full
    disk.
    """
    store = require_export(opened.training)
    kind, _, quantization = form.partition(" ")
    with atomic_folder(folder) as part:
        if quantization:
            _write_gguf(opened, part, quantization)
        else:
            inner = part / "exported"
            store.export(opened.weights.source, inner, merged=kind == "merged")
            for path in inner.iterdir():
                path.rename(part / path.name)
            inner.rmdir()
            write_chat_template(opened.weights, part)
        written = exported_form(opened.weights, part, kind)
        _write_card(opened, part, folder.expanduser().absolute().name, written)
    return written


def _write_gguf(opened: OpenWeights, folder: Path, quantization: str) -> None:
    exporter, tokenizer = require_gguf(opened.training), opened.tokenizer()
    exporter.export_gguf(
        opened.weights.source,
        folder / GGUF_FILE,
        quantization=quantization,
        chat_template=rendering_settings(opened.weights.record).get("template"),
    )
    text = modelfile(tokenizer, opened.separator(tokenizer), opened.chat_template_kwargs)
    (folder / "Modelfile").write_text(text, encoding="utf-8")


def _write_card(opened: OpenWeights, folder: Path, name: str, form: Form) -> None:
    base = name_base_portably(opened.weights, folder)
    if not base.name:  # a whole model does not name the base of the adapter that was merged
        base = name_base(opened.weights, opened.hub.fetch(opened.weights.model))
    base = with_license(base, opened.hub)
    found = evaluation(opened.weights, opened.blobs)
    card = model_card(f"path:{name}", base, opened.weights, found, form)
    (folder / CARD).write_text(card, encoding="utf-8")


def require_gguf(training: TrainingClient) -> GgufExporter:
    """Return an adapter as one that writes GGUF; raises BackendError if it does not."""
    if "export gguf" not in training.capabilities:
        raise BackendError(
            f"the training adapter {training.__class__.__name__} writes no GGUF files; `kitchen "
            "export RUN DIR` writes an adapter, and --training peft exports its folder with --gguf"
        )
    return cast(GgufExporter, training)
