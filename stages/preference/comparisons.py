"""Comparisons: a chosen and a rejected answer to one prompt, loaded, completed and rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from itertools import chain
from typing import Any
from zlib import crc32

import numpy as np
import structlog
from pydantic import PositiveFloat, PositiveInt

from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, DatasetStore, Sampler, Tokenizer, TrainingClient
from kitchen.ports.datasets import Row
from kitchen.stage import Stage
from kitchen.types import Datum, Facts, Metrics, Sampled, Samples, Table, Tries
from stages.chat.conversations import (
    Conversation,
    Message,
    parse_completion,
    parse_conversation,
    parse_rejected,
)
from stages.chat.items import item_digest
from stages.chat.masks import TrainOn
from stages.chat.messages import message_text
from stages.chat.model_limits import length_limit
from stages.chat.prompts import (
    item_of,
    prompt_messages,
    prompts_with_room,
    reference_answer,
)
from stages.chat.render import RenderDataset, RenderedRow, render_row, stripped_note
from stages.chat.row_columns import check_columns
from stages.chat.row_fields import REFUSED_IN_PREFERENCES
from stages.chat.token_cost import AT_MOST, EpochSize
from stages.chat.token_table import pair_table
from stages.data.dataset import DatasetLoader, HeldOut, load_splits
from stages.data.splits import HELD_OUT_SEED, DatasetReader, ParsedRows
from stages.evaluate.evaluation import UNSAMPLED, EvalConfig
from stages.evaluate.graded_answers import grade_samples
from stages.evaluate.record import RecordedItem
from stages.evaluate.reference import open_sampler, sample_answers
from stages.tasks.json_score import default_metric

log = structlog.get_logger("stages.preference")
FORMATS = ("prompt + chosen + rejected", "chosen + rejected, each a list of messages")
TRAIN_ON_ANSWERS: tuple[TrainOn, ...] = (
    "last_assistant_turn",
    "last_assistant_message",
    "all_assistant_messages",
    "trainable",
)
Pair = tuple[Datum, Datum]  # chosen, rejected
RecordedPair = tuple[int, RecordedItem]  # index of the row in its set, and its item


@dataclass(frozen=True)
class Comparison:
    """Two answers to the same prompt; the rejected one may be missing, to be sampled later.

    The prompt is all that the two conversations have in common at their beginning.
    """

    chosen: Conversation
    rejected: Conversation | None


@dataclass(frozen=True)
class Comparisons:
    """Comparisons to train on, and held-out ones by the name of their set."""

    train: Sequence[Comparison]
    held_out: Mapping[str, Sequence[Comparison]]

    def sets(self) -> Mapping[str, Sequence[Comparison]]:
        """Return all sets by name; the training set has the empty name."""
        return {"": self.train, **self.held_out}

    def rows_without_rejected(self) -> Mapping[str, Sequence[int]]:
        """Return the indices of rows without a rejected answer, by set, without complete sets."""
        missing: dict[str, Sequence[int]] = {}
        for name, rows in self.sets().items():
            indices = [at for at, comparison in enumerate(rows) if comparison.rejected is None]
            if indices:
                missing[name] = indices
        return missing


@dataclass(frozen=True)
class SampledRejections:
    """Wrong answers that the model sampled itself, by set and by index of the row."""

    texts: Mapping[str, Mapping[int, str]]

    def samples(self) -> Samples:
        """Return the answers as lines of samples.jsonl."""
        records: list[dict[str, Any]] = []
        for name, answers in self.texts.items():
            place = {"when": "mistake", "set": name or "train"}
            records += [{**place, "row": at, "text": text} for at, text in answers.items()]
        return Samples(tuple(records))

    def rejected(self, name: str, at: int, comparison: Comparison) -> Conversation | None:
        """Return the rejected answer of row `at` of a set: sampled, or else from the data."""
        text = self.texts.get(name, {}).get(at)
        return comparison.rejected if text is None else _with_answer(comparison.chosen, text)


@dataclass(frozen=True)
class Pairs:
    """Comparisons as datums, with weight 1 on the tokens of the answers."""

    train: tuple[Pair, ...]
    held_out: Mapping[str, tuple[Pair, ...]]
    # of each held-out pair, for samples.jsonl
    items: Mapping[str, tuple[RecordedPair, ...]] = dataclass_field(default_factory=dict)

    def data(self) -> list[Datum]:
        """Return all datums, chosen and rejected alternating."""
        pairs = chain(self.train, *self.held_out.values())
        return list(chain.from_iterable(pairs))


@dataclass(frozen=True)
class RenderedPair:
    """A comparison as two datums, or the reason why it is left out."""

    pair: Pair | None = None  # None if it is left out
    truncated: int = 0  # answers of the pair that are cut to max_tokens
    stripped: int = 0  # answers of the pair that lose white space to the template
    equal: bool = False  # left out because both answers have the same tokens


@dataclass(frozen=True)
class RenderedPairs:
    """The comparisons of one set, rendered."""

    rows: Sequence[RenderedPair]
    limit: tuple[str, str]  # on the length of answers, and the fix for longer ones

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that are not left out."""
        return tuple(row.pair for row in self.rows if row.pair is not None)

    @property
    def truncated(self) -> int:
        """The number of answers that are cut to max_tokens."""
        return sum(row.truncated for row in self.rows)

    def stripped_counts(self, rows: Sequence[Comparison]) -> dict[str, int]:
        """Return the number of answers that lose white space to the template, if there are any."""
        pairs = zip(rows, self.rows, strict=True)
        stripped = [(row.chosen.where, pair.stripped) for row, pair in pairs if pair.stripped]
        return stripped_counts(stripped)

    @property
    def equal(self) -> int:
        """The number of comparisons left out because both answers have the same tokens."""
        return sum(row.equal for row in self.rows)


def stripped_counts(stripped: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the number of stripped answers, if there are any, and warn of them.

    Each is the place of a row and its number of answers that lose white space to the template.
    """
    if not stripped:
        return {}
    count = sum(number for _, number in stripped)
    log.warning(stripped_note(count, stripped[0][0]))
    return {"stripped_answers": count}


class LoadComparisons(DatasetLoader):
    """Load comparisons, or conversations whose answer is the chosen one; sets as in LoadDataset."""

    def run(self, store: DatasetStore) -> tuple[Comparisons, HeldOut, Facts, Table]:
        data = load_splits(
            DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows, comparison)
        )
        train = tuple(ParsedRows(data.train, comparison))
        check_answer_text([row.chosen for row in train], "chosen")
        held_out: dict[str, tuple[Comparison, ...]] = {}
        chosen: dict[str, tuple[Conversation, ...]] = {}
        for split, rows in data.held_out.items():
            held_out[split] = tuple(ParsedRows(rows, comparison))
            chosen[split] = tuple(row.chosen for row in held_out[split])
        return Comparisons(train, held_out), HeldOut(chosen, data.bad_rows), data.facts, data.table

    preview = run


def check_answer_text(answers: Sequence[Conversation], kind: str) -> None:
    """Raise DataError if the good answers are all empty: the model would learn to say nothing."""
    if answers and not any(map(_has_answer_text, answers)):
        raise DataError(
            f"{answers[0].where}: the {kind} answers of this row and of all others are empty, so "
            "the model would only learn to answer nothing. Add the answers, or, if they are in "
            "another column, rename it (reading.columns.OTHER=NAME)."
        )


def _has_answer_text(conversation: Conversation) -> bool:
    answer = conversation.messages[conversation.prompt_length :]
    return any(message_text(message).strip() for message in answer if message.role == "assistant")


def without_rejected(sets: Mapping[str, Sequence[Comparison]]) -> list[Comparison]:
    """Return the comparisons of all sets that have no rejected answer."""
    return [row for row in chain.from_iterable(sets.values()) if row.rejected is None]


def comparison(row: Row, where: str) -> Comparison:
    """Parse a row in one of FORMATS, or a conversation, as a comparison; raises DataError."""
    check_columns(row, where, REFUSED_IN_PREFERENCES)
    if row.get("chosen") is None and row.get("rejected") is None:
        answered = parse_conversation(row, where)
        if rejected := parse_rejected(row, answered, where):
            return _with_common_prompt(answered, rejected, where)
        prompt_length = len(prompt_messages(answered))
        return Comparison(check_marks(replace(answered, prompt_length=prompt_length)), None)
    for field in ("chosen", "rejected"):
        if row.get(field) is None:
            raise DataError(
                f"{where}: {field!r} is missing or null, but a comparison needs both 'chosen' and "
                f"'rejected'. Known formats: {'; '.join(FORMATS)}."
            )
    if row.get("label") is False:
        raise DataError(
            f"{where}: label is false, but 'chosen' already marks the better answer. If 'rejected' "
            "is the better one, swap the two; otherwise remove label, or rename the column "
            "(reading.columns.label=other)."
        )
    return _with_common_prompt(
        _answered(row, "chosen", where), _answered(row, "rejected", where), where
    )


def _answered(row: Row, field: str, where: str) -> Conversation:
    answered = parse_completion(row, field, where)
    role = answered.messages[-1].role
    if role != "assistant":
        raise DataError(
            f"{where}: the last message of {field} has the role {role!r}; it must be the "
            "assistant's answer."
        )
    return answered


def _with_common_prompt(chosen: Conversation, rejected: Conversation, where: str) -> Comparison:
    """Return the comparison of two conversations, whose common beginning is the prompt.

    Raises DataError if they are equal, or differ before the assistant's last turn.
    """
    first, second = _unmarked(chosen), _unmarked(rejected)
    if first == second:
        raise DataError(
            f"{where}: chosen and rejected are equal. Drop the row "
            "(reading.bad_rows=drop leaves such rows out)."
        )
    same = [one == other for one, other in zip(first, second, strict=False)]
    length = [*same, False].index(False)
    for message in (*first[length:], *second[length:]):
        if message.role in ("system", "user"):
            raise DataError(
                f"{where}: chosen and rejected have different prompts: they differ from message "
                f"{length} on, but a later message is from the {message.role}. They may differ "
                "only in the messages of the assistant and its tools that follow the last user or "
                "system message."
            )
    # one answer may be the beginning of the other
    length = min(length, len(first) - 1, len(second) - 1)
    return Comparison(
        check_marks(replace(chosen, prompt_length=length)),
        check_marks(replace(rejected, prompt_length=length)),
    )


def _unmarked(conversation: Conversation) -> list[Message]:
    """Return the messages as the model reads them, without marks."""
    return [replace(message, trainable=None) for message in conversation.messages]


def check_marks(conversation: Conversation) -> Conversation:
    """Return the conversation; raises DataError if a message not of its answer is trainable."""
    for at, message in enumerate(conversation.messages):
        if message.trainable and message.role != "assistant":
            raise DataError(
                f"{conversation.where}: message {at} is trainable, but has the role "
                f"{message.role!r}. Preferences are between answers: mark only messages of the "
                "assistant as trainable."
            )
        if message.trainable and at < conversation.prompt_length:
            raise DataError(
                f"{conversation.where}: message {at} is trainable, but belongs to the prompt. "
                "Preferences are between answers: mark only messages of the answer as trainable."
            )
    return conversation


def check_train_on(rendering: RenderDataset) -> None:
    """Raise ConfigError if tokens other than the assistant's answers would be trained on."""
    if rendering.train_on not in TRAIN_ON_ANSWERS:
        raise ConfigError(
            f"rendering.train_on={rendering.train_on} selects messages other than answers, but "
            f"preferences compare only answers: set it to one of {', '.join(TRAIN_ON_ANSWERS)}."
        )


@dataclass(frozen=True)
class MistakesConfig:
    """Sampling of rejected answers where the data has none."""

    # answers sampled per prompt that has no rejected answer; the first wrong one is used
    tries: Tries = 4
    temperature: PositiveFloat = 1.0  # sampling temperature
    max_tokens: PositiveInt = 64  # maximum tokens per answer; a truncated answer is not used


class SampleRejectedAnswers(Stage):
    """Sample answers for comparisons without a rejected one, and take the first wrong answer.

    The answers of held-out sets do not depend on `seed`, so that runs with other seeds are judged
    by the same pairs.
    """

    memoize = True
    model: str  # a name of weights
    render: RenderDataset
    config: MistakesConfig = MistakesConfig()
    seed: int = 0
    # its metric decides which answers are wrong; if that is the loss, the data's default metric
    evaluation: EvalConfig = EvalConfig()

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        comparisons: Comparisons,
        blobs: BlobStore | None = None,
    ) -> tuple[SampledRejections, Samples]:
        missing = comparisons.rows_without_rejected()
        if not missing:
            return SampledRejections({}), Samples(())
        sets = comparisons.sets()
        texts = dict[str, dict[int, str]]()
        with closing(open_sampler(self.model, client, blobs)) as sampler:
            for name, indices in missing.items():
                rows = {at: sets[name][at].chosen for at in indices}
                texts[name] = await self._wrong_answers(sampler, tokenizer, name, rows)
        rejections = SampledRejections(texts)
        return rejections, rejections.samples()

    def preview(self) -> MistakesConfig:
        return self.config

    async def _wrong_answers(
        self,
        sampler: Sampler,
        tokenizer: Tokenizer,
        name: str,
        rows: Mapping[int, Conversation],
    ) -> dict[int, str]:
        """Return the first wrong answer to each of these rows; rows without one are omitted."""
        chosen = list(rows.values())
        places = list(rows)
        metric = await asyncio.to_thread(self._metric, chosen)
        prompts = prompts_with_room(
            chosen, tokenizer, self.render, self.config.max_tokens, "mistakes.max_tokens"
        )
        answers = await sample_answers(
            sampler,
            list(prompts.values()),
            [HELD_OUT_SEED if name else self.seed, crc32(b"mistakes"), crc32(name.encode())],
            count=self.config.tries,
            max_tokens=self.config.max_tokens,
            temperature=self.config.temperature,
        )
        texts = dict[int, str]()
        for index, tries in zip(prompts, answers, strict=True):
            text = await self._first_wrong(chosen[index], tries, tokenizer, metric)
            if text is not None:
                texts[places[index]] = text
        return texts

    def _metric(self, chosen: Sequence[Conversation]) -> str:
        metric = self.evaluation.metric_for(chosen)
        is_unsampled = metric in UNSAMPLED
        return default_metric(map(reference_answer, chosen)) if is_unsampled else metric

    async def _first_wrong(
        self, chosen: Conversation, tries: Sequence[Sampled], tokenizer: Tokenizer, metric: str
    ) -> str | None:
        for answer in await grade_samples(
            metric, [(chosen, sampled) for sampled in tries], tokenizer, grading=self.evaluation
        ):
            unusable = answer.exact or answer.truncated or answer.failed
            if not unusable and answer.text.strip():
                return self.render.answer_text(answer.text, tokenizer)
        return None


def preview_pairs(
    rows: Sequence[Comparison],
    tokenizer: Tokenizer,
    render: RenderDataset,
    mistakes: MistakesConfig,
) -> tuple[EpochSize, Table, Table]:
    """Return the size of an epoch, the first pair and counts, with answers yet to be sampled.

    Such an answer counts with max_tokens. Raises DataError if there is nothing to train on.
    """
    complete = [row for row in rows if row.rejected is not None]
    rendered = RenderedPairs(
        [render_pair(row.chosen, row.rejected, tokenizer, render) for row in complete],
        length_limit(render.max_tokens, tokenizer),
    )
    sizes = [len(chosen.tokens) + len(rejected.tokens) for chosen, rejected in rendered.pairs]
    first: list[tuple[Datum, Datum | None]] = list(rendered.pairs[:1])
    incomplete = without_rejected({"": rows})
    for row in incomplete:
        if data := _render_answer(row.chosen, tokenizer, render).data:
            unsampled = unsampled_tokens([row], tokenizer, render, mistakes)
            sizes.append(len(data[0].tokens) + sum(unsampled))
            first = first or [(data[0], None)]
    if not sizes:
        raise DataError(f"nothing to train on: {_reasons(rendered, 0, render)}.")
    size = EpochSize(len(sizes), "pairs", sum(sizes), AT_MOST if incomplete else "")
    counts = {
        "rows": len(rows),
        "pairs": len(sizes),
        "tokens": sum(sizes),
        "pairs left out because both answers are equal": rendered.equal,
        "pairs left out because of their length": len(rows) - len(sizes) - rendered.equal,
        "truncated answers": rendered.truncated,
        "rejected answers yet to be sampled": len(incomplete),
        **tool_counts([row.chosen for row in rows], tokenizer, render),
        **rendered.stripped_counts(complete),
    }
    table = count_table(counts)
    return size, pair_table("The first pair", *first[0], tokenizer), table


def unsampled_tokens(
    rows: Sequence[Comparison],
    tokenizer: Tokenizer,
    render: RenderDataset,
    mistakes: MistakesConfig,
) -> list[int]:
    """Return the maximum number of tokens of each rejected answer that is yet to be sampled."""
    missing = [row.chosen for row in rows if row.rejected is None]
    limit = mistakes.max_tokens
    prompts = prompts_with_room(missing, tokenizer, render, limit, "mistakes.max_tokens")
    return [len(prompt) + limit for prompt in prompts.values()]


def count_table(counts: Mapping[str, int]) -> Table:
    """Return a table of counts of the training data."""
    rows = [(name.replace("_", " "), f"{count:,}") for name, count in counts.items()]
    return Table("Training data", ("quantity", "count"), tuple(rows))


def tool_counts(
    rows: Sequence[Conversation], tokenizer: Tokenizer, render: RenderDataset
) -> dict[str, int]:
    """Return the number of rows whose tools are in the system message, if there are any."""
    has_place = render.tokenizer(tokenizer).tools
    count = 0 if has_place else sum(bool(row.inputs.tools) for row in rows)
    return {"tools_in_system_message": count} if count else {}


class RenderPairs(Stage):
    """Render comparisons to pairs of datums; drop those without a rejected answer.

    Pairs whose answers have the same tokens, for example once truncated, are dropped and
    counted: nothing can be learned from them.
    """

    render: RenderDataset

    def __post_init__(self) -> None:
        check_train_on(self.render)

    def run(
        self, comparisons: Comparisons, rejections: SampledRejections, tokenizer: Tokenizer
    ) -> tuple[Pairs, Metrics]:
        sets = {
            name: self._pairs(name, rows, rejections, tokenizer)
            for name, rows in comparisons.sets().items()
        }
        self._check(sets, comparisons, rejections)
        train = sets.pop("")
        held_out = {name: rendered.pairs for name, rendered in sets.items() if rendered.pairs}
        tokens = sum(len(datum.tokens) for datum in chain.from_iterable(train.pairs))
        counts = {
            "rows": len(comparisons.train),
            "pairs": len(train.pairs),
            "tokens": tokens,
            "truncated": train.truncated,
            "equal_pairs": train.equal,
            "held_out_pairs": sum(map(len, held_out.values())),
            "held_out_equal_pairs": sum(pairs.equal for pairs in sets.values()),
            **tool_counts([row.chosen for row in comparisons.train], tokenizer, self.render),
            **train.stripped_counts(comparisons.train),
        }
        metrics = Metrics({f"data/{name}": float(count) for name, count in counts.items()})
        return Pairs(train.pairs, held_out, _recorded(comparisons, rejections, sets)), metrics

    def preview(
        self, comparisons: Comparisons, tokenizer: Tokenizer, mistakes: MistakesConfig
    ) -> tuple[EpochSize, Table, Table]:
        return preview_pairs(comparisons.train, tokenizer, self.render, mistakes)

    def _pairs(
        self,
        name: str,
        rows: Sequence[Comparison],
        rejections: SampledRejections,
        tokenizer: Tokenizer,
    ) -> RenderedPairs:
        return RenderedPairs(
            [
                render_pair(row.chosen, rejections.rejected(name, at, row), tokenizer, self.render)
                for at, row in enumerate(rows)
            ],
            length_limit(self.render.max_tokens, tokenizer),
        )

    def _check(
        self,
        sets: Mapping[str, RenderedPairs],
        comparisons: Comparisons,
        rejections: SampledRejections,
    ) -> None:
        """Raise DataError if there are no pairs to train on, or none to evaluate on."""
        if not sets[""].pairs:
            lacking = _lacking(rejections, "", comparisons.train)
            raise DataError(f"nothing to train on: {_reasons(sets[''], lacking, self.render)}.")
        if not any(sets[name].pairs for name in comparisons.held_out):
            reasons = []
            for name, rows in comparisons.held_out.items():
                lacking = _lacking(rejections, name, rows)
                reasons.append(f"{name}: {_reasons(sets[name], lacking, self.render)}")
            raise DataError(
                f"nothing to evaluate on: {'; '.join(reasons)}. Or hold out more rows "
                "(reading.held_out)."
            )


def _recorded(
    comparisons: Comparisons, rejections: SampledRejections, sets: Mapping[str, RenderedPairs]
) -> Mapping[str, tuple[RecordedPair, ...]]:
    """Return the items of the held-out comparisons that are not left out, by set."""
    items: dict[str, tuple[RecordedPair, ...]] = {}
    for name, rendered in sets.items():
        results = zip(comparisons.held_out[name], rendered.rows, strict=True)
        items[name] = tuple(
            (at, recorded_comparison(row, rejections.rejected(name, at, row)))
            for at, (row, result) in enumerate(results)
            if result.pair is not None
        )
    return items


def recorded_comparison(row: Comparison, rejected: Conversation | None) -> RecordedItem:
    """Return the item of a comparison: its two answers, of which the chosen one is wanted.

    `rejected` is the rejected answer, from the data or sampled. Runs that sampled different ones
    have different items.
    """
    item = item_of(row.chosen)
    if rejected is not None:
        item = item_digest([item, item_of(rejected)], item)
    return RecordedItem(item, row.chosen.where, row.chosen.columns)


def _lacking(rejections: SampledRejections, name: str, rows: Sequence[Comparison]) -> int:
    """Return the number of rows of a set that have no rejected answer."""
    return sum(rejections.rejected(name, at, row) is None for at, row in enumerate(rows))


def _reasons(rendered: RenderedPairs, lacking: int, render: RenderDataset) -> str:
    """Return the reasons why all rows of a set are dropped, and how to fix each."""
    count = len(rendered.rows)
    limit = "{} ({})".format(*rendered.limit)
    reasons = []
    if lacking:
        reasons.append(
            f"{lacking} of {count} rows have no rejected answer (sample more answers, "
            "mistakes.tries, or longer ones, mistakes.max_tokens)"
        )
    if rendered.equal and render.overlong == "truncate":
        reasons.append(
            f"the two answers of {rendered.equal} of {count} rows have the same tokens once "
            f"truncated to {limit}"
        )
    elif rendered.equal:
        reasons.append(
            f"the two answers of {rendered.equal} of {count} rows are rendered to the same tokens"
        )
    if too_long := count - lacking - rendered.equal:
        reasons.append(
            f"{too_long} of {count} rows are longer than {limit}, or are changed by the "
            "chat template"
        )
    return ", and ".join(reasons)


def pair_of(
    chosen: Conversation, rejected: Conversation | None, tokenizer: Tokenizer, render: RenderDataset
) -> Pair | None:
    """Render a pair; None if it is left out, as by `render_pair`."""
    return render_pair(chosen, rejected, tokenizer, render).pair


def render_pair(
    chosen: Conversation, rejected: Conversation | None, tokenizer: Tokenizer, render: RenderDataset
) -> RenderedPair:
    """Render a pair.

    It is left out if there is no rejected answer, if one of the two is dropped, or if both have
    the same tokens.
    """
    if rejected is None:
        return RenderedPair()
    rows = [_render_answer(answer, tokenizer, render) for answer in (chosen, rejected)]
    if not all(row.data for row in rows):
        return RenderedPair()
    first, second = rows[0].data[0], rows[1].data[0]
    if _same_tokens(first, second):
        return RenderedPair(equal=True)
    truncated = sum(row.counts.truncated for row in rows)
    return RenderedPair(
        (first, second), truncated, sum(row.counts.stripped_answers for row in rows)
    )


def _same_tokens(first: Datum, second: Datum) -> bool:
    return all(
        np.array_equal(one, other)
        for one, other in (
            (first.tokens, second.tokens),
            (first.targets, second.targets),
            (first.loss_inputs["weights"], second.loss_inputs["weights"]),
        )
    )


def _render_answer(
    answer: Conversation, tokenizer: Tokenizer, render: RenderDataset
) -> RenderedRow:
    """Render an answer to at most one datum; raises DataError for several."""
    row = render_row(answer, tokenizer, render)
    if len(row.data) > 1:
        raise DataError(
            f"{answer.where}: the answer renders to {len(row.data)} sequences, because the chat "
            "template rewrites earlier messages, but a pair needs exactly one per answer. Set "
            "rendering.train_on=last_assistant_message."
        )
    return row


def _with_answer(chosen: Conversation, text: str) -> Conversation:
    return replace(
        chosen, messages=(*prompt_messages(chosen), Message("assistant", text)), sampled=True
    )


def as_batch(pairs: Sequence[Pair]) -> tuple[Datum, ...]:
    """Return alternating chosen and rejected datums; weights are divided by the number of pairs."""
    share = np.float32(1 / len(pairs))
    return tuple(_weighted(datum, share) for datum in chain.from_iterable(pairs))


def _weighted(datum: Datum, share: np.float32) -> Datum:
    weights = datum.loss_inputs["weights"] * share
    return Datum(datum.tokens, {**datum.loss_inputs, "weights": weights})
