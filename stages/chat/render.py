"""Text to training data: conversations through the model's chat template, or joined where there is
none.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, Literal, get_args

import numpy as np

from kitchen.errors import ConfigError, DataError, check_name
from kitchen.ports.sampling import Tokenizer
from kitchen.stage import Stage
from kitchen.types import Datum, Metrics, RenderingSettings, Table
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.masks import (
    TRAIN_ON,
    MaskedTokens,
    MaskError,
    TrainOn,
    mask_conversation,
    prefix_renderer,
    trained_messages,
)
from stages.chat.token_cost import EpochSize

Overlong = Literal["error", "drop", "truncate"]
OVERLONG: tuple[str, ...] = get_args(Overlong)
CACHED_TOKENS = 1_000_000  # tokens of rendered data that stay in memory, about 20 bytes each
ROW_OVERHEAD_TOKENS = 35  # tokens that would take the room of the objects around a row


@dataclass(frozen=True)
class RenderCounts:
    """What became of the rows."""

    rows: int = 0  # conversations
    datums: int = 0
    tokens: int = 0  # that the model reads
    trained_tokens: int = 0  # targets with a weight
    truncated: int = 0  # datums cut to max_tokens
    # datums left out: overlong, with nothing to train on once cut, or sampled and not to be
    # rendered
    dropped: int = 0
    # rows that gave one datum per assistant turn, for the template rewrites history
    split_rows: int = 0
    endless: int = 0  # trained-on answers that the template ends with no stop token of the model
    empty_answers: int = 0  # messages of the assistant without any text

    def __add__(self, other: RenderCounts) -> RenderCounts:
        return RenderCounts(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def metrics(self) -> Metrics:
        return Metrics(
            {f"data/{field.name}": float(getattr(self, field.name)) for field in fields(self)}
        )

    def table(self) -> Table:
        rows = [
            (field.name.replace("_", " "), f"{getattr(self, field.name):,}")
            for field in fields(self)
        ]
        share = f"{self.trained_tokens / self.tokens:.1%}" if self.tokens else "-"
        return Table(
            "Training data", ("what", "count"), (*rows, ("share of tokens trained on", share))
        )


@dataclass(frozen=True)
class TrainData:
    """Rendered training data, in the order of the rows."""

    data: Sequence[Datum]
    counts: RenderCounts


class RenderDataset(Stage, RenderingSettings):
    """StepResult conversations into datums whose weights are 0 on all that is not to be learnt."""

    train_on: TrainOn = "all_assistant_messages"
    max_tokens: int = 1024  # tokens per datum
    overlong: Overlong = "error"
    chat: bool | None = None  # through the chat template; None: if the model has one
    separator: str = " "  # between prompt and completion where there is no template

    def __post_init__(self) -> None:
        check_name("train_on", self.train_on, TRAIN_ON)
        check_name("overlong", self.overlong, OVERLONG)
        if self.max_tokens < 2:
            raise ConfigError(
                f"max_tokens={self.max_tokens} must be at least 2: one token to read, one to "
                "predict"
            )

    def rows_of(self, steps: int | None, size: int) -> int | None:
        """How many rows `steps` batches of `size` datums take; None where it is not known, for rows
        may be dropped.
        """
        return steps * size if steps is not None and self.overlong == "error" else None

    def run(self, rows: TrainRows, tokenizer: Tokenizer) -> tuple[TrainData, Metrics]:
        data = _Rendered(rows.conversations, tokenizer, self)
        return TrainData(data, data.counts), data.counts.metrics()

    def datums(self, conversation: Conversation, tokenizer: Tokenizer) -> tuple[Datum, ...]:
        """Those of one conversation."""
        return _row(conversation, tokenizer, self).data

    def answer(self, written: str, tokenizer: Tokenizer) -> str:
        """What a model wrote, as an answer: without what joins it to its prompt where there is no
        template.
        """
        chat = tokenizer.chat if self.chat is None else self.chat
        return written if chat else written.removeprefix(self.separator)

    def preview(self, rows: TrainRows, tokenizer: Tokenizer) -> tuple[EpochSize, Table, Table]:
        rendered, _ = self.run(rows, tokenizer)
        size = EpochSize(rendered.counts.datums, "datums", rendered.counts.tokens)
        return size, _first(rendered.data[0], tokenizer), rendered.counts.table()


def _first(datum: Datum, tokenizer: Tokenizer) -> Table:
    pieces = tuple(
        ("yes" if on else "", text.replace("\n", "↵\n").removesuffix("\n"))
        for text, on in trained_spans(datum, tokenizer)
    )
    return Table("The first datum", ("trained on", "text"), pieces)


class _Rendered(Sequence[Datum]):
    """Every row is rendered once when this is made, for what is wrong with it and how many datums
    it gives.

    The datums of the first rows are kept; those of the others are rendered again when they are
    asked for, so that memory hardly grows with the data.
    """

    def __init__(
        self, rows: Sequence[Conversation], tokenizer: Tokenizer, how: RenderDataset
    ) -> None:
        self._rows, self._tokenizer, self._how = rows, tokenizer, how
        self._ends = array("q")  # (rows,) datums up to and with each row
        self._kept: list[tuple[Datum, ...]] = []
        self.counts, datums, room = RenderCounts(), 0, CACHED_TOKENS
        for conversation in rows:
            row = _row(conversation, tokenizer, how)
            self.counts += row.counts
            datums += len(row.data)
            self._ends.append(datums)
            room -= row.counts.tokens + ROW_OVERHEAD_TOKENS
            if room > 0:
                self._kept.append(row.data)
        if not datums:
            raise DataError(
                f"nothing is left: of {self.counts.rows} rows, {self.counts.dropped} sequences "
                "were "
                f"dropped for max_tokens={how.max_tokens}, or, where a model wrote the answers, "
                "for a chat "
                "template that changes them"
            )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(len(self))[index])
        if not 0 <= index < len(self):
            raise IndexError(f"datum {index} of {len(self)}")
        row = bisect_right(self._ends, index)
        data = (
            self._kept[row]
            if row < len(self._kept)
            else _row(self._rows[row], self._tokenizer, self._how).data
        )
        return data[index - self._ends[row]]  # counted from the end of the row


def render(
    conversation: Conversation,
    tokenizer: Tokenizer,
    *,
    train_on: TrainOn = "all_assistant_messages",
    max_tokens: int = 1024,
    overlong: Overlong = "error",
    chat: bool | None = None,
    separator: str = " ",
) -> list[Datum]:
    """The datums of one conversation, as RenderDataset makes them."""
    return list(
        RenderDataset(train_on, max_tokens, overlong, chat, separator).datums(
            conversation, tokenizer
        )
    )


def trained_spans(datum: Datum, tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """The text of a datum in pieces, each with whether it is trained on; a special token shows as
    its id, "<2>".
    """
    tokens = np.concatenate([datum.tokens[:1], datum.targets])
    trained = [False, *(datum.loss_inputs["weights"] != 0).tolist()]
    special = [not tokenizer.decode(tokens[at : at + 1]) for at in range(len(tokens))]
    pieces: list[tuple[str, bool]] = []
    for (on, bare), run in groupby(range(len(tokens)), key=lambda at: (trained[at], special[at])):
        ids = tokens[list(run)]  # decoded together: a character may be several tokens
        pieces.append(
            ("".join(f"<{token}>" for token in ids) if bare else tokenizer.decode(ids), on)
        )
    return [
        ("".join(text for text, _ in run), on)
        for on, run in groupby(pieces, key=lambda piece: piece[1])
    ]


@dataclass(frozen=True)
class _Row:
    """What one row gives."""

    data: tuple[Datum, ...]
    counts: RenderCounts


def _row(conversation: Conversation, tokenizer: Tokenizer, how: RenderDataset) -> _Row:
    try:
        sequences = _sequences(conversation, tokenizer, how)
    except MaskError as error:
        if not conversation.sampled or error.message < len(conversation.messages) - 1:
            raise  # somebody wrote it, who can mend it
        return _Row((), RenderCounts(rows=1, dropped=1))
    fitted = [_datum(sequence, how, conversation.where) for sequence in sequences]
    data = tuple(datum for datum in fitted if datum is not None)
    dropped = len(sequences) - len(data)
    return _Row(
        data,
        RenderCounts(
            rows=1,
            datums=len(data),
            tokens=sum(len(datum.tokens) for datum in data),
            trained_tokens=sum(
                int(np.count_nonzero(datum.loss_inputs["weights"])) for datum in data
            ),
            truncated=sum(len(sequence.tokens) > how.max_tokens for sequence in sequences)
            - dropped,
            dropped=dropped,
            split_rows=int(any(sequence.split for sequence in sequences)),
            endless=sum(sequence.endless for sequence in sequences),
            empty_answers=sum(
                m.role == "assistant" and not m.content.strip() for m in conversation.messages
            ),
        ),
    )


def _sequences(
    conversation: Conversation, tokenizer: Tokenizer, how: RenderDataset
) -> tuple[MaskedTokens, ...]:
    picked = trained_messages(conversation, how.train_on)
    if not (tokenizer.chat if how.chat is None else how.chat):
        sequences: tuple[MaskedTokens, ...] = (
            _joined(conversation, tokenizer, picked, how.separator),
        )
    elif not tokenizer.chat:
        raise ConfigError("chat=true needs a chat template, and the model's tokenizer has none")
    elif how.train_on == "all_tokens":
        tokens = prefix_renderer(conversation, tokenizer)(len(picked))
        sequences = (MaskedTokens(tokens, np.ones(len(tokens), bool)),)
    else:
        sequences = mask_conversation(conversation, tokenizer, picked)
    for sequence in sequences:
        none, full = not sequence.trained[1:].any(), sequence.trained.all() and not all(picked)
        # the first token is never a target, so that a prompt of one token is prompt enough
        if none or full:
            raise DataError(
                f"{conversation.where}: {'none' if none else 'all'} of its {len(sequence.tokens)} "
                "tokens "
                f"would be trained on, which train_on={how.train_on!r} does not mean; is the "
                "prompt empty?"
            )
    return sequences


def _joined(
    conversation: Conversation, tokenizer: Tokenizer, picked: tuple[bool, ...], separator: str
) -> MaskedTokens:
    if not conversation.single_turn:
        raise DataError(
            f"{conversation.where}: only a row of one prompt and one answer can be joined without "
            "a chat "
            "template; this one has messages from: "
            + ", ".join(m.role for m in conversation.messages)
        )
    prompt, answer = conversation.messages
    read = tokenizer.encode(prompt.content, special=True)
    written = np.append(tokenizer.encode(separator + answer.content), tokenizer.end_id)
    tokens = np.concatenate([read, written]).astype(np.int64)
    return MaskedTokens(tokens, np.repeat(picked, [len(read), len(written)]))


def _datum(sequence: MaskedTokens, how: RenderDataset, where: str) -> Datum | None:
    """Within max_tokens, or None where it is dropped."""
    length = len(sequence.tokens)
    if length > how.max_tokens and how.overlong == "error":
        raise DataError(
            f"{where}: {length} tokens are more than max_tokens={how.max_tokens}; raise it, or set "
            "overlong to 'truncate' or 'drop'"
        )
    tokens, weights = (
        sequence.tokens[: how.max_tokens],
        sequence.trained[1 : how.max_tokens].astype(np.float32),
    )
    if (length > how.max_tokens and how.overlong == "drop") or not weights.any():
        return None
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})
