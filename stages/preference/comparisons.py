"""Comparisons: an answer that is wanted and one that is not, read, completed and rendered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from kitchen.errors import DataError
from kitchen.ports import BlobStore, DatasetStore, Sampler, Tokenizer, TrainingClient
from kitchen.ports.datasets import Row
from kitchen.stage import Stage
from kitchen.types import Datum, Facts, Metrics, Sampled, Samples, Table
from stages.chat.conversations import Conversation, Message, parse_completion, parse_conversation
from stages.chat.prompts import prompt_messages, prompt_tokens, reference_answer
from stages.chat.render import RenderDataset
from stages.chat.token_cost import AT_MOST, EpochSize
from stages.data.dataset import DatasetLoader, HeldOut, load_splits
from stages.data.splits import DatasetReader, ParsedRows
from stages.evaluate.evaluation import EvalConfig
from stages.evaluate.graded_answers import grade_samples
from stages.evaluate.reference import open_sampler, sample_answers
from stages.tasks.json_score import default_metric

FORMATS = ("prompt + chosen + rejected", "chosen + rejected, each a list of messages")
Pair = tuple[Datum, Datum]  # chosen, rejected


@dataclass(frozen=True)
class Comparison:
    """Two answers to the same prompt; where there is no rejected one, the model's own mistakes can
    be it.
    """

    chosen: Conversation  # its last message is the answer
    rejected: Conversation | None


@dataclass(frozen=True)
class Comparisons:
    """Comparisons to train on, and those held out, by the name of their set."""

    train: Sequence[Comparison]
    held_out: Mapping[str, Sequence[Comparison]]

    def sets(self) -> Mapping[str, Sequence[Comparison]]:
        """All of them; those to train on under the empty name."""
        return {"": self.train, **self.held_out}

    def lacking(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the rows without a rejected answer, by set; sets that have them all are
        left out.
        """
        found = {
            name: [at for at, each in enumerate(rows) if each.rejected is None]
            for name, rows in self.sets().items()
        }
        return {name: places for name, places in found.items() if places}


@dataclass(frozen=True)
class Mistakes:
    """Wrong answers that a model wrote itself, by set and by the number of the row."""

    texts: Mapping[str, Mapping[int, str]]

    def samples(self) -> Samples:
        return Samples(
            tuple(
                {"when": "mistake", "set": name or "train", "row": at, "text": text}
                for name, found in self.texts.items()
                for at, text in found.items()
            )
        )

    def rejected(self, name: str, at: int, row: Comparison) -> Conversation | None:
        """What was written to a row of a set, or what it has itself."""
        text = self.texts.get(name, {}).get(at)
        return row.rejected if text is None else _with_answer(row.chosen, text)


@dataclass(frozen=True)
class Pairs:
    """Comparisons as datums, with weight 1 on the tokens of the answers."""

    train: tuple[Pair, ...]
    held_out: Mapping[str, tuple[Pair, ...]]

    def data(self) -> list[Datum]:
        """All of them, chosen and rejected by turns."""
        return [
            datum
            for pairs in (self.train, *self.held_out.values())
            for pair in pairs
            for datum in pair
        ]


class LoadComparisons(DatasetLoader):
    """Read preferences, or conversations whose answer is the chosen one; held-out sets as
    LoadDataset makes them.
    """

    def run(self, store: DatasetStore) -> tuple[Comparisons, HeldOut, Facts, Table]:
        found = load_splits(
            DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows, comparison)
        )
        held = {
            split: tuple(ParsedRows(data, comparison)) for split, data in found.held_out.items()
        }
        chosen = HeldOut(
            {split: tuple(each.chosen for each in rows) for split, rows in held.items()}
        )
        return (
            Comparisons(tuple(ParsedRows(found.train, comparison)), held),
            chosen,
            found.facts,
            found.table,
        )

    preview = run


def without_rejected(sets: Mapping[str, Sequence[Comparison]]) -> list[Comparison]:
    """Right answers alone, set by set."""
    return [each for rows in sets.values() for each in rows if each.rejected is None]


def comparison(row: Row, where: str) -> Comparison:
    """The comparison of a row in any of FORMATS, or of a conversation. Raises DataError that names
    the field.
    """
    if row.get("chosen") is None and row.get("rejected") is None:
        return Comparison(check_marks(parse_conversation(row, where)), None)
    for field in ("chosen", "rejected"):
        if row.get(field) is None:
            raise DataError(
                f"{where}: {field!r} is missing or null; a comparison has both; there are: "
                f"{'; '.join(FORMATS)}"
            )
    if row.get("label") is False:
        raise DataError(
            f"{where}: 'chosen' and 'rejected' say which answer is good, and label is false; swap "
            "them if "
            "it is the other one, else leave it out, or rename the column "
            "(reading.columns.label=other)"
        )
    chosen, rejected = (_answered(row, field, where) for field in ("chosen", "rejected"))
    if chosen.messages[:-1] != rejected.messages[:-1]:
        raise DataError(
            f"{where}: chosen and rejected answer different prompts; they may differ in the last "
            "message"
        )
    if chosen.messages == rejected.messages:
        raise DataError(f"{where}: chosen and rejected are the same text; drop the row")
    return Comparison(chosen, rejected)


def _answered(row: Row, field: str, where: str) -> Conversation:
    found = parse_completion(row, field, where)
    if found.messages[-1].role != "assistant":
        raise DataError(
            f"{where}: {field} ends with a message of {found.messages[-1].role!r}, not of the "
            "assistant"
        )
    return check_marks(found)


def check_marks(conversation: Conversation) -> Conversation:
    """Raise DataError where another message than an answer is marked, for it would be judged too."""
    for at, each in enumerate(conversation.messages):
        if each.trainable and each.role != "assistant":
            raise DataError(
                f"{conversation.where}: message {at} is trainable and of {each.role!r}; it is "
                "answers that "
                "are good or bad, so mark messages of the assistant alone"
            )
    return conversation


@dataclass(frozen=True)
class OwnMistakes:
    """How wrong answers are come by where the data has none."""

    # answers that the model writes to each prompt; the first wrong one is taken
    tries: PositiveInt = 4
    temperature: PositiveFloat = 1.0
    max_tokens: PositiveInt = 64  # per answer; one that is cut there is not taken


class WriteMistakes(Stage):
    """Where a comparison lacks a rejected answer, let the model write some: the first wrong one, if
    any, is taken.
    """

    memoize = True
    model: str
    render: RenderDataset
    how: OwnMistakes = OwnMistakes()
    seed: int = 0
    # whose metric says what is wrong; the usual one where it has none
    examination: EvalConfig = EvalConfig()

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        comparisons: Comparisons,
        blobs: BlobStore | None = None,
    ) -> tuple[Mistakes, Samples]:
        lacking, sets = comparisons.lacking(), comparisons.sets()
        if not lacking:
            return Mistakes({}), Samples(())
        with closing(open_sampler(self.model, client, blobs)) as sampler:
            writer = _Writer(sampler, tokenizer, self.render, self.how, self.seed, self.examination)
            found = Mistakes(
                {
                    name: await writer.mistakes(name, sets[name], places)
                    for name, places in lacking.items()
                }
            )
        return found, found.samples()

    def preview(self) -> OwnMistakes:
        return self.how


@dataclass(frozen=True)
class _Writer:
    """A model that answers, now and then wrongly."""

    sampler: Sampler
    tokenizer: Tokenizer
    render: RenderDataset
    how: OwnMistakes
    seed: int
    examination: EvalConfig

    async def mistakes(
        self, name: str, rows: Sequence[Comparison], places: Sequence[int]
    ) -> dict[int, str]:
        """The first wrong answer to each of these rows of a set, by its number; none where it wrote
        none.
        """
        metric = await asyncio.to_thread(self._metric, [rows[at].chosen for at in places])
        how, prompts = (
            self.how,
            [prompt_tokens(rows[at].chosen, self.tokenizer, self.render) for at in places],
        )
        came = await sample_answers(
            self.sampler,
            prompts,
            [self.seed, crc32(b"mistakes"), crc32(name.encode())],
            count=how.tries,
            max_tokens=how.max_tokens,
            temperature=how.temperature,
        )
        first = {
            at: await self._wrong(rows[at].chosen, some, metric)
            for at, some in zip(places, came, strict=True)
        }
        return {at: text for at, text in first.items() if text is not None}

    def _metric(self, chosen: Sequence[Conversation]) -> str:
        found = self.examination.metric_for(chosen)
        return default_metric(map(reference_answer, chosen)) if found == "loss" else found

    async def _wrong(
        self, chosen: Conversation, came: Sequence[Sampled], metric: str
    ) -> str | None:
        answers = await grade_samples(metric, [(chosen, one) for one in came], self.tokenizer)
        wrong = (
            each.text
            for each in answers
            if not (each.exact or each.truncated or each.failed) and each.text.strip()
        )
        return next((self.render.answer_text(text, self.tokenizer) for text in wrong), None)


def to_be_read(
    rows: Sequence[Comparison], tokenizer: Tokenizer, render: RenderDataset, how: OwnMistakes
) -> EpochSize:
    """What pairs of these are, a mistake that is not written yet being as long as it may be."""
    sizes = [size for each in rows if (size := _read_of(each, tokenizer, render, how))]
    if not sizes:
        raise DataError(
            f"nothing to train on: all of {len(rows)} rows are left out, for they do not fit into "
            f"max_tokens={render.max_tokens}"
        )
    lacking = any(each.rejected is None for each in rows)
    return EpochSize(len(sizes), "pairs", sum(sizes), AT_MOST if lacking else "")


def _read_of(
    each: Comparison, tokenizer: Tokenizer, render: RenderDataset, how: OwnMistakes
) -> int:
    """Tokens of both datums; 0 for a row that is left out."""
    answers = [each.chosen] if each.rejected is None else [each.chosen, each.rejected]
    data = [_datum(one, tokenizer, render) for one in answers]
    sizes = [len(datum.tokens) for datum in data if datum is not None]
    return (
        sum(sizes) + sum(unwritten([each], tokenizer, render, how))
        if len(sizes) == len(data)
        else 0
    )


def unwritten(
    rows: Sequence[Comparison], tokenizer: Tokenizer, render: RenderDataset, how: OwnMistakes
) -> list[int]:
    """Tokens, at most, of the mistakes that the model is yet to write."""
    return [
        len(prompt_tokens(each.chosen, tokenizer, render)) + how.max_tokens
        for each in rows
        if each.rejected is None
    ]


class RenderPairs(Stage):
    """StepResult comparisons into pairs of datums; those without a rejected answer are left out, and
    counted.
    """

    render: RenderDataset

    def run(
        self, comparisons: Comparisons, mistakes: Mistakes, tokenizer: Tokenizer
    ) -> tuple[Pairs, Metrics]:
        found = {
            name: [
                pair_of(each.chosen, mistakes.rejected(name, at, each), tokenizer, self.render)
                for at, each in enumerate(rows)
            ]
            for name, rows in comparisons.sets().items()
        }
        pairs = {
            name: tuple(two for two in some if two is not None) for name, some in found.items()
        }
        train = pairs.pop("")
        if not train:
            raise DataError(
                f"nothing to train on: {self._left_out(mistakes, '', comparisons.train)}"
            )
        held = {name: some for name, some in pairs.items() if some}
        if not held:
            why = [
                f"{name}: {self._left_out(mistakes, name, some)}"
                for name, some in comparisons.held_out.items()
            ]
            raise DataError(f"nothing to measure on: {'; '.join(why)}, or hold out more rows")
        return Pairs(train, held), Metrics(
            {
                "data/rows": float(len(comparisons.train)),
                "data/pairs": float(len(train)),
                "data/tokens": float(sum(len(datum.tokens) for pair in train for datum in pair)),
                "data/held_out_pairs": float(sum(map(len, held.values()))),
            }
        )

    def _left_out(self, mistakes: Mistakes, name: str, rows: Sequence[Comparison]) -> str:
        """Why all rows of a set are, and how to mend that."""
        lacking = sum(mistakes.rejected(name, at, each) is None for at, each in enumerate(rows))
        found = (
            [
                f"{lacking} have no rejected answer (give the model more tries, mistakes.tries, or "
                "longer ones, "
                "mistakes.max_tokens)"
            ]
            if lacking
            else []
        )
        if more := len(rows) - lacking:
            found.append(
                f"{more} are longer than max_tokens={self.render.max_tokens} (raise "
                "rendering.max_tokens), or "
                "are changed by the chat template"
            )
        return f"of {len(rows)} rows {' and '.join(found)}"

    def preview(
        self, comparisons: Comparisons, tokenizer: Tokenizer, how: OwnMistakes
    ) -> EpochSize:
        return to_be_read(comparisons.train, tokenizer, self.render, how)


def pair_of(
    chosen: Conversation, rejected: Conversation | None, tokenizer: Tokenizer, render: RenderDataset
) -> Pair | None:
    """None of a chosen answer alone, or where one of both is dropped."""
    if rejected is None:
        return None
    one, other = _datum(chosen, tokenizer, render), _datum(rejected, tokenizer, render)
    return None if one is None or other is None else (one, other)


def _datum(answer: Conversation, tokenizer: Tokenizer, render: RenderDataset) -> Datum | None:
    """None where it is dropped; raises DataError for an answer in several pieces."""
    data = render.datums(answer, tokenizer)
    if len(data) > 1:
        raise DataError(
            f"{answer.where}: it is {len(data)} sequences, for the chat template rewrites what was "
            "said "
            "before, and a pair is of two: set rendering.train_on=last_assistant_turn"
        )
    return data[0] if data else None


def _with_answer(chosen: Conversation, text: str) -> Conversation:
    return replace(
        chosen, messages=(*prompt_messages(chosen), Message("assistant", text)), sampled=True
    )


def as_batch(pairs: Sequence[Pair]) -> tuple[Datum, ...]:
    """Chosen and rejected by turns; the weights of each pair are divided by the number of pairs."""
    share = np.float32(1 / len(pairs))
    return tuple(
        Datum(datum.tokens, {**datum.loss_inputs, "weights": datum.loss_inputs["weights"] * share})
        for pair in pairs
        for datum in pair
    )
