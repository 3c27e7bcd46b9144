"""Small tokenizers of several kinds, trained on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapters.tokenizer import FolderTokenizer

CORPUS = (
    "is basil a herb? yes, chef. no, chef. is salt a herb?\nuser: two cups of rice\n\n"
    "assistant: stir, then simmer for ten minutes.\n\n<think>\n\n</think>\n\nit is a plant\n"
    "the answer is the answer to the question of the cook  and of the guest\n"
)
ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "</s>")
STARTS = (
    "<s>",
    "<|im_start|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<bos>",
    "<start_of_turn>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|tool|>",
    "[INST]",
    "[/INST]",
)
KINDS = ("byte-level", "newlines", "metaspace", "normaliser", "unigram")


def trained_tokenizer(
    kind: str, *, end: str = "<|im_end|>", template: str | None = None, special: Sequence[str] = ()
) -> FolderTokenizer:
    """Return a tokenizer of one of KINDS.

    byte-level: as GPT-2's. newlines: as Qwen's, where newlines run together. metaspace and
    normaliser: as Llama 2's, with a space before every text, by a pre-tokenizer or a normaliser.
    unigram: as T5's.
    """
    from tokenizers import AddedToken, Tokenizer, models, trainers
    from transformers import PreTrainedTokenizerFast

    markers = [*STARTS, *ENDS, *special]
    options: dict[str, Any] = {"show_progress": False, "special_tokens": ["<unk>", *markers]}
    if kind == "unigram":
        tokens = Tokenizer(models.Unigram())
        trainer: Any = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", **options)
    else:
        is_spm = kind in ("metaspace", "normaliser")
        tokens = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=is_spm, byte_fallback=is_spm))
        trainer = trainers.BpeTrainer(vocab_size=480, **options, initial_alphabet=_alphabet(kind))
    _set_up(tokens, kind)
    tokens.train_from_iterator([CORPUS] * 4, trainer)
    tokens.add_special_tokens([AddedToken(marker, special=True) for marker in markers])
    build: Any = PreTrainedTokenizerFast
    fast = build(tokenizer_object=tokens, bos_token="<s>", eos_token=end, unk_token="<unk>")
    fast.chat_template = template
    return FolderTokenizer(fast, Path("tokenizer"), Path("model"))


def _alphabet(kind: str) -> list[str]:
    from tokenizers import pre_tokenizers

    if kind in ("byte-level", "newlines"):
        return sorted(pre_tokenizers.ByteLevel.alphabet())
    return [chr(code) for code in range(33, 127)]


def _set_up(tokens: Any, kind: str) -> None:
    """Set the normaliser, the pre-tokenizer and the decoder."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    spm_decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    if kind == "byte-level":
        tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokens.decoder = decoders.ByteLevel()
    elif kind == "newlines":
        pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
        tokens.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokens.decoder = decoders.ByteLevel()
    elif kind == "metaspace":
        tokens.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokens.decoder = spm_decoder
    elif kind == "normaliser":
        tokens.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokens.decoder = spm_decoder
    else:
        tokens.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokens.decoder = decoders.Metaspace(prepend_scheme="always")
