"""A tokenizer with one token per byte, and a few for the turns of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports.sampling import Message, ToolSchema
from kitchen.types import Tokens

END, END_OF_TURN = 256, 257
ROLES = {"system": 258, "user": 259, "assistant": 260, "tool": 261}
VOCABULARY = 262
_SPELLED = {END: b"<|end|>", END_OF_TURN: b"<|end_of_turn|>"} | {
    token: f"<|{role}|>".encode() for role, token in ROLES.items()
}
CONTEXT = 4096  # tokens


class ByteTokenizer:
    """UTF-8 bytes; a message is its role, its bytes and an end of turn.

    The tokens of a conversation therefore begin with those of its first messages.
    """

    chat, tools = True, False
    stop_ids = (END_OF_TURN, END)
    end_id = END
    vocabulary = VOCABULARY
    model_vocabulary: int | None = VOCABULARY
    context_length: int | None = CONTEXT
    longest_token = 1  # characters

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        """Return (T,) ids; with `special`, they start with an end-of-sequence token."""
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return np.concatenate([[END], ids]) if special else ids

    def decode(self, tokens: Tokens, *, special: bool = False) -> str:
        """Return the text; incomplete characters become U+FFFD."""
        ids = np.asarray(tokens).tolist()
        kept = ids if special else [token for token in ids if token < END]
        parts = [_SPELLED[token] if token >= END else bytes([token]) for token in kept]
        return b"".join(parts).decode(errors="replace")

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Tokens:
        """Return (T,) ids; raises DataError for an unknown role, for tools and for variables."""
        if tools:
            raise DataError("the fake chat template has no place for tools")
        for name in chat_template_kwargs:
            raise DataError(
                f"chat_template_kwargs.{name} is not read by the fake chat template, which has no "
                "variables"
            )
        parts = [
            np.concatenate([[_role(m["role"])], self.encode(m["content"]), [END_OF_TURN]])
            for m in messages
        ]
        if answer:
            parts.append(np.array([ROLES["assistant"]]))
        return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return the text of `render`, with special tokens written out."""
        tokens = self.render(
            messages, answer=answer, tools=tools, chat_template_kwargs=chat_template_kwargs
        )
        return self.decode(tokens, special=True)

    def with_template(self, template: str) -> ByteTokenizer:
        """Raise ConfigError: the fake renders conversations without Jinja."""
        raise ConfigError(
            "rendering.template needs a tokenizer that renders Jinja templates; that of the fake "
            "does not: choose another training adapter"
        )


def _role(name: str) -> int:
    if name not in ROLES:
        raise DataError(
            f"the role {name!r} is unknown to the fake chat template; {did_you_mean(name, ROLES)}"
        )
    return ROLES[name]
