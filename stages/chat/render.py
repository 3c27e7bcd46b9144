"""Conversations rendered to datums, through the model's chat template or joined without one."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import structlog

from kitchen.backend.work import counted
from kitchen.errors import ConfigError, DataError, check_name
from kitchen.ports.sampling import Tokenizer
from kitchen.stage import Stage
from kitchen.types import Datum, Metrics, Table
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.joining import encode_after
from stages.chat.left_out import check_messages_rendered
from stages.chat.masks import (
    TRAIN_ON,
    MaskedTokens,
    MaskError,
    MessageMask,
    Prefixes,
    TrainOn,
    check_written,
    mask_conversation,
    render_prefixes,
    trained_messages,
)
from stages.chat.messages import message_text
from stages.chat.model_limits import Overlong as Overlong  # re-exported
from stages.chat.model_limits import check_sequence, length_limit, longest_sequence
from stages.chat.plain_text import text_sequences
from stages.chat.template import (
    PromptRendering,
    check_fields_rendered,
    check_no_template_needed,
    check_tools_rendered,
    in_row,
    not_joined,
)
from stages.chat.token_cost import EpochSize
from stages.chat.token_table import MarkedTokens, token_table

log = structlog.get_logger("stages.chat")
OVERLONG: tuple[str, ...] = get_args(Overlong)
CACHED_TOKENS = 1_000_000  # tokens of rendered data held in memory, about 20 bytes each
ROW_OVERHEAD_TOKENS = 35  # the objects around a row take the memory of this many tokens


# counts that are reported only if there are any
_RARE_COUNTS = (
    *("stripped_answers", "other_answers", "tools_in_system_message"),
    *("texts", "split_texts", "lost_tokens"),
)


@dataclass(frozen=True)
class RenderCounts:
    """Counts of rows, datums and tokens after rendering."""

    rows: int = 0  # conversations
    datums: int = 0
    tokens: int = 0  # that the model reads
    trained_tokens: int = 0  # targets with a non-zero weight
    truncated: int = 0  # datums truncated to max_tokens
    # datums left out: too long, without a token to train on after truncation, or with a sampled
    # answer that cannot be masked
    dropped: int = 0
    # rows rendered as one datum per assistant turn, because the template rewrites earlier turns
    split_rows: int = 0
    no_stop_token: int = 0  # trained-on answers that the template does not end with a stop token
    empty_answers: int = 0  # assistant messages without text
    # trained-on answers that lose white space at their ends to the template; reported if there are
    # any
    stripped_answers: int = 0
    # right answers besides the first of a row, which are not trained on; reported if there are any
    other_answers: int = 0
    # rows whose tools are in the system message, because the template has no place for tools;
    # reported if there are any
    tools_in_system_message: int = 0
    texts: int = 0  # rows of plain text; reported if there are any
    split_texts: int = 0  # those split into several datums; reported if there are any
    # tokens that were cut off or left out because of the maximum length; reported if there are any
    lost_tokens: int = 0

    def __add__(self, other: RenderCounts) -> RenderCounts:
        return RenderCounts(
            *(getattr(self, count.name) + getattr(other, count.name) for count in fields(self))
        )

    def reported(self) -> dict[str, int]:
        """Return the counts by name, without those that are rarely other than 0 if they are 0."""
        counts: dict[str, int] = {count.name: getattr(self, count.name) for count in fields(self)}
        for name in _RARE_COUNTS:
            if not counts[name]:
                del counts[name]
        return counts

    def metrics(self) -> Metrics:
        return Metrics({f"data/{name}": float(count) for name, count in self.reported().items()})

    def table(self) -> Table:
        rows = [(name.replace("_", " "), f"{count:,}") for name, count in self.reported().items()]
        share = f"{self.trained_tokens / self.tokens:.1%}" if self.tokens else "-"
        return Table(
            "Training data", ("quantity", "count"), (*rows, ("share of tokens trained on", share))
        )


@dataclass(frozen=True)
class TrainData:
    """Rendered training data, in the order of the rows."""

    data: Sequence[Datum]
    counts: RenderCounts
    first_empty: str = ""  # place of the first row with an empty answer
    first_dropped: str = ""  # place of the first row without its datums, and the reason
    first_truncated: str = ""  # place and length of the first row that was truncated

    def table(self) -> Table:
        """Return the counts, with the places of the first rows that are not trained on whole."""
        counts = self.counts.table()
        places = (
            ("the first empty answer", self.first_empty),
            ("the first dropped", self.first_dropped),
            ("the first truncated", self.first_truncated),
        )
        return replace(counts, rows=(*counts.rows, *(place for place in places if place[1])))


class RenderDataset(Stage, PromptRendering):
    """Render conversations to datums whose weights are 0 on every token not trained on."""

    # messages to train on; "trainable" reads the field of that name in each message. Assistant
    # messages in the prompt of a row are context
    train_on: TrainOn = "all_assistant_messages"
    max_tokens: int = 1024  # maximum length of a datum, in tokens
    # datums longer than max_tokens or than the model's context: stop with an error, drop them, or
    # truncate them; split cuts long rows of plain text into several datums, and stops with an error
    # at long conversations
    overlong: Overlong = "error"
    chat: bool | None = None  # use the chat template; null to use it if the model has one
    separator: str = " "  # text between prompt and completion if there is no chat template

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("train_on", self.train_on, TRAIN_ON)
        check_name("overlong", self.overlong, OVERLONG)
        if self.max_tokens < 2:
            raise ConfigError(
                f"max_tokens={self.max_tokens} must be at least 2: one token to read, one to "
                "predict"
            )

    def rows_for_steps(self, steps: int | None, batch_size: int) -> int | None:
        """Return how many rows `steps` batches of datums use; None if rows may be dropped."""
        drops_none = self.overlong in ("error", "split")
        return steps * batch_size if steps is not None and drops_none else None

    def run(self, rows: TrainRows, tokenizer: Tokenizer) -> tuple[TrainData, Metrics]:
        data = RenderedDatums(rows.conversations, tokenizer, self)
        data.check_text()
        for note in self._notes(rows, data):
            log.warning(note)
        return data.as_train_data(), data.counts.metrics()

    def datums(self, conversation: Conversation, tokenizer: Tokenizer) -> tuple[Datum, ...]:
        """Return the datums of one conversation."""
        return render_row(conversation, tokenizer, self).data

    def answer_text(self, completion: str, tokenizer: Tokenizer) -> str:
        """Return a completion without the separator that precedes it if there is no template."""
        chat = self.tokenizer(tokenizer).chat if self.chat is None else self.chat
        return completion if chat else completion.removeprefix(self.separator)

    def preview(self, rows: TrainRows, tokenizer: Tokenizer) -> tuple[EpochSize, Table, Table]:
        data = RenderedDatums(rows.conversations, tokenizer, self)
        data.check_text()
        size = EpochSize(data.counts.datums, "datums", data.counts.tokens)
        table = token_table("The first datum", [MarkedTokens.of_datum(data[0])], tokenizer)
        counts = data.as_train_data().table()
        notes = tuple(("note", note) for note in self._notes(rows, data))
        return size, table, replace(counts, rows=(*counts.rows, *notes))

    def _notes(self, rows: TrainRows, data: RenderedDatums) -> list[str]:
        """Return sentences on answers that are not trained on as they should be."""
        counts = data.counts
        notes = [self._no_stop_token(rows, counts)] if counts.no_stop_token else []
        if counts.empty_answers and self.train_on != "all_user_and_system_messages":
            notes.append(
                f"{counts.empty_answers} answers are empty (the first: {data.first_empty}), and "
                "the model learns to answer nothing there; add the answers, or remove these rows"
            )
        if counts.stripped_answers:
            notes.append(stripped_note(counts.stripped_answers, data.first_stripped))
        return notes

    def _no_stop_token(self, rows: TrainRows, counts: RenderCounts) -> str:
        answers = sum(sum(trained_messages(row, self.train_on)) for row in rows.conversations)
        return (
            f"{counts.no_stop_token} of {answers} answers end with no stop token, so the model "
            "does not learn to stop: the chat template writes none after them; end answers in the "
            "template with a token of eos_token_id in generation_config.json"
        )


def stripped_note(count: int, first: str) -> str:
    """Return a sentence on answers that lose white space, with the place of the first."""
    return (
        f"the chat template strips white space at the ends of {count} answers (the first: "
        f"{first}), which may be the indentation of code; set a template that writes answers as "
        "they are (rendering.template=FILE)"
    )


class RenderedDatums(Sequence[Datum]):
    """Datums of rows that are all rendered once at construction, to find errors and count datums.

    The datums of the first rows, up to `cached_tokens`, stay in memory; those of the others are
    rendered again on access, so that memory hardly grows with the data.
    """

    def __init__(
        self,
        rows: Sequence[Conversation],
        tokenizer: Tokenizer,
        render: RenderDataset,
        cached_tokens: int = CACHED_TOKENS,
    ) -> None:
        tokenizer = render.tokenizer(tokenizer)
        self._rows, self._tokenizer, self._render = rows, tokenizer, render
        self._ends = array("q")  # (rows,) datums up to and including each row
        self._cached: list[tuple[Datum, ...]] = []
        self.counts = RenderCounts()
        self.first_empty = ""  # place of the first row with an empty answer
        self.first_stripped = ""  # place of the first row with an answer that is stripped
        self.first_dropped = ""  # place of the first row without its datums, and the reason
        self.first_truncated = ""  # place and length of the first row that was truncated
        self._changes_sampled = False  # the template changes answers that a model sampled
        self._has_text = False  # some text is trained on, not only stop tokens
        tokens_left = cached_tokens
        for conversation in counted(rows, "rows"):
            row = _render_row(conversation, tokenizer, render)
            self.counts += row.counts
            self._note_places(conversation, row)
            self._has_text = self._has_text or _trains_text(conversation, render.train_on)
            self._ends.append(self.counts.datums)
            tokens_left -= row.counts.tokens + ROW_OVERHEAD_TOKENS
            if tokens_left > 0:
                self._cached.append(row.data)
        if not self.counts.datums:
            raise self._nothing_left(tokenizer)

    def _nothing_left(self, tokenizer: Tokenizer) -> DataError:
        """Return the error for rows whose datums were all dropped."""
        limit, fix = length_limit(self._render.max_tokens, tokenizer)
        if self._render.overlong == "truncate":
            reason = f"they have no token to train on once cut to {limit}"
        else:
            reason = f"they exceed {limit}"
            fix += ", or set rendering.overlong=truncate"
        if self._changes_sampled:
            fix += "), or because the chat template changes answers that a model sampled ("
            fix += "set rendering.template=FILE"
        return DataError(
            f"no data is left: all {self.counts.dropped} datums of {self.counts.rows} rows "
            f"were dropped, because {reason} ({fix})"
        )

    def _note_places(self, conversation: Conversation, row: RenderedRow) -> None:
        """Note the places of the first rows that are not trained on as they are."""
        if row.counts.empty_answers and not self.first_empty:
            self.first_empty = conversation.where
        if row.counts.stripped_answers and not self.first_stripped:
            self.first_stripped = conversation.where
        length = f"{conversation.where}, {row.longest:,} tokens"
        if row.counts.truncated and not self.first_truncated:
            self.first_truncated = length
        if row.counts.dropped and not row.longest:
            self._changes_sampled = True
        if row.counts.dropped and not self.first_dropped:
            reason = "too long"
            if self._render.overlong == "truncate":
                reason = "no trained token within the limit"
            if not row.longest:
                reason = "the chat template changes a sampled answer"
            self.first_dropped = f"{length if row.longest else conversation.where}: {reason}"

    def as_train_data(self) -> TrainData:
        """Return the datums with their counts and the places of the first odd rows."""
        return TrainData(
            self, self.counts, self.first_empty, self.first_dropped, self.first_truncated
        )

    def check_text(self) -> None:
        """Raise DataError if all answers are empty, so that only stop tokens are trained on."""
        if not self._has_text:
            raise DataError(
                f"{self.first_empty or self._rows[0].where}: the answers of this row and of all "
                "others are empty, so the model would only learn to answer nothing; add the "
                "answers, or, if they are in another column, rename it "
                "(reading.columns.OTHER=completion)"
            )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(len(self))[index])
        if not 0 <= index < len(self):
            raise IndexError(f"datum {index} of {len(self)}")
        row = bisect_right(self._ends, index)
        if row < len(self._cached):
            data = self._cached[row]
        else:
            data = _render_row(self._rows[row], self._tokenizer, self._render).data
        return data[index - self._ends[row]]  # counted from the end of the row


def _trains_text(conversation: Conversation, train_on: TrainOn) -> bool:
    """Return whether a message that is trained on has text."""
    selected = trained_messages(conversation, train_on)
    pairs = zip(conversation.messages, selected, strict=True)
    return any(is_selected and message_text(message).strip() for message, is_selected in pairs)


def render(
    conversation: Conversation,
    tokenizer: Tokenizer,
    *,
    train_on: TrainOn = "all_assistant_messages",
    max_tokens: int = 1024,
    overlong: Overlong = "error",
    chat: bool | None = None,
    separator: str = " ",
    chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    template: str | None = None,
) -> list[Datum]:
    """Return the datums of one conversation; the options are those of RenderDataset."""
    stage = RenderDataset(
        train_on,
        max_tokens,
        overlong,
        chat,
        separator,
        chat_template_kwargs=chat_template_kwargs,
        template=template,
    )
    return list(stage.datums(conversation, tokenizer))


@dataclass(frozen=True)
class RenderedRow:
    """The datums of one row, and its counts."""

    data: tuple[Datum, ...]
    counts: RenderCounts
    longest: int = 0  # tokens of its longest sequence before truncation; 0 if it has none


def render_row(
    conversation: Conversation, tokenizer: Tokenizer, settings: RenderDataset
) -> RenderedRow:
    """Render one conversation; raises DataError that names the row."""
    return _render_row(conversation, settings.tokenizer(tokenizer), settings)


def _render_row(
    conversation: Conversation, tokenizer: Tokenizer, settings: RenderDataset
) -> RenderedRow:
    """Render one conversation with the tokenizer of its template."""
    longest = longest_sequence(settings.max_tokens, tokenizer)
    try:
        if conversation.plain_text:
            chunk = longest if settings.overlong == "split" else None
            sequences = text_sequences(conversation, tokenizer, chunk)
        else:
            sequences = _sequences(conversation, tokenizer, settings)
    except MaskError as error:
        is_last_message = error.message == len(conversation.messages) - 1
        if not (conversation.sampled and is_last_message):
            raise  # a person wrote the message, and can fix it
        return RenderedRow((), RenderCounts(rows=1, dropped=1))
    for sequence in sequences:
        check_sequence(sequence.tokens, tokenizer, settings.overlong, conversation.where)
    settings = replace(settings, max_tokens=longest)
    fitted = [_datum(sequence, settings, conversation.where) for sequence in sequences]
    data = tuple(datum for datum in fitted if datum is not None)
    counts = _count(conversation, sequences, data, settings.max_tokens)
    in_system_message = int(bool(conversation.inputs.tools) and not tokenizer.tools)
    counts = replace(counts, tools_in_system_message=in_system_message)
    return RenderedRow(data, counts, max(len(sequence.tokens) for sequence in sequences))


def _count(
    conversation: Conversation,
    sequences: Sequence[MaskedTokens],
    data: Sequence[Datum],
    max_tokens: int,
) -> RenderCounts:
    dropped = len(sequences) - len(data)
    is_split = conversation.plain_text and len(sequences) > 1
    overlong = sum(len(sequence.tokens) > max_tokens for sequence in sequences)
    answers = [message_text(m).strip() for m in conversation.messages if m.role == "assistant"]
    trained = [int(np.count_nonzero(datum.loss_inputs["weights"])) for datum in data]
    return RenderCounts(
        rows=1,
        datums=len(data),
        tokens=sum(len(datum.tokens) for datum in data),
        trained_tokens=sum(trained),
        truncated=overlong - dropped,
        dropped=dropped,
        split_rows=int(any(sequence.split for sequence in sequences)),
        no_stop_token=sum(sequence.no_stop_token for sequence in sequences),
        empty_answers=answers.count(""),
        stripped_answers=sum(sequence.stripped for sequence in sequences),
        other_answers=len(conversation.other_answers),
        texts=int(conversation.plain_text),
        split_texts=int(is_split),
        lost_tokens=sum(len(each.tokens) - 1 for each in sequences)
        - sum(len(datum.tokens) for datum in data),
    )


def _sequences(
    conversation: Conversation, tokenizer: Tokenizer, settings: RenderDataset
) -> tuple[MaskedTokens, ...]:
    selected = trained_messages(conversation, settings.train_on)
    inputs = conversation.inputs.over(settings.chat_template_kwargs)
    conversation = replace(conversation, inputs=inputs)
    use_template = tokenizer.chat if settings.chat is None else settings.chat
    if use_template and not tokenizer.chat:
        raise ConfigError(
            "rendering.chat=true needs a chat template, and the model's tokenizer has none: "
            "set one (rendering.template=FILE)"
        )
    if use_template:
        sequences = _by_template(conversation, tokenizer, selected, settings.train_on)
    else:
        sequences = (_joined(conversation, tokenizer, selected, settings.separator),)
    for sequence in sequences:
        _check_mask(sequence, selected, settings.train_on, conversation.where)
    return sequences


def _by_template(
    conversation: Conversation, tokenizer: Tokenizer, selected: MessageMask, train_on: TrainOn
) -> tuple[MaskedTokens, ...]:
    """Render by the chat template; raises DataError if it leaves anything out."""
    inputs = conversation.inputs
    prefixes = render_prefixes(conversation, tokenizer)
    try:
        if inputs.tools:
            check_tools_rendered(prefixes.tokens(len(selected)), tokenizer, inputs.tools)
        check_fields_rendered(conversation.messages, tokenizer, inputs)
        check_messages_rendered(conversation.messages, tokenizer, inputs, answer=False)
    except DataError as error:
        raise in_row(error, conversation.where) from error
    if train_on == "all_tokens":
        return (_all_trained(conversation, prefixes, tokenizer),)
    return mask_conversation(conversation, tokenizer, selected)


def _all_trained(
    conversation: Conversation, prefixes: Prefixes, tokenizer: Tokenizer
) -> MaskedTokens:
    """Mask all tokens; raises MaskError if the template changes an answer or the last message.

    The template may rewrite a message once others follow, so each is looked for where it is last.
    """
    count = len(conversation.messages)
    stripped = 0
    for index, message in enumerate(conversation.messages):
        if message.role == "assistant" or index == count - 1:
            run, written = (index, index + 1), prefixes.tokens(index + 1)
            stripped += check_written(conversation, prefixes, run, written, tokenizer)
    tokens = prefixes.tokens(count)
    return MaskedTokens(tokens, np.ones(len(tokens), bool), stripped=stripped)


def _check_mask(
    sequence: MaskedTokens, selected: MessageMask, train_on: TrainOn, where: str
) -> None:
    # the first token is never a target, so a prompt needs only one token
    trains_none = not sequence.trained[1:].any()
    trains_all = sequence.trained.all() and not all(selected)
    if trains_none or trains_all:
        selected_tokens = "none" if trains_none else "all"
        raise DataError(
            f"{where}: train_on={train_on!r} selects {selected_tokens} of the row's "
            f"{len(sequence.tokens)} tokens, so there is nothing to learn from; is its prompt or "
            "answer empty?"
        )


def _joined(
    conversation: Conversation, tokenizer: Tokenizer, selected: MessageMask, separator: str
) -> MaskedTokens:
    """Encode one prompt and one answer, joined by the separator and closed by the end token."""
    try:
        check_no_template_needed(conversation.messages, conversation.inputs)
    except DataError as error:
        raise in_row(error, conversation.where) from error
    if not conversation.single_turn:
        raise in_row(not_joined(conversation.messages), conversation.where)
    prompt, answer = conversation.messages
    prompt_ids, answer_ids = encode_after(prompt.content, separator + answer.content, tokenizer)
    if not len(answer_ids) or answer_ids[-1] != tokenizer.end_id:
        answer_ids = np.append(answer_ids, tokenizer.end_id)
    tokens = np.concatenate([prompt_ids, answer_ids]).astype(np.int64)
    return MaskedTokens(tokens, np.repeat(selected, [len(prompt_ids), len(answer_ids)]))


def _datum(sequence: MaskedTokens, settings: RenderDataset, where: str) -> Datum | None:
    """Return the datum of a sequence, truncated to max_tokens, or None if it is dropped."""
    length = len(sequence.tokens)
    is_overlong = length > settings.max_tokens
    if is_overlong and settings.overlong in ("error", "split"):
        raise DataError(
            f"{where}: {length} tokens are more than rendering.max_tokens={settings.max_tokens}; "
            "raise it, or set rendering.overlong to 'truncate' or 'drop' (or to 'split', for rows "
            "of plain text)"
        )
    tokens = sequence.tokens[: settings.max_tokens]
    weights = sequence.trained[1 : settings.max_tokens].astype(np.float32)
    if (is_overlong and settings.overlong == "drop") or not weights.any():
        return None
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})
