"""The text of a completion as its tokens arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kitchen.ports.sampling import Tokenizer

# the beginning of a character decodes to this
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class CompletionText:
    """Text that grows token by token, and ends before a stop string or a stop token.

    `stop_ids` are stop tokens besides those of the model.

    The beginning of a character, or of a stop string, is held back until the next token.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), stop_ids: Sequence[int] = ()
    ) -> None:
        self.is_stopped = False  # by a stop string
        self._tokenizer = tokenizer
        self._stop = stop
        self._stop_ids = {*tokenizer.stop_ids, *stop_ids}
        self._tokens: list[int] = []
        # tokens from here on are decoded; those before `_read` only as context
        self._start, self._read = 0, 0
        self._held = ""  # decoded, and perhaps the beginning of a stop string

    def add(self, token: int) -> str:
        """Return the text that a token completes."""
        if token not in self._stop_ids:
            self._tokens.append(token)
        text = self._new_text()
        if text.endswith(INCOMPLETE):
            return ""
        if text:  # a token without text, such as a special one, is no context
            self._start = self._read
        self._read = len(self._tokens)
        return self._release(text)

    def finish(self) -> str:
        """Return the text that was held back, when no token follows."""
        released = self._release(self._new_text())
        self._read = len(self._tokens)
        rest, self._held = self._held, ""
        return released if self.is_stopped else released + rest

    def whole(self, tokens: Iterable[int]) -> str:
        """Return the text of all tokens of a completion."""
        pieces = [self.add(int(token)) for token in tokens]
        return "".join([*pieces, self.finish()])

    def _new_text(self) -> str:
        before = self._decode(self._start, self._read)
        return self._decode(self._start, len(self._tokens))[len(before) :]

    def _decode(self, start: int, end: int) -> str:
        return self._tokenizer.decode(np.array(self._tokens[start:end], np.int64))

    def _release(self, text: str) -> str:
        """Return the text up to a stop string, or to the beginning of what may become one."""
        if self.is_stopped:
            return ""
        self._held += text
        found = [place for stop in self._stop if (place := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            return self._held[: min(found)]
        length = len(self._held) - max(
            (overlap(self._held, stop) for stop in self._stop), default=0
        )
        released, self._held = self._held[:length], self._held[length:]
        return released


def overlap(text: str, marker: str) -> int:
    """Return how many characters at the end of a text are the beginning of a marker."""
    tail = text[max(len(text) - len(marker) + 1, 0) :]
    start = tail.find(marker[0])
    while start >= 0 and not marker.startswith(tail[start:]):
        start = tail.find(marker[0], start + 1)
    return len(tail) - start if start >= 0 else 0
