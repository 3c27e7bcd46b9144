"""Convert a GGUF file to a folder that transformers opens.

It runs as a separate process, so that its memory is freed and its output can be discarded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def convert(source: Path, target: Path) -> None:
    """Write configuration, tokenizer and float32 weights, equal to the quantised tensors."""
    import torch
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    loaded = auto.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.float32,
        local_files_only=True,
        trust_remote_code=False,
    )
    configuration = loaded.config
    if hasattr(configuration, "quantization_config"):
        del configuration.quantization_config
    # a second model takes the weights, because one loaded from GGUF cannot be saved
    with torch.device("meta"):
        model = auto.from_config(configuration, dtype=torch.float32, trust_remote_code=False)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    model.save_pretrained(target, max_shard_size="1TB")
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        source.parent,
        gguf_file=source.name,
        local_files_only=True,
        trust_remote_code=False,
        model_max_length=configuration.max_position_embeddings,
    )
    if _pretokenizer(source) == "smollm":
        _split_digits(tokenizer)
    tokenizer.save_pretrained(target)


def _pretokenizer(source: Path) -> str:
    import gguf

    field = gguf.GGUFReader(source).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field else ""


def _split_digits(tokenizer: Any) -> None:
    """Split numbers into digits, as SmolLM does; transformers drops this when it converts.

    Otherwise "\\n\\n1" would be tokenised differently.
    """
    from tokenizers import pre_tokenizers

    inner = tokenizer.backend_tokenizer
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), inner.pre_tokenizer]
    )


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
