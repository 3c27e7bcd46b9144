"""A tokenizer for samplers that read and write text, such as chat APIs and ensembles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.ports.sampling import Message, ToolSchema
from kitchen.types import Tokens

_PIECE_BYTES = 7  # an int64 holds these, their number, and no sign
_LENGTH_SHIFT = 8 * _PIECE_BYTES
_FIRST_SPECIAL = (_PIECE_BYTES + 1) << _LENGTH_SHIFT
# a role, content, and other fields of a message follow their token; so do the tools of a prompt
ROLE, CONTENT, FIELDS, TOOLS, END = range(_FIRST_SPECIAL, _FIRST_SPECIAL + 5)
_NAMES = {
    ROLE: "<|role|>",
    CONTENT: "<|content|>",
    FIELDS: "<|fields|>",
    TOOLS: "<|tools|>",
    END: "<|end|>",
}
_PIECES = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


@dataclass(frozen=True)
class TextPrompt:
    """A prompt as text: a conversation that asks for an answer, or plain text to continue."""

    messages: Sequence[Message] = ()
    tools: Sequence[ToolSchema] = ()
    text: str = ""  # the beginning of the answer, or the text to continue where no message is


class TextTokenizer:
    """Text and conversations to token ids, and back without loss.

    A token is a piece of at most 7 bytes of UTF-8, about as long as the tokens of language models:
    counts of tokens are estimates. A rendered conversation is turned into messages again by
    `prompt_of`, so a sampler of texts can take its place where prompts are tokens.
    """

    chat, tools = True, True
    stop_ids = (END,)
    end_id = END
    vocabulary = END + 1
    model_vocabulary: int | None = None
    context_length: int | None = None

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        """Return the (T,) ids of a text; there are no special tokens before it."""
        pieces: list[int] = []
        for match in _PIECES.finditer(text):
            data = match[0].encode()
            starts = range(0, len(data), _PIECE_BYTES)
            pieces += [_pack(data[start : start + _PIECE_BYTES]) for start in starts]
        return np.array(pieces, np.int64)

    def decode(self, tokens: Tokens, *, special: bool = False) -> str:
        """Return the text, without special tokens, or with their names if `special`."""
        parts = [_bytes(token, special=special) for token in np.asarray(tokens).tolist()]
        return b"".join(parts).decode(errors="replace")

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Tokens:
        """Return the (T,) ids of a conversation; raises DataError for template variables."""
        if chat_template_kwargs:
            names = ", ".join(chat_template_kwargs)
            raise DataError(
                f"there is no chat template that could read chat_template_kwargs ({names}): the "
                "model is given messages and renders them itself"
            )
        parts: list[int] = []
        if tools:
            parts += [TOOLS, *self.encode(json.dumps(list(tools), ensure_ascii=False)).tolist()]
        for message in messages:
            parts += [*self._message(message), END]
        if answer:
            parts += self._message({"role": "assistant", "content": ""})
        return np.array(parts, np.int64)

    def _message(self, message: Message) -> Iterable[int]:
        """Yield the tokens of a message without its end."""
        content = message.get("content")
        fields = {name: value for name, value in message.items() if name != "role"}
        if isinstance(content, str):
            del fields["content"]
        yield from (ROLE, *self.encode(str(message["role"])).tolist())
        if fields:
            text = json.dumps(fields, ensure_ascii=False)
            yield from (FIELDS, *self.encode(text).tolist())
        if isinstance(content, str):
            yield from (CONTENT, *self.encode(content).tolist())

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return the text that `render` encodes, with special tokens written out."""
        tokens = self.render(
            messages, answer=answer, tools=tools, chat_template_kwargs=chat_template_kwargs
        )
        return self.decode(tokens, special=True)

    def with_template(self, template: str) -> TextTokenizer:
        """Raise ConfigError: the model is given messages and renders them itself."""
        raise ConfigError(
            "a chat template cannot be set: the model is given messages and renders them itself"
        )

    def prompt_of(self, tokens: Tokens) -> TextPrompt:
        """Return the prompt that was rendered to these (T,) ids, or encoded as plain text."""
        ids = np.asarray(tokens)
        tools: list[ToolSchema] = []
        messages: list[dict[str, Any]] = []
        starts = np.flatnonzero(ids >= _FIRST_SPECIAL).tolist()
        if not starts:
            return TextPrompt(text=self.decode(ids))
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            text, special = self.decode(ids[start + 1 : end]), ids[start]
            if special == TOOLS:
                tools = json.loads(text)
            elif special == ROLE:
                messages.append({"role": text})
            elif special == FIELDS:
                messages[-1] |= json.loads(text)
            elif special == CONTENT:
                messages[-1]["content"] = text
        is_open = ids[starts[-1]] == CONTENT
        beginning = str(messages.pop()["content"]) if is_open else ""
        return TextPrompt(messages, tools, beginning)


def _pack(piece: bytes) -> int:
    return len(piece) << _LENGTH_SHIFT | int.from_bytes(piece)


def _bytes(token: int, *, special: bool) -> bytes:
    if token >= _FIRST_SPECIAL:
        return _NAMES[token].encode() if special else b""
    length = token >> _LENGTH_SHIFT
    return (token & (1 << _LENGTH_SHIFT) - 1).to_bytes(_PIECE_BYTES)[_PIECE_BYTES - length :]
