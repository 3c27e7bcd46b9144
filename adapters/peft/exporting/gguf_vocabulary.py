"""The vocabulary of a byte-level BPE tokenizer, in the terms of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from adapters.tokenizer import FolderTokenizer
from kitchen.errors import BackendError

# values of tokenizer.ggml.token_type
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}@"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_INTO_WORDS = ("ByteLevel", True)
# How a text is split before the merges, to llama.cpp's name of it (tokenizer.ggml.pre). Its code
# holds the rules themselves, so that a tokenizer with others cannot be written.
_PRE_TOKENIZERS: Mapping[tuple[tuple[str, Any], ...], str] = MappingProxyType(
    {
        (_SPLIT_INTO_WORDS,): "gpt-2",
        (("Digits", True), _SPLIT_INTO_WORDS): "smollm",
        (("Split", _WORDS.replace("@", "")), ("ByteLevel", False)): "qwen2",
        (("Split", _WORDS.replace("@", "{1,3}")), ("ByteLevel", False)): "llama-bpe",
    }
)
_IGNORES_MERGES = "llama-bpe"  # takes a word that is a token whole


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids, and the settings of their tokenizer."""

    pre: str  # a name of llama.cpp for the pre-tokenizer
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str]
    special_ids: Mapping[str, int]  # by role: bos, eos, unk, pad
    adds_bos: bool
    adds_eos: bool


def read_vocabulary(tokenizer: FolderTokenizer, rows: int, source: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer, with unused tokens up to the rows of the embedding.

    Raises BackendError, which begins with `source`, for a tokenizer that llama.cpp does not have.
    """
    inner = tokenizer.inner
    definition: dict[str, Any] = {}
    if inner.is_fast:
        definition = json.loads(inner.backend_tokenizer.to_str())
    model = definition.get("model", {})
    pre = _pre_tokenizer(definition)
    if (
        model.get("type") != "BPE"
        or not pre
        or bool(model.get("ignore_merges")) != (pre == _IGNORES_MERGES)
    ):
        raise BackendError(
            f"{source}: the tokenizer is not one that can be written as GGUF: byte-level BPE with "
            f"the pre-tokenizer of {', '.join(_PRE_TOKENIZERS.values())}; export the merged model "
            "(--merged), and convert it with llama.cpp's convert_hf_to_gguf.py"
        )
    tokens, types = _tokens(definition, rows, source)
    before, after = _added(tokenizer, inner, source)
    return Vocabulary(pre, tokens, types, list(_merges(model)), _special_ids(inner), before, after)


def _pre_tokenizer(definition: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of a pre-tokenizer; empty if it has none that is equal."""
    normalizer = (definition.get("normalizer") or {}).get("type")
    top = definition.get("pre_tokenizer") or {}
    steps = top["pretokenizers"] if top.get("type") == "Sequence" else [top]
    pre = _PRE_TOKENIZERS.get(tuple(_rule(step) for step in steps), "")
    # llama.cpp does not compose characters, which Qwen's tokenizer does first
    return pre if normalizer is None or (normalizer, pre) == ("NFC", "qwen2") else ""


def _rule(step: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the kind of a step of pre-tokenization and the setting by which it splits."""
    kind = str(step.get("type"))
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return kind, step.get("use_regex", True)
    if kind == "Digits":
        return kind, step["individual_digits"]
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        return kind, step["pattern"].get("Regex")
    return kind, None


def _tokens(
    definition: Mapping[str, Any], rows: int, source: str
) -> tuple[Sequence[str], Sequence[int]]:
    """Return the text and type of each row of the embedding."""
    texts: dict[int, str] = {id_: text for text, id_ in definition["model"]["vocab"].items()}
    types = dict.fromkeys(texts, _NORMAL)
    for added in definition["added_tokens"]:
        texts[added["id"]] = added["content"]
        types[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    if max(texts) >= rows:
        raise BackendError(
            f"{source}: the tokenizer has a token {max(texts)}, and the embedding of the model has "
            f"{rows} rows (vocab_size in config.json); use the tokenizer of this model"
        )
    return (
        [texts.get(row, f"[PAD{row}]") for row in range(rows)],
        [types.get(row, _UNUSED) for row in range(rows)],
    )


def _merges(model: Mapping[str, Any]) -> Iterator[str]:
    for merge in model["merges"]:
        yield merge if isinstance(merge, str) else " ".join(merge)


def _special_ids(inner: Any) -> Mapping[str, int]:
    ids = {
        "bos": inner.bos_token_id,
        "eos": inner.eos_token_id,
        "unk": inner.unk_token_id,
        "pad": inner.pad_token_id,
    }
    return {role: id_ for role, id_ in ids.items() if id_ is not None}


def _added(tokenizer: FolderTokenizer, inner: Any, source: str) -> tuple[bool, bool]:
    """Return whether the beginning and the end of a sequence are added to each text."""
    before, after = tokenizer.added_tokens
    if before not in ([], [inner.bos_token_id]) or after not in ([], [inner.eos_token_id]):
        raise BackendError(
            f"{source}: the tokenizer adds the tokens {before} before a text and {after} after it, "
            "and GGUF can only say that it adds the beginning and the end of a sequence "
            f"({inner.bos_token_id}, {inner.eos_token_id}); export the merged model (--merged)"
        )
    return bool(before), bool(after)
