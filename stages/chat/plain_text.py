"""Rows of plain text, as in continued pre-training: trained on as they are, without a template."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kitchen.errors import DataError
from kitchen.ports.datasets import Row
from kitchen.ports.sampling import Tokenizer
from stages.chat.conversations import (
    COLUMNS_OF_FORMATS,
    FORMATS,
    Conversation,
    check_label,
    parse_conversation,
)
from stages.chat.items import recorded_columns
from stages.chat.masks import MaskedTokens
from stages.chat.messages import Message, parse_text
from stages.chat.row_columns import check_columns, is_filled
from stages.chat.row_fields import FIELDS

COLUMN = "text"
TEXT_FORMAT = "text (plain text)"
ROW_FORMATS = (*FORMATS, TEXT_FORMAT)
# columns that give a row another format, or that only conversations have
_CONVERSATION_COLUMNS = tuple(
    field.name
    for field in FIELDS
    if field.level != "message"
    and field.treatment == "supported"
    and field.name not in (COLUMN, "label")
)


def parse_row(row: Row, where: str) -> Conversation:
    """Parse a row of plain text, or a conversation in one of its formats.

    A row that is a conversation, and has it once more as text, is the conversation. Raises
    DataError for a row whose text has another content than its conversation.
    """
    if COLUMN not in row:
        return parse_conversation(row, where)
    others = [name for name in _CONVERSATION_COLUMNS if is_filled(row, name)]
    if not others:
        return _parse_text_row(row, where)
    if row[COLUMN] is None:
        return parse_conversation(row, where)
    if not _has_conversation(row):
        raise DataError(
            f"{where}: the row has 'text', which is trained on as it is, beside {others[0]!r}, "
            f"which belongs to a conversation; to train on the text, rename the other column "
            f"(reading.columns.{others[0]}=other); if the text is the answer, rename it "
            "(reading.columns.text=completion)"
        )
    conversation = parse_conversation(row, where)
    answers = [m.content.strip() for m in conversation.messages if m.role == "assistant"]
    if isinstance(row[COLUMN], str) and row[COLUMN].strip() and answers[-1] not in row[COLUMN]:
        raise DataError(
            f"{where}: the row has a conversation in {others[0]!r}, and a 'text' without its "
            "answer; keep one: rename the text (reading.columns.text=other), or, to train on the "
            f"text, the columns of the conversation (reading.columns.{others[0]}=other)"
        )
    return conversation


def _has_conversation(row: Row) -> bool:
    """Return whether a row has all columns of a format of conversations."""
    formats = (*COLUMNS_OF_FORMATS, ("choices", "answer"), ("choices", "answerKey"))
    filled = {name for name in row if is_filled(row, name)}
    return any(filled.issuperset(names) for names in formats)


def _parse_text_row(row: Row, where: str) -> Conversation:
    check_label(row, where)
    check_columns(row, where)
    text = parse_text(row[COLUMN], COLUMN, where)
    if not text.strip():
        raise DataError(
            f"{where}: 'text' is empty, so there is nothing to train on; drop the row "
            "(reading.bad_rows=drop leaves such rows out)"
        )
    return Conversation(
        (Message("assistant", text),),
        where,
        plain_text=True,
        columns=recorded_columns(row),
        row=row,
    )


def text_sequences(
    conversation: Conversation, tokenizer: Tokenizer, chunk: int | None
) -> tuple[MaskedTokens, ...]:
    """Return the tokens of a plain text, all trained on: whole, or in chunks of `chunk` tokens.

    They begin with the tokens that the model expects before a text, such as a beginning-of-sequence
    token, and end with the end-of-sequence token. A chunk begins with the last token of the one
    before, so that every token but the first is a target exactly once.
    """
    tokens = tokenizer.encode(conversation.messages[0].content, special=True)
    if not len(tokens) or tokens[-1] != tokenizer.end_id:
        tokens = np.append(tokens, tokenizer.end_id)
    tokens = tokens.astype(np.int64)
    starts: Sequence[int] = [0]
    if chunk is not None and len(tokens) > chunk:
        starts = range(0, len(tokens) - 1, chunk - 1)
    pieces = [tokens[start : start + (chunk or len(tokens))] for start in starts]
    return tuple(MaskedTokens(piece, np.ones(len(piece), bool)) for piece in pieces)
