"""Prefills: the beginning of an answer that the prompt gives, and that the answer continues."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kitchen import ports
from kitchen.errors import DataError
from kitchen.safe_text import read_json
from stages.chat.messages import Message
from stages.chat.row_fields import REASONING

_MARK = "zqcontinueqz"  # stands where the answer continues a prefill
_THOUGHT, _THOUGHT_END = "<think>", "</think>"


def before_answer(
    prompt: Sequence[Message], answer: Sequence[Message]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return a prompt and its answer; if both are by the assistant, the answer continues it."""
    if prompt and answer and prompt[-1].role == answer[0].role == "assistant":
        return (*prompt[:-1], replace(prompt[-1], prefix=True)), tuple(answer)
    return tuple(prompt), tuple(answer)


def check_prefills(messages: Sequence[Message], *, answered: bool) -> None:
    """Raise DataError for a prefill that cannot be continued.

    The message after a prefill continues it, and has to be there if the messages are `answered`.
    """
    following: Sequence[Message | None] = [*messages[1:], None]
    for index, (message, answer) in enumerate(zip(messages, following, strict=True)):
        if not message.prefix:
            continue
        problem = _problem(message, answer)
        if answer is None and answered:
            problem = "the answer is missing; add it as another message of the assistant"
        if problem:
            raise DataError(
                f"message {index} (assistant) cannot be continued: {problem}. It is a prefill: "
                "the last message of the prompt, or one with 'prefix': true"
            )


def _problem(prefill: Message, answer: Message | None) -> str:
    """Return why a message cannot be continued by the answer; empty if it can."""
    thoughts = [name for name in REASONING if name in prefill.fields]
    if "tool_calls" in prefill.fields:
        return "it has tool calls, so a message of the tool must follow"
    if thoughts and not prefill.content:
        return (
            f"it has no content, only {thoughts[0]!r}; write the thought as content: '<think>...'"
        )
    if prefill.trainable:
        return "it is marked to be trained on, and a prefill is context; remove the mark"
    if answer is None:
        return ""
    if answer.role != "assistant":
        return f"the next message has the role {answer.role!r}; let the answer follow"
    if any(name in answer.fields for name in REASONING):
        return "the message that continues it has a separate thought; write it as content"
    return ""


def joined_prefills(messages: Sequence[ports.Message]) -> list[ports.Message]:
    """Return messages of which each prefill is one with the message that continues it."""
    joined: list[ports.Message] = []
    is_open = False
    for message in messages:
        fields = {name: value for name, value in message.items() if name != "prefix"}
        if is_open and message["role"] == "assistant":
            last = joined.pop()
            fields = {**last, **fields, "content": last["content"] + fields["content"]}
        joined.append(fields)
        is_open = is_prefill(message)
    return joined


def is_prefill(message: ports.Message) -> bool:
    """Return whether the next message continues this one."""
    return message["role"] == "assistant" and message.get("prefix") is True


def json_prefill(prefill: str, answer: str) -> str:
    """Return the part of a prefill that begins the JSON object of an answer; "" if there is none.

    It may begin with a code fence.
    """
    if _is_object(answer):
        return ""
    for start in re.finditer(r"```|\{", prefill):
        beginning = prefill[start.start() :]
        body = (beginning + answer).strip().removesuffix("```")
        if _is_object(body.removeprefix("```json").removeprefix("```")):
            return beginning
    return ""


def _is_object(text: str) -> bool:
    try:
        return isinstance(read_json(text), dict)
    except (ValueError, RecursionError):
        return False


def with_open_end(messages: Sequence[ports.Message]) -> tuple[ports.Message, ...]:
    """Return the messages of an environment; a last one by the assistant is a prefill.

    With 'prefix': false it is a separate message.
    """
    if not messages or messages[-1]["role"] != "assistant" or "prefix" in messages[-1]:
        return tuple(messages)
    return (*messages[:-1], {**messages[-1], "prefix": True})


def text_to_continue(
    messages: Sequence[ports.Message], render: Callable[[Sequence[ports.Message]], str]
) -> str:
    """Render a conversation up to the end of its prefill, as `continue_final_message` does.

    A mark behind the prefill shows its end. An unfinished thought is closed behind the mark, since
    templates render only complete ones. Raises DataError if the template changes the prefill.
    """
    *before, last = messages
    content = last["content"]
    is_thought = content.rfind(_THOUGHT) > content.rfind(_THOUGHT_END)
    ending = f"\n{_THOUGHT_END}\n\n{_MARK[:2]}" if is_thought else ""
    marked: Mapping[str, Any] = {**last, "content": content + _MARK + ending}
    text = render([*before, marked])
    until = text[: text.find(_MARK)]
    if text.count(_MARK) != 1 or "".join(content.split()) not in "".join(until.split()):
        raise DataError(
            f"the chat template changes message {len(before)} (assistant), which the answer is to "
            "continue, so its end is unknown: remove the message, or set another template "
            "(rendering.template=FILE)"
        )
    return until
