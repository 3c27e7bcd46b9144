"""Answers of the chat endpoint, as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.openai.errors import MalformedAnswer
from kitchen.errors import BackendError
from kitchen.safe_text import read_json

# an answer that a filter has cut is as incomplete as one that is too long
INCOMPLETE = ("length", "content_filter")


@dataclass(frozen=True)
class ChatAnswer:
    """One choice: its text, with tool calls in the form that `parse_tool_calls` reads."""

    text: str
    is_complete: bool  # False if the model ran out of tokens, refused, or was cut by a filter
    is_refused: bool = False


def chat_answers(body: Any) -> Sequence[ChatAnswer]:
    """Read the choices of an answer; raises MalformedAnswer if there is none."""
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices:
        raise MalformedAnswer(f"it has no choices: {_short(body)}")
    return [_answer(choice) for choice in choices]


def check_length(answer: Any, body: Mapping[str, Any], field: str) -> None:
    """Raise BackendError if the server has ignored the field that limits tokens."""
    choices, usage = answer["choices"], answer.get("usage")
    written = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    if isinstance(written, int) and written > body[field] * len(choices):
        raise BackendError(
            f"the server ignores {field}={body[field]}: {len(choices)} answers have {written} "
            "tokens; set sampling.limit_field to the field that it knows, such as max_tokens"
        )


def _answer(choice: Any) -> ChatAnswer:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        raise MalformedAnswer(f"a choice has no message: {_short(choice)}")
    reason, refusal = choice.get("finish_reason"), message.get("refusal")
    is_refused = bool(refusal) or reason == "content_filter"
    text = _text(message.get("content"))
    if isinstance(refusal, str) and not text:
        text = valid_text(refusal)
    calls = map(_call, message.get("tool_calls") or ())
    text = "\n".join(part for part in (text, *calls) if part)
    return ChatAnswer(text, reason not in INCOMPLETE and not is_refused, is_refused)


def _text(content: Any) -> str:
    """Return a content that is a text, or a list of parts of type `text`."""
    if content is None or isinstance(content, str):
        return valid_text(content or "")
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        texts = [str(part.get("text", "")) for part in content if part.get("type") == "text"]
        return valid_text("".join(texts))
    raise MalformedAnswer(f"a message has the content {_short(content)}, which is no text")


def valid_text(text: str) -> str:
    """Return a text with U+FFFD for halves of surrogate pairs, which JSON may have."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _call(call: Any) -> str:
    """Write a call as models do in text; one that cannot be read stays as it is."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise MalformedAnswer(f"a tool call has no function: {_short(call)}")
    try:
        arguments = read_json(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        arguments = function.get("arguments")
    written = json.dumps({"name": function.get("name"), "arguments": arguments})
    return f"<tool_call>{written}</tool_call>"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."
