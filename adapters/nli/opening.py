"""Models and tokenizers of transformers, opened from a folder without running its code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.folders import model_config, why_not_opened
from adapters.progress_bars import progress_bars_disabled
from kitchen.errors import BackendError

_OFFLINE = {"local_files_only": True, "trust_remote_code": False}
# architectures whose positions begin behind the padding token's id
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "data2vec")
_NO_LIMIT = 1_000_000  # a tokenizer that knows no maximum says 10^30


def open_folder(folder: Path, open_model: Callable[..., Any]) -> tuple[Any, Any]:
    """Return model and tokenizer, in float32 on the CPU; raises BackendError that explains why not.

    `open_model` is the `from_pretrained` of an Auto class.
    """
    import torch
    from transformers import AutoTokenizer

    check_model(folder)
    load_tokenizer: Any = AutoTokenizer.from_pretrained
    try:
        with progress_bars_disabled():
            tokenizer = load_tokenizer(folder, **_OFFLINE)
            model = open_model(folder, dtype=torch.float32, use_safetensors=True, **_OFFLINE)
    except Exception as error:
        reason = why_not_opened(folder, error)
        raise BackendError(f"the scorer cannot be opened: {reason}") from error
    return model.requires_grad_(False).eval(), tokenizer


def check_model(folder: Path) -> None:
    """Raise BackendError for a folder without a whole model."""
    if not (folder / "config.json").is_file():
        raise BackendError(
            f"{folder} has no config.json: a scorer is a whole model, not a LoRA adapter; merge "
            "the adapter into its model, or choose another one"
        )


def max_tokens(folder: Path, tokenizer: Any) -> int:
    """Return how many tokens a model reads, special tokens included.

    Raises BackendError if neither the tokenizer nor the configuration says so.
    """
    config = model_config(folder)
    limits = [int(tokenizer.model_max_length)] if tokenizer.model_max_length < _NO_LIMIT else []
    if positions := config.get("max_position_embeddings"):
        offset = 0
        if config.get("model_type") in _OFFSET_POSITIONS:
            offset = int(config.get("pad_token_id") or 0) + 1
        limits.append(int(positions) - offset)
    if not limits:
        raise BackendError(
            f"{folder}: neither tokenizer_config.json (model_max_length) nor config.json "
            "(max_position_embeddings) says how many tokens the model reads; set one of them"
        )
    return min(limits)
