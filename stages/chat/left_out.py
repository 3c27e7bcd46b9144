"""Parts of messages that a chat template leaves out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from kitchen.errors import DataError
from kitchen.ports.sampling import Tokenizer
from stages.chat.messages import Message, message_to_dict
from stages.chat.template import TemplateInputs, text_by_template

_THOUGHT_TAGS = re.compile(r"</?think(?:ing)?>")


def check_messages_rendered(
    messages: Sequence[Message], tokenizer: Tokenizer, inputs: TemplateInputs, *, answer: bool
) -> None:
    """Raise DataError for a message with text whose text changes nothing.

    One more rendering shows it, with a mark in place of each text. A template may drop a message
    for what it says, or an early one once there are later ones: then only that one is rendered
    again.
    """
    given = [index for index, message in enumerate(messages) if message.content.strip()]
    marked = list(messages)
    for index in given:
        marked[index] = replace(messages[index], content=_mark(index))
    text = _text(marked, tokenizer, inputs, answer=answer) or ""
    for index in given:
        if _mark(index) not in text and not _is_read(index, messages, tokenizer, inputs):
            message = messages[index]
            raise DataError(
                f"the chat template leaves out message {index} ({message.role}): "
                f"{short(message.content)}. Remove it from the row, or set a template that writes "
                "it (rendering.template=FILE)"
            )


def _mark(index: int) -> str:
    return f"zq{index}qz"


def _is_read(
    index: int, messages: Sequence[Message], tokenizer: Tokenizer, inputs: TemplateInputs
) -> bool:
    """Return whether other text in a message changes the conversation, or the one up to it."""
    message = messages[index]
    changed = replace(message, content=f"{message.content} {_mark(index)}")
    # raises what the template says if it refuses the conversation
    whole = text_by_template(list(map(message_to_dict, messages)), tokenizer, inputs)
    if whole != _text([*messages[:index], changed, *messages[index + 1 :]], tokenizer, inputs):
        return True
    before = messages[:index]
    return _text([*before, message], tokenizer, inputs) != _text(
        [*before, changed], tokenizer, inputs
    )


def _text(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    inputs: TemplateInputs,
    *,
    answer: bool = False,
) -> str | None:
    """Return the rendered text; None if the template refuses the messages."""
    try:
        return text_by_template(
            list(map(message_to_dict, messages)), tokenizer, inputs, answer=answer
        )
    except DataError:
        return None


def missing_text(content: str, rendered: str, *, as_json: bool = False) -> str:
    """Return what a rendered text lacks of the content of a message; empty if it has all of it.

    White space at the ends does not count, nor the tags around a thought, which templates may
    write anew. With `as_json`, the content may be escaped as in JSON.
    """
    if _end_of(content, rendered, 0, as_json) is not None:
        return ""
    at = 0
    for part in _THOUGHT_TAGS.split(content):
        end = _end_of(part, rendered, at, as_json)
        if end is None:
            lines = [line for line in part.splitlines() if line.strip() not in rendered[at:]]
            return "\n".join(lines).strip() or part.strip()
        at = end
    return ""


def _end_of(text: str, rendered: str, start: int, as_json: bool) -> int | None:
    """Return where a text, without white space at its ends, ends in another one, if it is there."""
    text = text.strip()
    forms = [text]
    if as_json:
        forms += [json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]
    for form in forms:
        at = rendered.find(form, start)
        if at >= 0:
            return at + len(form)
    return None


def padded_answer(content: str) -> str:
    """Return the answer in a message, without its thought, if white space is at its ends; else "".

    Line breaks between a thought and the answer do not count: templates write them anew.
    """
    *thought, answer = _THOUGHT_TAGS.split(content)
    if thought:
        answer = answer.lstrip("\r\n")
    is_padded = bool(answer.strip()) and answer != answer.strip()
    return answer if is_padded else ""


def short(text: str) -> str:
    """Quote a text, or its beginning."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
