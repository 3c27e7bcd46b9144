"""Qwen2 and Qwen3 small enough for a test, and tokenizers that split text as published ones do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny_model import byte_level_tokenizer

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tiny_qwen2(folder: Path) -> Path:
    """Write a Qwen2 of 2 layers, whose embedding has more rows than there are tokens."""
    return _qwen(folder, "Qwen2", {"tie_word_embeddings": True})


def tiny_qwen3(folder: Path, *, extra_rows: int = 12) -> Path:
    """Write a Qwen3 of 2 layers with heads of 128, as all published ones have."""
    return _qwen(folder, "Qwen3", {"head_dim": 128, "tie_word_embeddings": False}, extra_rows)


def split_text_as(folder: Path, pre_tokenizer: str) -> None:
    """Change the pre-tokenizer in a folder to that of a published model."""
    from tokenizers import Regex, normalizers, pre_tokenizers
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer
    tokenizer = load.from_pretrained(folder)
    inner = tokenizer.backend_tokenizer
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps: dict[str, list[Any]] = {
        "gpt-2": [byte_level],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level],
        "qwen2": [pre_tokenizers.Split(Regex(WORDS), "isolated"), bytes_only],
        "llama-bpe": [
            pre_tokenizers.Split(Regex(WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")), "isolated"),
            bytes_only,
        ],
        "unknown": [pre_tokenizers.Split(Regex(r"\s+"), "isolated"), bytes_only],
    }
    if pre_tokenizer == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.model.ignore_merges = pre_tokenizer == "llama-bpe"
    inner.pre_tokenizer = pre_tokenizers.Sequence(steps[pre_tokenizer])
    tokenizer.save_pretrained(folder)


def _qwen(folder: Path, name: str, settings: dict[str, Any], extra_rows: int = 12) -> Path:
    """`extra_rows` of the embedding have no token."""
    import torch
    import transformers

    vocabulary = byte_level_tokenizer(folder)
    split_text_as(folder, "qwen2")
    library: Any = transformers
    config = getattr(library, f"{name}Config")(
        vocab_size=vocabulary + extra_rows,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        **settings,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(library, f"{name}ForCausalLM")(config)
        for key, weights in model.named_parameters():
            if key.endswith(("q_norm.weight", "k_norm.weight")):
                torch.nn.init.uniform_(weights, 0.5, 1.5)
    model.save_pretrained(folder)
    return folder
