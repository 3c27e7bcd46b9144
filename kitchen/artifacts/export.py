"""Export of opened weights into a folder for other programs: an adapter, a model or GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, cast

from kitchen.artifacts.ollama import GGUF_FILE, modelfile
from kitchen.artifacts.open import OpenWeights, rendering_settings
from kitchen.artifacts.publish import require_export, write_chat_template
from kitchen.backend.atomic_folder import atomic_folder
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


def export_weights(opened: OpenWeights, folder: Path, form: Format) -> None:
    """Write weights into a new folder, which appears whole or not at all.

    A GGUF file has a Modelfile for Ollama beside it. Raises BackendError for weights that cannot be
    exported in this form, ConfigError for a folder in use, RunFailed for a full disk.
    """
    store = require_export(opened.training)
    if not form.startswith("gguf"):
        store.export(opened.weights.source, folder, merged=form == "merged")
        write_chat_template(opened.weights, folder.expanduser())
        return
    exporter = require_gguf(opened.training)
    tokenizer = opened.tokenizer()
    with atomic_folder(folder) as part:
        exporter.export_gguf(
            opened.weights.source,
            part / GGUF_FILE,
            quantization=form.removeprefix("gguf "),
            chat_template=rendering_settings(opened.weights.record).get("template"),
        )
        text = modelfile(tokenizer, opened.separator(tokenizer), opened.chat_template_kwargs)
        (part / "Modelfile").write_text(text, encoding="utf-8")


def require_gguf(training: TrainingClient) -> GgufExporter:
    """Return an adapter as one that writes GGUF; raises BackendError if it does not."""
    if "export gguf" not in training.capabilities:
        raise BackendError(
            f"the training adapter {type(training).__name__} writes no GGUF files; `kitchen export "
            "RUN DIR` writes an adapter, and --training peft exports its folder with --gguf"
        )
    return cast(GgufExporter, training)
