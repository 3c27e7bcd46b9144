"""A tokenizer whose chat template writes tools, thoughts, tool calls, names and a variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.tokenizer import FolderTokenizer
from kitchen.types import Tokens
from tests.support.tokenizers import trained_tokenizer

_THOUGHT = (
    "{% if m.role == 'assistant' and enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% elif m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}"
)
TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>system\ntools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}{{ '\n' }}"
    + _THOUGHT
    + "{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)
PLAIN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TIMER: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "timer",
        "description": "Sets a timer.",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}},
    },
}


def tool_tokenizer() -> FolderTokenizer:
    """Return a tokenizer with TOOL_TEMPLATE."""
    return trained_tokenizer("byte-level", template=TOOL_TEMPLATE)


def plain_tokenizer() -> FolderTokenizer:
    """Return a tokenizer whose template writes only roles and contents."""
    return trained_tokenizer("byte-level", template=PLAIN_TEMPLATE)


def text_of(tokenizer: FolderTokenizer, tokens: Tokens | Sequence[int]) -> str:
    """Return the text of tokens, with special tokens written out."""
    return tokenizer.decode(tokens, special=True)
