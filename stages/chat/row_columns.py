"""Columns beside the conversation of a row: tools, system, history, template variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kitchen.errors import DataError
from kitchen.ports.datasets import Row
from kitchen.ports.sampling import ToolSchema
from stages.chat.messages import (
    Message,
    check_characters,
    kind_of,
    parse_json,
    parse_message,
    parse_text,
)
from stages.chat.row_fields import (
    REASONING,
    REFUSED_IN_OTHER_ROWS,
    REFUSED_IN_ROWS,
    ROW_WEIGHTS,
)
from stages.chat.template import TemplateInputs
from stages.chat.text_columns import list_from_text

_EMPTY: tuple[Any, ...] = (None, "", [], {})
# of a JSON schema, the keys for which null is a value; elsewhere, tables of Parquet have null for
# keys that other rows have
_NULLABLE = ("default", "const")
# texts of columns that switch thinking on or off, or set its effort
_SWITCHES = ("on", "off", "true", "false", "yes", "no", "1", "0", "enabled", "disabled")
_EFFORTS = ("none", "null", "auto", "minimal", "low", "medium", "high")


def check_columns(row: Row, where: str, refused: Mapping[str, str] = REFUSED_IN_ROWS) -> None:
    """Raise DataError for a column whose meaning is known, but not supported."""
    for name, reason in refused.items():
        is_neutral = name in ROW_WEIGHTS and row.get(name) in (1, "1", "1.0")
        if is_filled(row, name) and not is_neutral:
            raise DataError(
                f"{where}: the column {name!r} is not supported: {reason}. Drop the row, or, if "
                f"the column means something else, rename it (reading.columns.{name}=other)"
            )


def check_format_supported(row: Row, where: str) -> None:
    """Raise DataError for a row in a known format that is not supported."""
    for name, reason in REFUSED_IN_OTHER_ROWS.items():
        if is_filled(row, name):
            raise DataError(f"{where}: the column {name!r} is not supported: {reason}")
    if is_filled(row, "text"):
        raise DataError(
            f"{where}: a row of plain text has no prompt and answer, which are needed here; "
            "recipes.sl_basic and recipes.chat_sl train on such rows; if the text is the answer, "
            "rename the column (reading.columns.text=completion)"
        )


def is_filled(row: Row, name: str) -> bool:
    """Return whether a row has a value in a column, other than an empty one."""
    value = row.get(name)
    return not any(value is empty or value == empty for empty in _EMPTY)


def template_inputs(row: Row, where: str) -> TemplateInputs:
    """Parse the columns that the chat template reads besides messages."""
    name = _one_of(row, ("tools", "functions"), where)
    tools = _parse_tools(row[name], name, where) if name else ()
    kwargs: Mapping[str, Any] = {}
    if is_filled(row, "chat_template_kwargs"):
        kwargs = _parse_kwargs(row["chat_template_kwargs"], where)
    return TemplateInputs(tools, kwargs)


def with_system_and_history(
    messages: Sequence[Message], row: Row, where: str
) -> tuple[Message, ...]:
    """Return the messages behind those of the columns `system` and `history`."""
    first = [message for message in messages[:1] if message.role == "system"]
    rest = messages[len(first) :]
    if name := _one_of(row, ("system", "system_prompt"), where):
        system = Message("system", parse_text(row[name], name, where))
        if first and first[0].content.strip() != system.content.strip():
            raise DataError(
                f"{where}: the row has the column {name!r}, but its messages begin with another "
                "system message; keep one of the two"
            )
        first = first or [system]
    history = _parse_history(row, where) if is_filled(row, "history") else ()
    return (*first, *history, *rest)


def with_thought(messages: Sequence[Message], row: Row, where: str) -> tuple[Message, ...]:
    """Return the messages with the thought from a separate column added to the answer."""
    name = _one_of(row, REASONING, where)
    if not name:
        return tuple(messages)
    thought = _parse_thought(row, name, where)
    check_no_thought_beside(row, ("messages", "conversations", "chosen", "rejected"), where)
    *prompt, answer = messages
    has_thought = "<think>" in answer.content or any(field in answer.fields for field in REASONING)
    if has_thought or answer.role != "assistant":
        raise DataError(
            f"{where}: the row has the column {name!r}, but its answer has a thought, too, or does "
            f"not end with a message of the assistant; keep one thought, or {_renamed(name)}"
        )
    return (*prompt, replace(answer, fields={**answer.fields, name: thought}))


def check_no_thought_beside(row: Row, columns: Sequence[str], where: str) -> None:
    """Raise DataError for a thought in a separate column if one of `columns` is filled, too."""
    name = _one_of(row, REASONING, where)
    beside = [column for column in columns if is_filled(row, column)]
    if name and beside:
        raise DataError(
            f"{where}: the row has the column {name!r} beside {beside[0]!r}; write the thought "
            f"into its message, as the field {name!r}, or {_renamed(name)}"
        )


def _parse_thought(row: Row, name: str, where: str) -> str:
    """Return the thought in a column; raises DataError for one that switches thinking instead."""
    value = row[name]
    if not isinstance(value, str):
        raise DataError(
            f"{where}: {name} is {kind_of(value)}, not text. If it is not the thought of the "
            f"answer, {_renamed(name)}; otherwise make it text"
        )
    if value.strip().lower() in (*_SWITCHES, *_EFFORTS):
        raise DataError(
            f"{where}: {name} is {value!r}, which is a setting, not the thought of the answer; "
            f"{_renamed(name)}"
        )
    return parse_text(value, name, where)


def _renamed(name: str) -> str:
    return f"rename the column (reading.columns.{name}=other)"


def _one_of(row: Row, names: Sequence[str], where: str) -> str:
    """Return the one of these columns that is filled, or ""; raises DataError for two."""
    filled = [name for name in names if is_filled(row, name)]
    if len(filled) > 1:
        raise DataError(f"{where}: the row has {' and '.join(filled)}, which mean the same")
    return filled[0] if filled else ""


def _parse_history(row: Row, where: str) -> tuple[Message, ...]:
    """Parse pairs [question, answer], as LLaMA-Factory has them, or messages."""
    for name in ("messages", "conversations"):
        if is_filled(row, name):
            raise DataError(
                f"{where}: the row has {name!r} and 'history'; put the history into {name!r}"
            )
    pairs = row["history"]
    if isinstance(pairs, str):
        pairs = list_from_text(pairs)
    if not isinstance(pairs, list | tuple):
        raise DataError(
            f"{where}: history is {kind_of(pairs)}, not a list of pairs [question, answer], nor "
            "of messages"
        )
    messages: list[Message] = []
    for index, pair in enumerate(pairs):
        if isinstance(pair, Mapping):
            messages.append(parse_message(pair, f"history[{index}]", where))
            continue
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise DataError(
                f"{where}: history[{index}] is neither a pair [question, answer] nor a message"
            )
        for role, text in zip(("user", "assistant"), pair, strict=True):
            messages.append(Message(role, parse_text(text, f"history[{index}]", where)))
    return tuple(messages)


def _parse_kwargs(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = parse_json(value, "chat_template_kwargs", where)
    if not isinstance(value, Mapping):
        raise DataError(
            f"{where}: chat_template_kwargs is {kind_of(value)}, not an object of variables, such "
            'as {"enable_thinking": false}'
        )
    check_characters(value, "chat_template_kwargs", where)
    return {name: setting for name, setting in value.items() if setting is not None}


def _parse_tools(value: Any, name: str, where: str) -> tuple[ToolSchema, ...]:
    if isinstance(value, str):
        value = parse_json(value, name, where)
    items = [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list | tuple):
        raise DataError(f"{where}: {name} is {kind_of(items)}, not a list of tools")
    return tuple(_parse_tool(item, f"{name}[{index}]", where) for index, item in enumerate(items))


def _parse_tool(item: Any, place: str, where: str) -> ToolSchema:
    """Parse a tool in the form of OpenAI, or only its function."""
    if isinstance(item, str):
        item = parse_json(item, place, where)
    check_characters(item, place, where)
    function = item.get("function") if isinstance(item, Mapping) else None
    if function is None:
        function = item
        item = {"type": "function", "function": function}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(
            f"{where}: {place} is not a tool: it needs a 'name', a 'description' and 'parameters', "
            "or an object of these in 'function'"
        )
    schema: ToolSchema = _without_nulls(item)
    return schema


def _without_nulls(value: Any) -> Any:
    """Return a schema without keys whose value is null, which tables of Parquet add."""
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if item is not None or key in _NULLABLE}
        return {key: _without_nulls(item) for key, item in kept.items()}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value
