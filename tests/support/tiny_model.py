"""A real model small enough for a test: a random Llama and a byte-level tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEXT = (
    "two cups finely chopped yellow onions, divided; one pinch of salt to taste. "
    "the user asks and the assistant answers: to be or not to be, that is the question. "
)
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(folder: Path, *, seed: int = 0, context: int = 256) -> Path:
    """Write a Llama of 2 layers (hidden 64, about 95,000 weights, float32); return its folder.

    The same seed writes the same weights. Needs torch, transformers and tokenizers.
    """
    _llama(folder, byte_level_tokenizer(folder), seed, context)
    return folder


def tiny_gemma2(folder: Path, *, seed: int = 0, context: int = 256) -> Path:
    """Write a Gemma 2 of 2 layers, one with a sliding window, whose logits stay within ±6."""
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    build: Any = Gemma2Config  # a dataclass that mypy cannot read
    config = build(
        vocab_size=byte_level_tokenizer(folder),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=16,
        max_position_embeddings=context,
        sliding_window=32,
        final_logit_softcapping=6.0,
        attn_logit_softcapping=4.0,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Gemma2ForCausalLM(config)
    model.save_pretrained(folder)
    return folder


def byte_level_tokenizer(folder: Path, texts: Iterable[str] = (TEXT,), size: int = 320) -> int:
    """Write byte-level BPE with a ChatML template, as SmolLM2's; return its number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokens.train_from_iterator(texts, trainer)
    build: Any = PreTrainedTokenizerFast  # transformers leaves it untyped
    fast = build(
        tokenizer_object=tokens,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def _llama(folder: Path, vocabulary: int, seed: int, context: int) -> None:
    """Draw weights of standard deviation 0.1: likely and unlikely tokens differ, ties are rare."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,  # and no pad_token_id, for it would zero a row
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
