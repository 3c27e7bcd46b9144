"""Llamas with random weights in common sizes, for machines without access to real weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adapters.folders import copy_files, tokenizer_files
from adapters.local.hub import LocalHub
from tests.bench.turns import Turns

COMMON = {
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "pad_token_id": None,
}
# Llama 3.2 1B and Llama 3.1 8B (arXiv:2407.21783)
SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "1b": {
            **COMMON,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "tie_word_embeddings": True,
        },
        "8b": {
            **COMMON,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "tie_word_embeddings": False,
        },
    }
)


@dataclass(frozen=True)
class RandomModel:
    """A helper process that saves a random bfloat16 model with another model's tokenizer."""

    config: Mapping[str, Any]  # arguments of LlamaConfig
    folder: Path
    tokenizer: str  # model whose tokenizer is copied; its vocabulary may be smaller
    device: str
    name: str = "random model"

    def run(self, turns: Turns) -> None:
        write_random_model(self.config, self.folder, self.device)
        copy_files(tokenizer_files(LocalHub().fetch(self.tokenizer)), self.folder)


def write_random_model(config: Mapping[str, Any], folder: Path, device: str) -> Any:
    """Write weights drawn on the device, and a digest, so that no side hashes gigabytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    build: Any = LlamaConfig
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model: Any = LlamaForCausalLM(build(**config, dtype="bfloat16"))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    files = {path.name: path.stat() for path in folder.glob("*.safetensors")}
    note = {
        "gguf_sha256": "",
        "sha256": sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest(),
        "files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in files.items()},
    }
    (folder / "kitchen.json").write_text(json.dumps(note))
    return model
