"""A random BERT small enough for a test, as a classifier or an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TEXT = "the a of drug aspirin lowers raises pressure pain was seen in mice men no effect on"


def tiny_bert(
    folder: Path,
    *,
    labels: Iterable[str] = (),
    class_weights: Mapping[str, int] | None = None,
    length: int = 32,
    seed: int = 0,
) -> Path:
    """Write a BERT of 2 layers and width 32 with one token per word; return its folder.

    With labels it is a classifier with these classes in this order. `class_weights` maps a label to
    the row of the random classifier that it gets, so that models whose labels are in another order
    agree about each label.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    vocabulary = _tokenizer(folder, length)
    names = list(labels)
    config: Any = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=length,
        initializer_range=0.3,
    )
    if names:
        config.id2label = dict(enumerate(names))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = (BertForSequenceClassification if names else BertModel)(config)
    if class_weights is not None:
        rows = [class_weights[name] for name in names]
        with torch.no_grad():
            model.classifier.weight.copy_(model.classifier.weight[rows].clone())
    model.save_pretrained(folder)
    return folder


def _tokenizer(folder: Path, length: int) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: at for at, word in enumerate([*special, ".", *TEXT.split()])}
    tokens: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    build: Any = PreTrainedTokenizerFast  # transformers leaves it untyped
    fast = build(
        tokenizer_object=tokens,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=length,
    )
    fast.save_pretrained(folder)
    return len(vocabulary)
