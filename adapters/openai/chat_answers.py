"""Answers of the chat endpoint, as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.openai.errors import MalformedAnswer
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError
from kitchen.safe_text import read_json

# reasons for the end of an answer, in lower case
COMPLETE = (
    *("stop", "tool_calls", "function_call", "end_turn"),
    *("eos", "eos_token", "stop_sequence"),  # of Together and Text Generation Inference
)
FAILED = ("error", "abort")
OUT_OF_TOKENS = ("length", "max_tokens")
REFUSED = "refused or cut by a filter"
EMPTY = "empty"
# estimates of tokens may be this many times too high, and so many tokens more
LIMIT_FACTOR, LIMIT_EXTRA = 4, 64


@dataclass(frozen=True)
class ChatAnswer:
    """One choice: its text, with tool calls in the form that `parse_tool_calls` reads."""

    text: str
    is_complete: bool  # False if the model ran out of tokens, refused, or wrote nothing
    flaw: str = ""  # why it is incomplete, unless it ran out of tokens


def chat_answers(body: Any) -> Sequence[ChatAnswer]:
    """Read the choices of an answer; raises MalformedAnswer if there is none."""
    choices = body.get("choices") if isinstance(body, Mapping) else None
    if not isinstance(choices, list) or not choices:
        raise MalformedAnswer(f"it has no choices: {short(body)}")
    return [_answer(choice) for choice in choices]


def check_length(
    answers: Sequence[ChatAnswer], usage: Any, limit: Any, field: str, tokenizer: TextTokenizer
) -> None:
    """Raise BackendError if the server has ignored the field that limits tokens.

    Where a server reports no usage, the texts are measured, with a wide margin.
    """
    if not isinstance(limit, int):
        return
    written = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    if isinstance(written, int | float) and math.isfinite(written) and written > 0:
        if written > limit * len(answers):
            raise BackendError(ignored_limit(field, limit, f"{written:.0f}"))
        return
    longest = max(len(tokenizer.encode(answer.text)) for answer in answers)
    if longest > estimate_limit(limit):
        raise BackendError(ignored_limit(field, limit, f"about {longest}"))


def estimate_limit(limit: int) -> int:
    """Return the largest estimate of tokens at which a server may have kept a limit."""
    return LIMIT_FACTOR * limit + LIMIT_EXTRA


def ignored_limit(field: str, limit: int, tokens: str) -> str:
    """Return the text of an error for a server that ignores the limit on tokens."""
    return (
        f"the server ignores {field}={limit}: its answer has {tokens} tokens; set "
        "sampling.limit_field to the field that it knows, such as max_tokens"
    )


def ended_answer(text: str, reason: Any, *, is_refused: bool) -> ChatAnswer:
    """Return an answer that ended for a reason; raises MalformedAnswer for a failure or none."""
    if not reason:
        raise MalformedAnswer("an answer has no finish_reason, so it may be cut off")
    kind = reason.lower() if isinstance(reason, str) else reason
    if kind in FAILED:
        raise MalformedAnswer(f"an answer ended with finish_reason {short(reason)}")
    flaw = ""
    if is_refused or kind == "content_filter":
        flaw = REFUSED
    elif not text.strip():
        flaw = EMPTY
    elif kind not in COMPLETE and kind not in OUT_OF_TOKENS:
        flaw = f"ended with finish_reason {short(reason)}"
    return ChatAnswer(text, kind in COMPLETE and not flaw, flaw)


def _answer(choice: Any) -> ChatAnswer:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        raise MalformedAnswer(f"a choice has no message: {short(choice)}")
    refusal, text = message.get("refusal"), text_of(message.get("content"))
    if isinstance(refusal, str) and not text:
        text = refusal
    text = "\n".join(part for part in (text, *call_texts(message.get("tool_calls"))) if part)
    return ended_answer(valid_text(text), choice.get("finish_reason"), is_refused=bool(refusal))


def text_of(content: Any) -> str:
    """Return a content that is a text, or a list of parts of type `text`."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        texts = [part.get("text") or "" for part in content if part.get("type") == "text"]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    raise MalformedAnswer(f"a message has the content {short(content)}, which is no text")


def valid_text(text: str) -> str:
    """Return a text with U+FFFD for halves of surrogate pairs, which JSON may have."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def call_texts(calls: Any) -> Sequence[str]:
    """Write calls as models do in text; raises MalformedAnswer for what is no list of calls."""
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise MalformedAnswer(f"tool_calls is {short(calls)}, and no list")
    return [_call(call) for call in calls]


def _call(call: Any) -> str:
    """Write a call; arguments that cannot be read stay as they are."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise MalformedAnswer(f"a tool call has no function: {short(call)}")
    try:
        arguments = read_json(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        arguments = function.get("arguments")
    written = json.dumps({"name": function.get("name"), "arguments": arguments})
    return f"<tool_call>{written}</tool_call>"


def short(value: Any) -> str:
    """Return the beginning of a value as JSON, for messages."""
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:200] + "..."
