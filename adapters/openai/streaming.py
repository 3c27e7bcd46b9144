"""Answers of the chat endpoint as they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.openai.chat_answers import (
    ChatAnswer,
    call_texts,
    ended_answer,
    estimate_limit,
    ignored_limit,
    short,
    text_of,
    valid_text,
)
from adapters.openai.errors import MalformedAnswer
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError
from kitchen.types import Tokens

OnToken = Callable[[int, int], object]  # takes the index of a choice, and a token


@dataclass
class _Choice:
    """A choice as far as it has arrived."""

    text: str = ""
    half: str = ""  # the first half of a surrogate pair, whose second one has not arrived
    pieces: list[Tokens] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)  # functions by index
    reason: Any = None  # why it ended
    is_refused: bool = False

    @property
    def tokens(self) -> int:
        return sum(map(len, self.pieces))


class StreamedAnswers:
    """Answers that arrive in chunks; raises MalformedAnswer for chunks that cannot be read."""

    def __init__(
        self, count: int, tokenizer: TextTokenizer, on_token: OnToken, limit: tuple[str, Any]
    ) -> None:
        self._choices = [_Choice() for _ in range(count)]
        self._tokenizer = tokenizer
        self._on_token = on_token
        self._limit = limit  # on the tokens of each: the field of the request, and its value

    def add(self, chunk: Any) -> None:
        """Read a chunk; one without choices, such as that with the usage, has no text."""
        if not isinstance(chunk, Mapping) or chunk.get("error"):
            raise MalformedAnswer(f"it ends with {short(chunk)}")
        parts = chunk.get("choices") or []
        if not isinstance(parts, list):
            raise MalformedAnswer(f"the choices of a chunk are {short(parts)}, and no list")
        for part in parts:
            index = part.get("index") if isinstance(part, Mapping) else None
            if type(index) is not int or not 0 <= index < len(self._choices):
                raise MalformedAnswer(
                    f"a chunk is part of none of the {len(self._choices)} choices: {short(part)}"
                )
            self._extend(index, part)

    def finish(self) -> tuple[Sequence[ChatAnswer], Sequence[Sequence[Tokens]]]:
        """Return the answers, and the tokens of the pieces of each."""
        answers: list[ChatAnswer] = []
        for index, choice in enumerate(self._choices):
            self._write(index, "", is_last=True)
            calls = [{"function": choice.calls[at]} for at in sorted(choice.calls)]
            for call in call_texts(calls):
                self._write(index, f"\n{call}" if choice.text else call)
            answers.append(ended_answer(choice.text, choice.reason, is_refused=choice.is_refused))
        return answers, [choice.pieces for choice in self._choices]

    def _extend(self, index: int, part: Mapping[str, Any]) -> None:
        choice, delta = self._choices[index], part.get("delta") or {}
        if not isinstance(delta, Mapping):
            raise MalformedAnswer(f"the delta of a chunk is {short(delta)}")
        refusal, calls = text_of(delta.get("refusal")), delta.get("tool_calls")
        text = text_of(delta.get("content")) or refusal
        if choice.reason and (text or calls):
            raise MalformedAnswer(f"text follows the end of an answer: {short(part)}")
        choice.is_refused |= bool(refusal)
        self._write(index, text)
        _add_calls(choice, calls)
        choice.reason = choice.reason or part.get("finish_reason")

    def _write(self, index: int, text: str, *, is_last: bool = False) -> None:
        """Add text to a choice, but for half a character at its end, which the next one ends."""
        choice = self._choices[index]
        text, choice.half = choice.half + text, ""
        if not is_last and "\ud800" <= text[-1:] <= "\udbff":
            text, choice.half = text[:-1], text[-1]
        if not text:
            return
        choice.text += valid_text(text)
        choice.pieces.append(self._tokenizer.encode(valid_text(text)))
        for token in choice.pieces[-1].tolist():
            self._on_token(index, token)
        field, limit = self._limit
        if isinstance(limit, int) and choice.tokens > estimate_limit(limit):
            raise BackendError(ignored_limit(field, limit, f"more than about {choice.tokens}"))


def _add_calls(choice: _Choice, calls: Any) -> None:
    """Add parts of tool calls: the name of each arrives first, and its arguments in pieces."""
    if calls is None:
        return
    if not isinstance(calls, list):
        raise MalformedAnswer(f"tool_calls is {short(calls)}, and no list")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        index = call.get("index", 0) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or type(index) is not int:
            raise MalformedAnswer(f"a tool call has no function: {short(call)}")
        known = choice.calls.setdefault(index, {"name": "", "arguments": ""})
        known["name"] = known["name"] or text_of(function.get("name"))
        known["arguments"] += text_of(function.get("arguments"))
