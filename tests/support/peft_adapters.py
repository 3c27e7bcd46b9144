"""Adapter folders as the peft library writes them, for a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QV = ["q_proj", "v_proj"]


def save_adapter(base: Path, folder: Path, config: Any, *, dtype: str = "float32") -> Path:
    """Train nothing, but move all LoRA weights away from zero, and save with peft."""
    import peft
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    wrapped = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    wrapped.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def edit_config(folder: Path, **fields: Any) -> Path:
    """Set fields of adapter_config.json; a field of value ... is deleted."""
    path = folder / "adapter_config.json"
    config = {**json.loads(path.read_text()), **fields}
    kept = {name: value for name, value in config.items() if value is not ...}
    path.write_text(json.dumps(kept))
    return folder
