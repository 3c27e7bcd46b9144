"""The preview of a model: its expected fast path, as far as its configuration tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from adapters.peft.model.base_model import read_architecture
from adapters.peft.model.decoder import QUANTIZED
from adapters.peft.model.lora import report_untrained, target_paths
from adapters.peft.model.network import ForwardMode, describe_mode, forward_obstacles
from adapters.peft.sampling.paged.choice import paged_obstacle
from kitchen.types import FullWeights, Lora, Trainable


def preview_model(
    folder: Path,
    trainable: Trainable,
    *,
    quantization: str = "none",
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[tuple[str, str]]:
    """Return how a model would be computed, and the layers that the LoRA settings do not reach.

    Only the modules are built, without weights. When the model is loaded, its logits decide whether
    it is really computed in this way. Raises BackendError for a model that cannot be opened.
    """
    with torch.device("meta"):
        model = read_architecture(folder)
    rows = [("fast path (expected)", describe_mode(forward_obstacles(model, trainable)))]
    if device is not None and device.type == "cuda":
        reason = _graph_obstacle(model, quantization, device, dtype)
        rows.append(("CUDA graphs (expected)", f"no, because {reason}" if reason else "yes"))
    if isinstance(trainable, FullWeights):
        rows.append(("memory of all weights in training", _training_memory(model, dtype)))
    if isinstance(trainable, Lora):
        untrained = report_untrained(model, trainable, target_paths(model, trainable))
        rows += [("note", note) for note in untrained]
    return rows


def _training_memory(model: Any, dtype: torch.dtype) -> str:
    """Return the memory of weights, gradient and AdamW's moments, and of master copies if any."""
    master = torch.promote_types(dtype, torch.float32)
    size = 4 * master.itemsize + (0 if dtype == master else dtype.itemsize)
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count * size / 1e9:,.1f} GB without activations: {count:,} parameters × {size} bytes"


def _graph_obstacle(
    model: Any, quantization: str, device: torch.device, dtype: torch.dtype
) -> str | None:
    """Return why sampling would not decode by CUDA graphs, or None."""
    reason = forward_obstacles(model).get(ForwardMode.FUSED)
    if reason is not None or quantization != "none":
        return reason or QUANTIZED
    return paged_obstacle(device, dtype, model.base_model.layers[0].self_attn.head_dim)
