"""Messages of conversations, and the parsing of one message with all its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kitchen import ports
from kitchen.errors import DataError, did_you_mean
from kitchen.safe_text import read_json
from stages.chat.row_fields import (
    FLAGS,
    REASONING,
    REFUSED_IN_MESSAGES,
    TEMPLATE_FIELDS,
    WEIGHTS,
)

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name
    "user": "user",
    "human": "user",  # ShareGPT
    "assistant": "assistant",
    "gpt": "assistant",  # ShareGPT
    "model": "assistant",  # Gemini
    "bot": "assistant",
    "ai": "assistant",
    "chatbot": "assistant",  # Cohere
    "tool": "tool",
    "function": "tool",  # OpenAI's older name
    "ipython": "tool",  # Llama 3
    "observation": "tool",  # ShareGPT
    "tool_response": "tool",  # ms-swift
    "environment": "tool",  # OLMo
    "function_call": "assistant",  # ShareGPT: its text is the call, as JSON
    "tool_call": "assistant",  # ms-swift: likewise
}
_CALLS = ("function_call", "tool_call")
_TEXT_PARTS = ("text", "input_text", "output_text")  # the latter two in OpenAI's Responses


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: str  # system, user, assistant or tool
    content: str
    trainable: bool | None = None  # whether to train on it; None: rendering.train_on decides
    # fields besides these, for the chat template, such as "reasoning_content"
    fields: Mapping[str, Any] = field(default_factory=dict)
    prefix: bool = False  # a prefill: the next message continues it

    def without(self, names: Sequence[str]) -> Message:
        """Return the message without some of its further fields."""
        kept = {name: value for name, value in self.fields.items() if name not in names}
        return replace(self, fields=kept)


def message_text(message: Message) -> str:
    """Return the content of a message and its tool calls as text."""
    texts = [message.content] if message.content else []
    texts += [json.dumps(call["function"]) for call in message.fields.get("tool_calls", ())]
    return "\n".join(texts)


def message_to_dict(message: Message) -> ports.Message:
    """Convert a message to the dictionary that tokenizers and environments take.

    Chat templates have several names for a thought, so it has all of them.
    """
    fields = dict(message.fields)
    thoughts = [fields[name] for name in REASONING if name in fields]
    if thoughts:
        fields |= dict.fromkeys(REASONING, thoughts[0])
    if message.prefix:
        fields["prefix"] = True
    return {"role": message.role, "content": message.content, **fields}


def messages_from_dicts(messages: Sequence[ports.Message]) -> tuple[Message, ...]:
    """Convert messages from the dictionaries of tokenizers and environments."""
    parsed: list[Message] = []
    for message in messages:
        names = [name for name in message if name not in ("role", "content", "prefix")]
        fields = {name: message[name] for name in names}
        prefix = message.get("prefix") is True
        parsed.append(Message(message["role"], message["content"], fields=fields, prefix=prefix))
    return tuple(parsed)


def parse_message(item: Any, place: str, where: str) -> Message:
    """Parse a message of any format; raises DataError that names the row and the field."""
    if not isinstance(item, Mapping):
        raise DataError(f"{where}: {place} is {kind_of(item)}, not a message with role and content")
    _check_one_form(item, place, where)
    if "from" in item:
        role_field, content_field = "from", "value"
    else:
        role_field, content_field = "role", "content"
    calls = _calls_of(item, place, where)
    _check_fields(item, role_field, place, where)
    name = parse_text(item[role_field], f"{place}.{role_field}", where)
    if name.lower() not in ROLES:
        raise DataError(
            f"{where}: {place}.{role_field} {name!r} is unknown; {did_you_mean(name, ROLES)}"
        )
    role = ROLES[name.lower()]
    if not calls:
        _check_fields(item, content_field, place, where)
    content_place = f"{place}.{content_field}"
    content, thought = _content_of(item.get(content_field), content_place, where, bool(calls))
    if calls and role != "assistant":
        raise DataError(f"{where}: {place} has tool calls, but its role is {name!r}")
    if name.lower() in _CALLS:
        calls, content = parse_calls(content, content_place, where), ""
    fields = _template_fields(item, thought, place, where)
    if calls:
        fields["tool_calls"] = calls
    flag = _flag_of(item, role, place, where)
    return Message(role, content, flag, fields, _is_prefill(item, role, place, where))


def _check_one_form(item: Mapping[str, Any], place: str, where: str) -> None:
    """Raise DataError for a message with role and content, and with others in from and value."""
    if not {"from", "role"} <= item.keys():
        return
    roles = {ROLES.get(str(item[name]).lower(), item[name]) for name in ("from", "role")}
    texts = [item[name] for name in ("value", "content") if name in item]
    if len(roles) > 1 or texts[1:] not in ([], texts[:1]):
        raise DataError(
            f"{where}: {place} has different values in 'from' and 'value' than in 'role' and "
            "'content'; keep one of the two forms"
        )


def _is_prefill(item: Mapping[str, Any], role: str, place: str, where: str) -> bool:
    """Return whether the next message continues this one, as some servers' clients mark it."""
    name = "partial" if item.get("prefix") is None else "prefix"
    value = item.get(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{where}: {place}.{name} is {kind_of(value)}, not true or false")
    if value and role != "assistant":
        raise DataError(
            f"{where}: {place}.{name} is true, but its role is {role!r}: only a message of the "
            "assistant can be continued"
        )
    return bool(value)


def _check_fields(item: Mapping[str, Any], required: str, place: str, where: str) -> None:
    """Raise DataError if a field is missing, or if one that is not supported is there."""
    if required not in item:
        present = ", ".join(map(repr, item)) or "nothing"
        raise DataError(f"{where}: {place} has no {required!r}; it has: {present}")
    for name, reason in REFUSED_IN_MESSAGES.items():
        if item.get(name) not in (None, [], {}, ""):
            raise DataError(
                f"{where}: {place}.{name} is not supported: {reason}. Remove the field, or drop "
                "the row"
            )


def _flag_of(item: Mapping[str, Any], role: str, place: str, where: str) -> bool | None:
    """Return whether the message is to be trained on, if a field says so."""
    flags: dict[str, bool] = {}
    for name in FLAGS:
        value = item.get(name)
        if name in WEIGHTS and value in (0, 1) and not isinstance(value, bool):
            value = bool(value)
        if value is None:
            continue
        if not isinstance(value, bool):
            wanted = "0, 1, true or false" if name in WEIGHTS else "true or false"
            raise DataError(f"{where}: {place}.{name} is {kind_of(value)}, not {wanted}")
        if value and name in WEIGHTS and role != "assistant":
            raise DataError(
                f"{where}: {place}.{name} is {json.dumps(item[name])}, but only messages of the "
                f"assistant can be marked with {name!r}; to train on a message with the role "
                f"{role!r}, write 'train': true instead"
            )
        flags[name] = not value if name == "masked" else value
    if len(set(flags.values())) > 1:
        names = " and ".join(flags)
        raise DataError(f"{where}: {place} has {names}, which contradict each other; keep one")
    return next(iter(flags.values()), None)


def _template_fields(
    item: Mapping[str, Any], thought: str, place: str, where: str
) -> dict[str, Any]:
    """Return the fields that the chat template may read; `thought` is that of the content."""
    fields: dict[str, Any] = {}
    for name in TEMPLATE_FIELDS:
        if item.get(name) not in (None, ""):
            fields[name] = parse_text(item[name], f"{place}.{name}", where)
    if thought:
        fields.setdefault("thinking", thought)
        if fields["thinking"] != thought:
            raise DataError(
                f"{where}: {place} has a thought in its content and another one in 'thinking'; "
                "keep one"
            )
    thoughts = {name: fields[name] for name in REASONING if name in fields}
    if len(set(thoughts.values())) > 1:
        raise DataError(
            f"{where}: {place} has different texts in {' and '.join(thoughts)}; keep one"
        )
    return fields


def _content_of(
    value: Any, place: str, where: str, may_be_missing: bool = False
) -> tuple[str, str]:
    """Return the text and the thought of a message's content, which may be a list of parts."""
    if value is None and may_be_missing:
        return "", ""
    is_list = isinstance(value, list | tuple) and bool(value)
    if not is_list or not all(isinstance(part, Mapping) for part in value):
        return parse_text(value, place, where), ""
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    for index, part in enumerate(value):
        kind = part.get("type", "text" if "text" in part else None)
        field = "text" if kind in _TEXT_PARTS else kind
        if field not in texts:
            raise DataError(
                f"{where}: {place}[{index}] has the type {kind!r}, which is not supported: "
                "training reads only text. Remove the part, or drop the row"
            )
        text = part.get(field)
        if field == "thinking" and isinstance(text, list | tuple):  # parts of text, as Mistral has
            text, _ = _content_of(text, f"{place}[{index}].{field}", where)
        texts[field].append(parse_text(text, f"{place}[{index}].{field}", where))
    return "".join(texts["text"]), "".join(texts["thinking"])


def _calls_of(item: Mapping[str, Any], place: str, where: str) -> list[dict[str, Any]]:
    """Return the tool calls of a message, in `tool_calls` or in the older `function_call`."""
    calls: list[dict[str, Any]] = []
    for name in ("tool_calls", "function_call"):
        if item.get(name) not in (None, [], {}, ""):
            if calls:
                raise DataError(f"{where}: {place} has tool_calls and function_call; keep one")
            calls = parse_calls(item[name], f"{place}.{name}", where)
    return calls


def parse_calls(value: Any, place: str, where: str) -> list[dict[str, Any]]:
    """Parse tool calls: a list or one call, which may be JSON text, in the form of OpenAI.

    The arguments become an object, which chat templates expect; OpenAI has them as JSON text.
    """
    if isinstance(value, str):
        value = parse_json(value, place, where)
    items = list(value) if isinstance(value, list | tuple) else [value]
    return [_call_of(item, f"{place}[{index}]", where) for index, item in enumerate(items)]


def _call_of(item: Any, place: str, where: str) -> dict[str, Any]:
    check_characters(item, place, where)
    function = item
    if isinstance(item, Mapping) and isinstance(item.get("function"), Mapping):
        function = item["function"]
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where}: {place} is not a call of a function: it needs a 'name' and 'arguments'"
        )
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f"{place}.arguments", where)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"{where}: {place}.arguments is {kind_of(arguments)}, not an object of arguments, nor "
            "one as JSON text"
        )
    call: dict[str, Any] = {"type": "function"}
    if item is not function and item.get("id") is not None:
        call["id"] = item["id"]
    call["function"] = {"name": function["name"], "arguments": dict(arguments)}
    return call


def parse_json(text: str, place: str, where: str) -> Any:
    """Parse a text as JSON; raises DataError if it is not valid."""
    try:
        value = read_json(text)
    except ValueError as error:
        raise DataError(f"{where}: {place} is text that is not JSON: {error}") from error
    check_characters(value, place, where)
    return value


def parse_text(value: Any, place: str, where: str) -> str:
    """Return a value that is text; raises DataError for any other."""
    if not isinstance(value, str):
        raise DataError(
            f"{where}: {place} is {kind_of(value)}, not text; make it text, or drop the row"
        )
    check_characters(value, place, where)
    return value


def check_characters(value: Any, place: str, where: str) -> None:
    """Raise DataError for half a character in a text, or in the texts of a list or object."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: {place} has half a character (a lone surrogate) at {error.start}; "
                "correct the text, or drop the row"
            ) from error
    elif isinstance(value, Mapping):
        for name, item in value.items():
            check_characters(name, f"a name in {place}", where)
            check_characters(item, f"{place}.{name}", where)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_characters(item, f"{place}[{index}]", where)


def kind_of(value: Any) -> str:
    """Return a phrase for the JSON type of a value: "a number"."""
    if value is None:
        return "null"
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "true or false"),
        (int | float, "a number"),
        (str, "text"),
        (list | tuple, "a list"),
        (Mapping, "an object"),
    )
    names = [name for kind, name in kinds if isinstance(value, kind)]
    return names[0] if names else f"of type {type(value).__name__}"
