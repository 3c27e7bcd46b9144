"""Conversations, and the shapes of row that they are read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kitchen import ports
from kitchen.errors import DataError, did_you_mean
from kitchen.ports.datasets import Row

ROLES: Mapping[str, str] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
SHAREGPT: Mapping[str, str] = {**ROLES, "human": "user", "gpt": "assistant"}
FORMATS = (
    "messages: [{role, content}, ...]",
    "conversations: [{from, value}, ...] (ShareGPT)",
    "prompt + completion",
    "instruction (+ input or context) + response or output",
    "input + output",
)
_USUAL: Mapping[str, Sequence[str]] = {  # names that the columns have elsewhere
    "prompt": ("question", "instruction", "input", "query", "problem"),
    "completion": ("answer", "response", "output", "solution"),
}
# to pass over these would train on something else than was meant
_UNREAD = ("tool_calls", "function_call", "weight")


@dataclass(frozen=True)
class Message:
    """What one speaker says at once."""

    role: str  # system, user, assistant or tool
    content: str
    trainable: bool | None = None  # read by train_on="trainable" alone


@dataclass(frozen=True)
class Conversation:
    """Messages in order, and where a person finds them."""

    messages: tuple[Message, ...]  # at least one
    where: str  # "chats.jsonl:12"
    single_turn: bool = False  # one prompt and one answer: can be joined without a chat template
    # a model wrote the answer: left out where the chat template has no such text
    sampled: bool = False


@dataclass(frozen=True)
class TrainRows:
    """The conversations to train on; they may be read when they are asked for."""

    conversations: Sequence[Conversation]


def with_system_prompt(parse_conversation: Conversation, instruction: str) -> Conversation:
    """With a system prompt, before the one that may be there."""
    if not instruction:
        return parse_conversation
    first, *others = parse_conversation.messages
    if first.role == "system":
        instruction, rest = f"{instruction}\n\n{first.content}", others
    else:
        rest = [first, *others]
    return replace(
        parse_conversation, messages=(Message("system", instruction), *rest), single_turn=False
    )


def messages_from_dicts(messages: Sequence[ports.Message]) -> tuple[Message, ...]:
    """What tokenizers and environments know as messages."""
    return tuple(Message(each["role"], each["content"]) for each in messages)


def parse_conversation(row: Row, where: str) -> Conversation:
    """The conversation of a row in any of FORMATS; the first that fits is taken, columns beyond it
    are passed over.

    `where` is the row's place, which every error begins with. Raises DataError that names the
    field, or that shows the row and lists the formats, or where a `label` says that the answer is
    bad.
    """
    _check_good(row, where)
    for fields, read in _READERS:
        if all(row.get(field) is not None for field in fields):
            return _checked(read(row, where), where)
    for fields, _ in _READERS:
        lacking = [field for field in fields if row.get(field) is None]
        if len(lacking) < len(fields):
            there = ", ".join(repr(field) for field in fields if field not in lacking)
            what = "is null" if lacking[0] in row else "is missing"
            raise DataError(
                f"{where}: {there} is there and {lacking[0]!r} {what}; add it, or drop the row"
                f"{_renamed(row, lacking[0])}"
            )
    shown = ", ".join(f"{name}: {_short(value)}" for name, value in row.items())
    known = f"{'; '.join(FORMATS)}{_renamed(row, 'prompt')}"
    raise DataError(f"{where}: no known format in the row {{{shown}}}; there are: {known}")


def _check_good(row: Row, where: str) -> None:
    """Raise DataError where a label says that the answer is bad; in CSV, true and false are text."""
    if (label := row.get("label")) is False or (
        isinstance(label, str) and label.strip().lower() == "false"
    ):
        raise DataError(
            f"{where}: label is false, a bad answer, which recipes.kto alone learns from as such; "
            "drop the "
            "row, or, where the column says something else, rename it "
            "(reading.columns.label=other, or in "
            "the file)"
        )


def parse_completion(row: Row, field: str, where: str) -> Conversation:
    """The `prompt` of a row and the answer in this field, each text or a list of messages.

    A list in which the prompt is said before the last message, or beside which there is none, is
    the whole conversation already; one that goes on after the prompt begins with the assistant.
    Raises DataError as `conversation` does.
    """
    asked = () if row.get("prompt") in (None, "", []) else _spoken(row, "prompt", "user", where)
    found = _spoken(row, field, "assistant", where)
    if len(found) == 1 and not asked:
        raise DataError(
            f"{where}: {field!r} is an answer alone, and 'prompt' is missing; add it, or drop the "
            "row"
            f"{_renamed(row, 'prompt')}"
        )
    if _is_said(asked, found[:-1]):
        return _checked(found, where)
    if found[0].role in ("system", "user"):
        raise DataError(
            f"{where}: {field} begins with a message of {found[0].role!r}, as a whole conversation "
            "does, "
            "but what 'prompt' says is not in it; let it hold the answer alone, or rename the "
            "other column "
            "(reading.columns.prompt=other)"
        )
    return _checked((*asked, *found), where)


def _is_said(asked: Sequence[Message], before: Sequence[Message]) -> bool:
    """Whether a prompt is among the messages before an answer; or is all of them, as a chat
    template writes them.
    """
    there, prompt = (
        [(each.role, each.content.strip()) for each in some] for some in (before, asked)
    )
    if any(there[at : at + len(prompt)] == prompt for at in range(len(there) - len(prompt) + 1)):
        return True
    begun = there[0][0] if there else ""
    return (
        len(prompt) == 1
        and begun in ("system", "user")
        and all(content in prompt[0][1] for _, content in there)
    )


def _checked(messages: tuple[Message, ...], where: str) -> Conversation:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise DataError(
            f"{where}: no assistant message to train on; the messages are from: {', '.join(roles)}"
        )
    return Conversation(messages, where, single_turn=roles == ["user", "assistant"])


def _renamed(row: Row, wanted: str) -> str:
    """How to give columns the names that are known, for a row that has others: the usual ones, if
    it has such.
    """
    known = {"chosen", "rejected", "label", *(field for fields, _ in _READERS for field in fields)}
    others = [name for name in _USUAL.get(wanted, ()) if name in row] or [
        name for name in row if name not in known
    ]
    return (
        f"; where a column has another name: reading.columns.{others[0]}={wanted}" if others else ""
    )


def _asked(row: Row, prompt: str, answer: str, where: str) -> tuple[Message, ...]:
    """Either may be a list of messages itself."""
    return (*_spoken(row, prompt, "user", where), *_spoken(row, answer, "assistant", where))


def _instruction(row: Row, where: str) -> tuple[Message, ...]:
    """Alpaca's `input` and Dolly's `context` are what the instruction is about: they follow it
    after an empty line.
    """
    prompt = _text(row["instruction"], "instruction", where)
    for field in ("input", "context"):
        if row.get(field):
            prompt += "\n\n" + _text(row[field], field, where)
    answer = "response" if row.get("response") is not None else "output"
    return Message("user", prompt), Message("assistant", _text(row[answer], answer, where))


def _spoken(row: Row, field: str, role: str, where: str) -> tuple[Message, ...]:
    if isinstance(row[field], list | tuple):
        return _listed(row, field, where)
    return (Message(role, _text(row[field], field, where)),)


def _listed(row: Row, field: str, where: str) -> tuple[Message, ...]:
    items = row[field]
    if not isinstance(items, list | tuple):
        raise DataError(f"{where}: {field} is {_kind(items)}, not a list of messages")
    if not items:
        raise DataError(f"{where}: {field} is empty; a conversation has at least one message")
    return tuple(_message(item, f"{field}[{index}]", where) for index, item in enumerate(items))


def _message(item: Any, place: str, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: {place} is {_kind(item)}, not a message with role and content")
    role, content, roles = (
        ("from", "value", SHAREGPT) if "from" in item else ("role", "content", ROLES)
    )
    for field in (role, content):
        if field not in item:
            raise DataError(
                f"{where}: {place} has no {field!r}; it has: "
                f"{', '.join(map(repr, item)) or 'nothing'}"
            )
    for field in _UNREAD:
        if item.get(field) not in (None, [], {}):
            raise DataError(
                f"{where}: {place}.{field} is not read here: messages are text, "
                "and 'trainable' (true or false) says which to train on"
            )
    spoken_by = _text(item[role], f"{place}.{role}", where)
    if spoken_by not in roles:
        raise DataError(
            f"{where}: {place}.{role} {spoken_by!r} is unknown; {did_you_mean(spoken_by, roles)}"
        )
    trainable = item.get("trainable")
    if trainable is not None and not isinstance(trainable, bool):
        raise DataError(f"{where}: {place}.trainable is {_kind(trainable)}, not true or false")
    return Message(roles[spoken_by], _text(item[content], f"{place}.{content}", where), trainable)


def _text(value: Any, place: str, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(
            f"{where}: {place} is {_kind(value)}, not text; make it text, or drop the row"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {place} has half a character (a lone surrogate) at {error.start}"
        ) from error
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = (
        (bool, "true or false"),
        (int | float, "a number"),
        (str, "text"),
        (list | tuple, "a list"),
    )
    named = [name for kind, name in kinds if isinstance(value, kind)]
    return (
        named[0]
        if named
        else "an object"
        if isinstance(value, Mapping)
        else f"of type {type(value).__name__}"
    )


def _short(value: Any) -> str:
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


_READERS: tuple[tuple[tuple[str, ...], Callable[[Row, str], tuple[Message, ...]]], ...] = (
    (("messages",), lambda row, where: _listed(row, "messages", where)),
    (("conversations",), lambda row, where: _listed(row, "conversations", where)),
    (("prompt", "completion"), lambda row, where: _asked(row, "prompt", "completion", where)),
    (("instruction", "response"), _instruction),
    (("instruction", "output"), _instruction),
    (("input", "output"), lambda row, where: _asked(row, "input", "output", where)),
)
