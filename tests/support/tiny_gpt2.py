"""A GPT-2 small enough for a test, with random weights."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_model import tiny_model


def tiny_gpt2(folder: Path) -> Path:
    """Write a GPT-2 of 2 layers with 64 learned positions and a tokenizer; return the folder.

    Its linear layers are Conv1D, and the names in its file are not those of its modules.
    """
    import torch
    import transformers

    tiny_model(folder)
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=320,
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=64,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
