"""Conversations, and the row formats that they are parsed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

from kitchen.errors import DataError
from kitchen.ports.datasets import Row
from stages.chat.answer_columns import choices_around, parse_choices, split_answers
from stages.chat.items import recorded_columns
from stages.chat.messages import Message as Message  # re-exported
from stages.chat.messages import kind_of, parse_message, parse_text
from stages.chat.prefill import before_answer, check_prefills
from stages.chat.row_columns import (
    check_columns,
    check_format_supported,
    check_no_thought_beside,
    is_filled,
    template_inputs,
    with_system_and_history,
    with_thought,
)
from stages.chat.row_fields import FIELDS
from stages.chat.template import NO_INPUTS, TemplateInputs, in_row
from stages.chat.text_columns import (
    list_from_text,
    messages_from_dialogue,
    messages_from_text,
)

FORMATS = (
    "messages: [{role, content}, ...]",
    "conversations: [{from, value}, ...] (ShareGPT)",
    "prompt + completion",
    "instruction (+ input or context) + response or output",
    "input + output",
    "prompt or question + choices + answer",
)
_COMMON_NAMES: Mapping[str, Sequence[str]] = {  # names of these columns in other data sets
    "prompt": ("question", "instruction", "input", "query", "problem"),
    "completion": ("answer", "response", "output", "solution"),
}


@dataclass(frozen=True)
class Conversation:
    """Messages in order, with their place in the data."""

    messages: tuple[Message, ...]  # at least one
    where: str  # its place in the data, for error messages: "chats.jsonl:12"
    single_turn: bool = False  # one prompt and one answer: needs no chat template
    # number of messages of the prompt, whose assistant messages are context; 0 if the row's format
    # does not say
    prompt_length: int = dataclass_field(default=0, compare=False)
    # a model wrote the answer: if its text cannot be masked, the row is dropped instead of refused
    sampled: bool = False
    # answers that are right too, besides the last message: only evaluations and rewards read them
    other_answers: tuple[str, ...] = ()
    # the only message is a text without a prompt, which is trained on whole, without a template
    plain_text: bool = False
    choices: tuple[str, ...] = ()  # of multiple choice: the last message is one of them
    inputs: TemplateInputs = NO_INPUTS  # tools and variables for the chat template
    # columns of the row, by which comparisons of evaluations may group items
    columns: Mapping[str, Any] = dataclass_field(default_factory=dict, compare=False, repr=False)
    # all columns of the row, for a metric function
    row: Row = dataclass_field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class TrainRows:
    """The conversations to train on; they may be parsed lazily."""

    conversations: Sequence[Conversation]


def with_system_prompt(conversation: Conversation, instruction: str) -> Conversation:
    """Return the conversation with `instruction` prepended to its system prompt."""
    if not instruction:
        return conversation
    first, *others = conversation.messages
    if first.role == "system":
        system = Message("system", f"{instruction}\n\n{first.content}")
        return replace(conversation, messages=(system, *others), single_turn=False)
    messages = (Message("system", instruction), *conversation.messages)
    length = conversation.prompt_length and conversation.prompt_length + 1
    return replace(conversation, messages=messages, single_turn=False, prompt_length=length)


def parse_conversation(row: Row, where: str) -> Conversation:
    """Parse a row in the first of FORMATS that fits, with the columns of `row_fields.FIELDS`.

    An answer that is a list of texts has several right answers, of which the first is trained on.
    Every error starts with `where`, the row's place in the data. Raises DataError that names the
    field, or shows the row and lists the formats; also for a `label` that is false.
    """
    check_label(row, where)
    check_columns(row, where)
    for fields, parse in _PARSERS:
        if all(row.get(field) is not None for field in fields):
            first, others = split_answers(row, fields)
            conversation = parse(first, where)
            _check_one_answer(row, fields[-1], conversation, where)
            choices = choices_around(row, conversation.messages[-1].content)
            conversation = replace(conversation, other_answers=others, choices=choices)
            return _with_columns(conversation, row, where)
    if found := parse_choices(row, where):
        question, choices, right = found
        prompt = _messages_of(row, question, "user", where)
        asked, answer = before_answer(prompt, (Message("assistant", right),))
        conversation = replace(_build((*asked, *answer), where), choices=choices)
        return _with_columns(conversation, row, where)
    check_format_supported(row, where)
    _check_incomplete(row, where)
    shown = ", ".join(f"{name}: {_short(value)}" for name, value in row.items())
    columns = [name for name in row if _may_be_message(row[name])]
    rename = _rename_hint(row, "prompt", "completion") if len(columns) > 1 else ""
    known = f"{'; '.join(FORMATS)}{rename}"
    hint = _delimiter_hint(row)
    raise DataError(f"{where}: no known format in the row {{{shown}}}{hint}. Formats: {known}")


def _check_one_answer(row: Row, column: str, conversation: Conversation, where: str) -> None:
    """Raise DataError if a row of several formats has another answer than that in `column`."""
    for fields, parse in _PARSERS:
        if fields[-1] == column or any(row.get(field) is None for field in fields):
            continue
        try:
            other = parse(split_answers(row, fields)[0], where)
        except DataError:  # the columns mean something else
            continue
        if _answer(other) != _answer(conversation):
            raise DataError(
                f"{where}: the row has different answers in {column!r} and {fields[-1]!r}; keep "
                f"one, or rename the other column (reading.columns.{fields[-1]}=other)"
            )


def _answer(conversation: Conversation) -> str:
    """Return the text of the last assistant message."""
    answers = [each.content for each in conversation.messages if each.role == "assistant"]
    return answers[-1].strip()


def _with_columns(conversation: Conversation, row: Row, where: str) -> Conversation:
    """Return the conversation with the system message, history and inputs of other columns."""
    messages = with_thought(conversation.messages, row, where)
    messages = with_system_and_history(messages, row, where)
    _check_prefills(messages, where)
    added = len(messages) - len(conversation.messages)
    return replace(
        conversation,
        messages=messages,
        prompt_length=conversation.prompt_length and conversation.prompt_length + added,
        single_turn=_is_single_turn(messages),
        inputs=template_inputs(row, where),
        columns=recorded_columns(row),
        row=row,
    )


def _delimiter_hint(row: Row) -> str:
    """Return advice for a row whose columns were read as one, because the delimiter is wrong."""
    for name in row:
        for delimiter, mark in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
            if len(row) == 1 and delimiter in name:
                return f"; its values are separated by {mark}: save the file with commas"
    return ""


def check_label(row: Row, where: str) -> None:
    """Raise DataError for a label that marks a bad answer; in CSV, false is text."""
    label = row.get("label")
    is_false_text = isinstance(label, str) and label.strip().lower() == "false"
    if label is False or is_false_text:
        raise DataError(
            f"{where}: label is false, which marks a bad answer, but only recipes.kto trains on "
            "bad answers; drop the row, or, if the column means something else, rename it "
            "(reading.columns.label=other, or in the file)"
        )


def _check_incomplete(row: Row, where: str) -> None:
    """Raise DataError for a row that has some, but not all, of the columns of a format."""
    for fields, _ in _PARSERS:
        missing = [field for field in fields if row.get(field) is None]
        if 0 < len(missing) < len(fields):
            present = ", ".join(repr(field) for field in fields if field not in missing)
            # a cell of CSV is null if it is empty or NaN
            problem = "is null (or an empty cell)" if missing[0] in row else "is missing"
            raise DataError(
                f"{where}: the row has {present}, but {missing[0]!r} {problem}; add it, or drop "
                f"the row{_rename_hint(row, missing[0])}"
            )


def parse_rejected(row: Row, chosen: Conversation, where: str) -> Conversation | None:
    """Parse the worse answer beside a row that has the better one, as ms-swift has it, if any."""
    check_no_thought_beside(row, ("rejected_response", "rejected_messages"), where)
    if is_filled(row, "rejected_messages"):
        messages = _message_list(row, "rejected_messages", where)
        return _with_columns(_build(messages, where), row, where)
    if not is_filled(row, "rejected_response"):
        return None
    answer = _messages_of(row, "rejected_response", "assistant", where)
    *prompt, last = chosen.messages
    prompt = prompt if last.role == "assistant" else [*prompt, last]
    return replace(chosen, messages=(*prompt, *answer), other_answers=())


def parse_completion(row: Row, field: str, where: str) -> Conversation:
    """Parse the prompt of a row and the answer in `field`, each text or a list of messages.

    The prompt is in `prompt`, in `instruction` and `input`, or in a list of messages. A list that
    repeats the prompt before its last message, or that has no prompt beside it, is the whole
    conversation; a list that continues the prompt begins with the assistant. A text such as
    "\\n\\nHuman: ...\\n\\nAssistant: ..." is a whole conversation too. Raises DataError as
    `parse_conversation` does.
    """
    check_columns(row, where)
    return _with_columns(_parse_completion(row, field, where), row, where)


def _parse_completion(row: Row, field: str, where: str) -> Conversation:
    dialogue = messages_from_dialogue(row[field]) if isinstance(row[field], str) else None
    if dialogue is None:
        answer = _messages_of(row, field, "assistant", where)
    else:
        answer = _parse_messages(dialogue, field, where)
    column, prompt = _prompt_of(row, len(answer) == 1, where)
    if len(answer) == 1 and not prompt:
        raise DataError(
            f"{where}: {field!r} is only an answer, but 'prompt' is missing; add it, or drop the "
            f"row{_rename_hint(row, 'prompt')}"
        )
    prompt, answer = before_answer(prompt, answer)
    if _contains_prompt(answer[:-1], prompt):
        history, last = _with_prefill(answer[:-1], prompt), answer[-1:]
        return _build((*history, *last), where)
    if answer[0].role in ("system", "user"):
        raise DataError(
            f"{where}: {field} starts with a message of {answer[0].role!r}, so it should be a "
            f"whole conversation, but it does not contain the text of {column!r}; reduce it to the "
            f"answer, or rename the other column (reading.columns.{column}=other)"
        )
    return _build((*prompt, *answer), where)


def _prompt_of(row: Row, needed: bool, where: str) -> tuple[str, tuple[Message, ...]]:
    """Return the column and the messages of a prompt; a whole conversation needs none."""
    if is_filled(row, "prompt"):
        return "prompt", _messages_of(row, "prompt", "user", where)
    if is_filled(row, "instruction"):
        return "instruction", (_instruction_message(row, where),)
    for column in ("messages", "conversations"):
        if needed and is_filled(row, column):
            return column, _message_list(row, column, where)
    return "", ()


def _contains_prompt(history: Sequence[Message], prompt: Sequence[Message]) -> bool:
    """Return whether `prompt` occurs in the history, or is all of it rendered as one text."""
    history_pairs = [(message.role, message.content.strip()) for message in history]
    prompt_pairs = [(message.role, message.content.strip()) for message in prompt]
    size = len(prompt_pairs)
    starts = range(len(history_pairs) - size + 1)
    if any(history_pairs[start : start + size] == prompt_pairs for start in starts):
        return True
    first_role = history_pairs[0][0] if history_pairs else ""
    return (
        size == 1
        and first_role in ("system", "user")
        and all(content in prompt_pairs[0][1] for _, content in history_pairs)
    )


def _with_prefill(history: Sequence[Message], prompt: Sequence[Message]) -> Sequence[Message]:
    """Return the history, whose last message is a prefill if the prompt ends with it."""
    if not prompt or prompt[-1].role != "assistant" or history[-1].role != "assistant":
        return history
    if history[-1].content.strip() != prompt[-1].content.strip():
        return history
    return (*history[:-1], replace(history[-1], prefix=True))


def _build(messages: tuple[Message, ...], where: str, prompt_length: int = 0) -> Conversation:
    roles = [message.role for message in messages]
    if "assistant" not in roles:
        raise DataError(
            f"{where}: no assistant message to train on; the messages are from: {', '.join(roles)}"
        )
    return Conversation(messages, where, _is_single_turn(messages), prompt_length)


def _check_prefills(messages: Sequence[Message], where: str) -> None:
    try:
        check_prefills(messages, answered=True)
    except DataError as error:
        raise in_row(error, where) from error


def _is_single_turn(messages: Sequence[Message]) -> bool:
    return [message.role for message in messages] == ["user", "assistant"]


def _rename_hint(row: Row, wanted: str, other: str = "") -> str:
    """Return advice on renaming a column to `wanted`, preferring its common names elsewhere.

    The column to rename to `other`, too, is named if it has one of its common names.
    """
    known = {field.name for field in FIELDS if field.level != "message"}
    columns = [name for name in row if _may_be_message(row[name])]
    candidates = [name for name in _COMMON_NAMES.get(wanted, ()) if name in columns]
    candidates = candidates or [name for name in columns if name not in known]
    if not candidates:
        return ""
    hint = f"; if a column has another name: reading.columns.{candidates[0]}={wanted}"
    others = [name for name in _COMMON_NAMES.get(other, ()) if name in columns]
    if others and others[0] != candidates[0]:
        hint += f" reading.columns.{others[0]}={other}"
    return hint


def _may_be_message(value: Any) -> bool:
    """Return whether a value can be a prompt or an answer: text, or a list of texts or messages."""
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, list | tuple) and bool(value)


def _prompt_and_answer(row: Row, prompt: str, answer: str, where: str) -> Conversation:
    """Parse two columns, either of which may be a list of messages."""
    asked, answered = before_answer(
        _messages_of(row, prompt, "user", where), _messages_of(row, answer, "assistant", where)
    )
    return _build((*asked, *answered), where, prompt_length=len(asked))


def _instruction(row: Row, where: str) -> Conversation:
    """Parse an Alpaca or Dolly row."""
    answer = "response" if row.get("response") is not None else "output"
    text = parse_text(row[answer], answer, where)
    return _build((_instruction_message(row, where), Message("assistant", text)), where)


def _instruction_message(row: Row, where: str) -> Message:
    """Return the prompt of an Alpaca or Dolly row: `instruction`, a blank line, the input."""
    prompt = parse_text(row["instruction"], "instruction", where)
    for field in ("input", "context"):
        if row.get(field):
            prompt += "\n\n" + parse_text(row[field], field, where)
    return Message("user", prompt)


def _messages_of(row: Row, field: str, role: str, where: str) -> tuple[Message, ...]:
    """Parse a text, or a list of messages, which may be JSON in a text."""
    value = row[field]
    messages = messages_from_text(value) if isinstance(value, str) else value
    if isinstance(messages, Mapping) and ("role" in messages or "from" in messages):
        messages = [messages]
    if isinstance(messages, list | tuple):
        return _parse_messages(messages, field, where)
    return (Message(role, parse_text(value, field, where)),)


def _message_list(row: Row, field: str, where: str) -> tuple[Message, ...]:
    items = row[field]
    if isinstance(items, str):
        items = list_from_text(items)
        if items is None:
            raise DataError(
                f"{where}: {field} is text, not a list of messages, nor one as JSON, such as "
                '[{"role": "user", "content": "..."}, ...]; write it as a list, or rename the '
                f"column (reading.columns.{field}=other)"
            )
    if not isinstance(items, list | tuple):
        raise DataError(f"{where}: {field} is {kind_of(items)}, not a list of messages")
    return _parse_messages(items, field, where)


def _parse_messages(items: Sequence[Any], field: str, where: str) -> tuple[Message, ...]:
    if not items:
        raise DataError(f"{where}: {field} is empty; a conversation has at least one message")
    return tuple(
        parse_message(item, f"{field}[{index}]", where) for index, item in enumerate(items)
    )


def _short(value: Any) -> str:
    text = repr(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:57] + "..."


_PARSERS: tuple[tuple[tuple[str, ...], Callable[[Row, str], Conversation]], ...] = (
    (("messages",), lambda row, where: _build(_message_list(row, "messages", where), where)),
    (
        ("conversations",),
        lambda row, where: _build(_message_list(row, "conversations", where), where),
    ),
    (
        ("prompt", "completion"),
        lambda row, where: _prompt_and_answer(row, "prompt", "completion", where),
    ),
    (("instruction", "response"), _instruction),
    (("instruction", "output"), _instruction),
    (("input", "output"), lambda row, where: _prompt_and_answer(row, "input", "output", where)),
)
COLUMNS_OF_FORMATS = tuple(columns for columns, _ in _PARSERS)
