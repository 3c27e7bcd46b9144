"""KTO: preference optimisation on single answers, each labelled good or bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kitchen.backend.work import counted
from kitchen.errors import ConfigError, DataError
from kitchen.ports import DatasetStore, Tokenizer
from kitchen.ports.datasets import Row
from kitchen.stage import Stage
from kitchen.types import Array, Datum, Facts, Floats, Metrics, Table, Tokens
from stages.chat.conversations import Conversation, parse_conversation
from stages.chat.items import item_digest
from stages.chat.model_limits import length_limit, longest_sequence
from stages.chat.prompts import item_of, prompt_messages
from stages.chat.render import RenderDataset, render_row
from stages.chat.row_columns import check_columns
from stages.chat.row_fields import REFUSED_IN_PREFERENCES
from stages.chat.token_cost import AT_MOST, EpochSize
from stages.chat.token_table import MarkedTokens, token_table
from stages.data.bad_rows import BadRow, BadRows
from stages.data.dataset import DatasetLoader, HeldOut, load_splits
from stages.data.splits import DatasetReader, ParsedRows
from stages.evaluate.record import RecordedItem
from stages.preference.comparisons import (
    Comparison,
    Comparisons,
    MistakesConfig,
    Pair,
    Pairs,
    RecordedPair,
    SampledRejections,
    check_answer_text,
    check_marks,
    check_train_on,
    comparison,
    count_table,
    stripped_counts,
    tool_counts,
    unsampled_tokens,
    without_rejected,
)


@dataclass(frozen=True)
class LabelledAnswer:
    """A conversation whose last answer is labelled good or bad."""

    conversation: Conversation
    good: bool


@dataclass(frozen=True)
class LabelledAnswers:
    """Labelled answers by set; the training set has the empty name."""

    sets: Mapping[str, tuple[LabelledAnswer, ...]]


class LoadLabelledAnswers(DatasetLoader):
    """Load rows with a `label`, comparisons, or right answers; held-out sets as in LoadDataset.

    A label is true (good) or false (bad). Evaluations use the good held-out answers as references.
    Raises DataError if some single answers have a label and others have none.
    """

    def run(
        self, store: DatasetStore
    ) -> tuple[Comparisons, LabelledAnswers, HeldOut, Facts, Table]:
        reader = DatasetReader(
            store, self.dataset, self.reading, self.seed, self.max_rows, labelled_or_comparison
        )
        data = load_splits(reader)
        sets = dict[str, tuple[Comparison, ...]]()
        labelled = dict[str, tuple[LabelledAnswer, ...]]()
        for name, split in (("", data.train), *data.held_out.items()):
            rows = tuple(ParsedRows(split, labelled_or_comparison))
            sets[name] = tuple(row for row in rows if isinstance(row, Comparison))
            labelled[name] = tuple(row for row in rows if isinstance(row, LabelledAnswer))
        bad_rows = list(data.bad_rows)
        if any(labelled.values()) and self.reading.bad_rows == "drop":
            sets, unlabelled = _with_labels(sets)
            bad_rows += unlabelled
        elif any(labelled.values()):
            _check_all_labelled(sets)
        comparisons = Comparisons(sets.pop(""), sets)
        answers = LabelledAnswers(labelled)
        check_answer_text(_good_answers(comparisons.train, labelled[""]), "good")
        good = replace(self._good_held_out(comparisons, answers), bad_rows=tuple(bad_rows))
        return comparisons, answers, good, data.facts, data.table

    preview = run

    def _good_held_out(self, comparisons: Comparisons, labelled: LabelledAnswers) -> HeldOut:
        """Return the held-out conversations with good answers; raises DataError if none has."""
        good = dict[str, tuple[Conversation, ...]]()
        for name, rows in comparisons.held_out.items():
            if conversations := _good_answers(rows, labelled.sets[name]):
                good[name] = conversations
        if not good:
            raise DataError(
                f"{self.dataset}: no held-out row has a good answer, which evaluations compare "
                "with. Hold out more rows (reading.held_out), or other splits (reading.test)."
            )
        return HeldOut(good)


def _good_answers(
    comparisons: Sequence[Comparison], labelled: Sequence[LabelledAnswer]
) -> tuple[Conversation, ...]:
    """Return the conversations of a set that end with a good answer."""
    good = [row.conversation for row in labelled if row.good]
    return (*(row.chosen for row in comparisons), *good)


def _check_all_labelled(rows: Mapping[str, Sequence[Comparison]]) -> None:
    """Raise DataError if there is an answer without a label, where other rows have labels."""
    if missing := without_rejected(rows):
        raise _without_label(missing[0])


def _without_label(row: Comparison) -> DataError:
    return DataError(
        f"{row.chosen.where}: label is missing, but other rows have one, so it is unknown whether "
        "the answer is good. Set label to true or false, or drop the row."
    )


def _with_labels(
    sets: Mapping[str, Sequence[Comparison]],
) -> tuple[dict[str, tuple[Comparison, ...]], list[BadRow]]:
    """Return the comparisons without the single answers that have no label, and these."""
    bad_rows: list[BadRow] = []
    complete: dict[str, tuple[Comparison, ...]] = {}
    for name, rows in sets.items():
        bad = BadRows(name or "train")
        for row in rows:
            if row.rejected is None:
                bad.add(_without_label(row), row.chosen.where)
        complete[name] = tuple(row for row in rows if row.rejected is not None)
        bad_rows += bad.rows
    return complete, bad_rows


def labelled_or_comparison(row: Row, where: str) -> Comparison | LabelledAnswer:
    check_columns(row, where, REFUSED_IN_PREFERENCES)
    label = row.get("label")
    if label is None:
        unlabelled = comparison(row, where)
        if unlabelled.rejected is None and "label" in row:
            raise DataError(
                f"{where}: label is null, so it is unknown whether the answer is good. Set it to "
                "true or false, drop the row, or, if all answers are right, remove the column."
            )
        return unlabelled
    if not isinstance(label, bool):
        is_text = isinstance(label, str)
        hint = ", without quotes; CSV files, where every value is text, have no labels" * is_text
        raise DataError(
            f"{where}: label is {label!r}, but must be true (a good answer) or false (a bad "
            f"one){hint}."
        )
    if row.get("chosen") is not None or row.get("rejected") is not None:
        raise DataError(
            f"{where}: the row has a label, but 'chosen' and 'rejected' already mark the better "
            "answer. Remove label, or rename the column (reading.columns.label=other)."
        )
    answer = {name: value for name, value in row.items() if name != "label"}
    conversation = with_last_turn_as_answer(parse_conversation(answer, where))
    return LabelledAnswer(check_marks(conversation), label)


def with_last_turn_as_answer(conversation: Conversation) -> Conversation:
    """Return the conversation whose prompt, if it is not known, ends before its last turn."""
    if conversation.prompt_length:
        return conversation
    prompt_length = len(prompt_messages(conversation))
    while prompt_length and conversation.messages[prompt_length - 1].role in ("assistant", "tool"):
        prompt_length -= 1
    return replace(conversation, prompt_length=prompt_length)


@dataclass(frozen=True)
class RenderedAnswer:
    """A labelled answer as a datum."""

    datum: Datum
    good: bool
    truncated: bool  # cut to max_tokens
    row: int  # index of the labelled answer in its set

    @property
    def key(self) -> bytes:
        """Bytes that are equal for the same tokens of prompt and answer."""
        return self.datum.tokens.tobytes() + self.datum.targets[-1:].tobytes()


@dataclass(frozen=True)
class RenderedAnswers:
    """The labelled answers of one set, rendered."""

    answers: Sequence[RenderedAnswer]
    equal: int  # answers left out that, once truncated, equal one with the other label
    # the number of rows whose tools are in the system message, and of answers that lose white
    # space to the template, if there are any
    other_counts: Mapping[str, int]
    limit: tuple[str, str]  # on the length of answers, and the fix for longer ones

    @property
    def good(self) -> int:
        """The number of good answers."""
        return sum(answer.good for answer in self.answers)

    def table(self, unsampled: int) -> Table:
        """Return the counts of a training set, with the number of answers yet to be sampled."""
        counts = {
            "answers": len(self.answers),
            "tokens": sum(len(answer.datum.tokens) for answer in self.answers),
            "good answers": self.good,
            "answers left out because they equal one with the other label": self.equal,
            "truncated answers": sum(answer.truncated for answer in self.answers),
            "bad answers yet to be sampled": unsampled,
            **self.other_counts,
        }
        return count_table(counts)

    def metrics(self) -> Metrics:
        """Return the counts of a training set."""
        counts = {
            "answers": len(self.answers),
            "good": self.good,
            "tokens": sum(len(answer.datum.tokens) for answer in self.answers),
            "truncated": sum(answer.truncated for answer in self.answers),
            "equal_answers": self.equal,
            **self.other_counts,
        }
        return Metrics({f"data/{name}": float(count) for name, count in counts.items()})


class RenderLabelledAnswers(Stage):
    """Render answers to datums, each paired with its prompt and a mismatched answer.

    Both have weight 1 on the tokens of the answer. The first also has "labels" there: 1 if the
    answer is good, -1 if it is bad. The KL divergence to the reference model is estimated from the
    mismatched answers.
    """

    render: RenderDataset

    def __post_init__(self) -> None:
        check_train_on(self.render)

    def run(
        self,
        comparisons: Comparisons,
        rejections: SampledRejections,
        labelled: LabelledAnswers,
        tokenizer: Tokenizer,
    ) -> tuple[Pairs, Metrics]:
        sets = dict[str, RenderedAnswers]()
        items = dict[str, tuple[RecordedPair, ...]]()
        for name, rows in comparisons.sets().items():
            answers = [*_label_both(name, rows, rejections), *labelled.sets[name]]
            sets[name] = self._answers(answers, tokenizer)
            if name:
                items[name] = _recorded(answers, sets[name])
        train = sets.pop("")
        held_out = {
            name: self._pairs(part, tokenizer) for name, part in sets.items() if part.answers
        }
        self._check(train, list(sets.values()))
        metrics = train.metrics()
        metrics["data/held_out_answers"] = float(sum(map(len, held_out.values())))
        metrics["data/held_out_equal_answers"] = float(sum(part.equal for part in sets.values()))
        return Pairs(self._pairs(train, tokenizer), held_out, items), metrics

    def preview(
        self,
        comparisons: Comparisons,
        labelled: LabelledAnswers,
        tokenizer: Tokenizer,
        mistakes: MistakesConfig,
    ) -> tuple[EpochSize, Table, Table]:
        """Return the size of an epoch, the first answer and counts.

        Mismatched answers count as long as the others on average.
        """
        rows = [*_label_both("", comparisons.train, SampledRejections({})), *labelled.sets[""]]
        rendered = self._answers(rows, tokenizer)
        if not rendered.answers:
            raise DataError(f"nothing to train on: {_reasons([rendered])}.")
        sizes = [len(answer.datum.tokens) for answer in rendered.answers]
        unsampled = unsampled_tokens(comparisons.train, tokenizer, self.render, mistakes)
        total = 2 * sum([*sizes, *unsampled])
        bound = AT_MOST if unsampled else ""
        size = EpochSize(len(sizes) + len(unsampled), "answers", total, bound)
        first = rendered.answers[0]
        title = f"The first answer, labelled {'good' if first.good else 'bad'}"
        return (
            size,
            token_table(title, [MarkedTokens.of_datum(first.datum)], tokenizer),
            rendered.table(len(unsampled)),
        )

    def _check(self, train: RenderedAnswers, held_out: Sequence[RenderedAnswers]) -> None:
        """Raise DataError if there is nothing to train on, or nothing to evaluate on."""
        count = len(train.answers)
        if not count:
            raise DataError(f"nothing to train on: {_reasons([train])}.")
        if not 0 < train.good < count:
            left_out = f" ({_reasons([train])})" if train.equal else ""
            raise DataError(
                f"{train.good} of {count} answers to train on are good{left_out}, but KTO needs "
                "good and bad ones. Add rows, or, if the model samples the bad ones, sample more "
                "(mistakes.tries)."
            )
        if not any(part.answers for part in held_out):
            raise DataError(
                f"nothing to evaluate on: {_reasons(held_out)}. Or hold out more rows "
                "(reading.held_out)."
            )

    def _answers(self, rows: Sequence[LabelledAnswer], tokenizer: Tokenizer) -> RenderedAnswers:
        """Render answers, without those that, truncated, equal one of the other label."""
        answers: list[RenderedAnswer] = []
        longest = longest_sequence(self.render.max_tokens, tokenizer)
        stripped: list[tuple[str, int]] = []
        dropped = 0
        for index, row in enumerate(counted(rows, "rows")):
            rendered = render_row(row.conversation, tokenizer, self.render)
            dropped += rendered.counts.dropped
            if rendered.counts.stripped_answers:
                stripped.append((row.conversation.where, rendered.counts.stripped_answers))
            for datum in rendered.data:
                truncated = len(datum.tokens) + 1 == longest
                is_cut = bool(rendered.counts.truncated) and truncated
                answers.append(RenderedAnswer(datum, row.good, is_cut, index))
        labels: dict[bytes, set[bool]] = {}
        for answer in answers:
            labels.setdefault(answer.key, set()).add(answer.good)
        cut = {answer.key for answer in answers if answer.truncated}
        kept = [
            answer for answer in answers if answer.key not in cut or len(labels[answer.key]) == 1
        ]
        tools = tool_counts([row.conversation for row in rows], tokenizer, self.render)
        counts = {**tools, **stripped_counts(stripped)}
        if dropped:
            counts["dropped"] = dropped
        limit = length_limit(self.render.max_tokens, tokenizer)
        return RenderedAnswers(kept, len(answers) - len(kept), counts, limit)

    def _pairs(self, rendered: RenderedAnswers, tokenizer: Tokenizer) -> tuple[Pair, ...]:
        data = [_labelled(answer.datum, answer.good) for answer in rendered.answers]
        others = other_prompts([_prompt(datum).tobytes() for datum in data])
        longest = longest_sequence(self.render.max_tokens, tokenizer)
        return tuple(
            (datum, self._mismatched(datum, data, other, longest))
            for datum, other in zip(data, others, strict=True)
        )

    def _mismatched(
        self, datum: Datum, data: Sequence[Datum], other: int | None, max_tokens: int
    ) -> Datum:
        """Return the mismatched datum; its weights are 0 if all prompts are the same."""
        if other is None:
            no_weights = np.zeros(len(datum.tokens), np.float32)
            return Datum(datum.tokens, {"target_tokens": datum.targets, "weights": no_weights})
        return mismatched(datum, data[other], max_tokens)


def _reasons(parts: Sequence[RenderedAnswers]) -> str:
    """Return the reasons why no answer of these sets is left, and how to fix them."""
    limit, fix = parts[0].limit
    if equal := sum(part.equal for part in parts):
        return (
            f"{equal} answers are left out because, once truncated to {limit}, they have "
            f"the same tokens as an answer with the other label: {fix}"
        )
    return f"no answer fits into {limit} ({fix}), or the chat template changes all answers"


def _label_both(
    name: str, rows: Sequence[Comparison], rejections: SampledRejections
) -> list[LabelledAnswer]:
    """Return both answers of each comparison with their labels."""
    answers = []
    for at, row in enumerate(rows):
        answers.append(LabelledAnswer(row.chosen, True))
        rejected = rejections.rejected(name, at, row)
        if rejected is not None:
            answers.append(LabelledAnswer(rejected, False))
    return answers


def _recorded(
    rows: Sequence[LabelledAnswer], rendered: RenderedAnswers
) -> tuple[RecordedPair, ...]:
    """Return the item of each rendered answer: its prompt and text, and its label."""
    recorded: list[RecordedPair] = []
    for answer in rendered.answers:
        conversation = rows[answer.row].conversation
        item = item_digest(item_of(conversation), answer.good)
        place = RecordedItem(item, conversation.where, conversation.columns)
        recorded.append((answer.row, place))
    return tuple(recorded)


def _labelled(datum: Datum, good: bool) -> Datum:
    labels = np.where(datum.loss_inputs["weights"] != 0, 1 if good else -1, 0)
    return Datum(datum.tokens, {**datum.loss_inputs, "labels": labels})


def _prompt(datum: Datum) -> Tokens:
    return datum.tokens[: _answer_start(datum) + 1]


def _answer_start(datum: Datum) -> int:
    """Return the index of the answer's first token among the targets."""
    return int(np.flatnonzero(datum.loss_inputs["weights"])[0])


def other_prompts(prompts: Sequence[bytes]) -> list[int | None]:
    """Return for each datum the index of one with another prompt; None if all are the same.

    The search starts half of the data further on, and wraps around.
    """
    count = len(prompts)
    if len(set(prompts)) < 2:
        return [None] * count
    # the next datum with another prompt; the second round fills in what the first leaves open
    after = [0] * count
    for place in reversed(range(2 * count)):
        here = place % count
        following = (place + 1) % count
        after[here] = following if prompts[following] != prompts[here] else after[following]
    halfway = [(at + count // 2) % count for at in range(count)]
    return [
        place if prompts[place] != prompts[at] else after[place] for at, place in enumerate(halfway)
    ]


def mismatched(datum: Datum, other: Datum, max_tokens: int) -> Datum:
    """Return a datum of the prompt of one and the answer of the other, cut to max_tokens."""
    start = _answer_start(datum)
    other_start = _answer_start(other)
    targets = np.concatenate([datum.targets[:start], other.targets[other_start:]])
    weights = np.concatenate(
        [datum.loss_inputs["weights"][:start], other.loss_inputs["weights"][other_start:]]
    )
    tokens = np.concatenate([datum.tokens[: start + 1], other.tokens[other_start + 1 :]])
    cut = max(max_tokens - 1, start + 1)  # at least one token of the answer
    return Datum(
        tokens[:cut], {"target_tokens": targets[:cut], "weights": weights[:cut].astype(np.float32)}
    )


@dataclass(frozen=True)
class KtoLoss:
    """KTO, a custom loss: sum over answers of w · l · (1 - v), v = sigmoid(±beta (r - z)).

    Ethayarajh et al., 2024, arXiv:2402.01306, eq. 8, with r = log(pi / ref) of the answer, nats.
    The sign is + and l is `good_weight` for good answers, - and `bad_weight` for bad ones. z, which
    has no gradient, is the KL divergence to the reference model: the mean of log(pi / ref) of the
    mismatched answers, or 0 if that is negative or there are none.

    Reads two loss inputs of each datum: "weights", which is w on the tokens of the answer and 0
    elsewhere, and "reference", the reference model's log-probability of each token, nats. Answers,
    which also have "labels", 1 or -1, alternate with mismatched ones.
    """

    measures: ClassVar[tuple[str, ...]] = (  # names of the metrics
        "loss",
        "kl_mismatched",
        "margin",
        "accuracy",
        "good_reward",
        "bad_reward",
    )
    beta: float = 0.1
    good_weight: float = 1.0
    bad_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta", "good_weight", "bad_weight"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be more than 0.")

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        answers = data[::2]
        # each (answers,)
        weights = np.array([datum.loss_inputs["weights"].max() for datum in answers], np.float64)
        signs = _signs(answers)
        rewards, kl = _rewards_and_kl(data, logprobs, masks)
        margins = signs * self.beta * (rewards - kl)
        costs = weights * np.where(signs > 0, self.good_weight, self.bad_weight)
        one_minus_v = np.exp(-np.logaddexp(0, margins))
        grads = -costs * signs * self.beta * one_minus_v * (1 - one_minus_v)
        both = np.stack([grads, np.zeros(len(grads))], 1).ravel()  # mismatched: no gradient
        gradients = [
            (grad * mask).astype(np.float32) for grad, mask in zip(both, masks, strict=True)
        ]
        value = float(costs @ one_minus_v)
        metrics = {
            "loss:sum": value,
            "kl_mismatched:sum": kl,
            "margin:sum": float(weights @ margins),
            "accuracy:sum": float(weights @ (margins > 0)),
            **self._rewards(rewards, signs),
        }
        return value, gradients, metrics

    def margins(self, data: Sequence[Datum], logprobs: Sequence[Floats], /) -> Array:
        """Return ±beta (r - z) of each answer, (answers,); above 0 if it is ranked as labelled."""
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        rewards, kl = _rewards_and_kl(data, logprobs, masks)
        margins: Array = _signs(data[::2]) * self.beta * (rewards - kl)
        return margins

    def _rewards(self, log_ratios: Array, signs: Array) -> Mapping[str, float]:
        """Return the mean rewards of good and of bad answers, if the batch has any."""
        return {
            f"{name}_reward:sum": self.beta * float(log_ratios[signs == sign].mean())
            for name, sign in (("good", 1), ("bad", -1))
            if (signs == sign).any()
        }


def _signs(answers: Sequence[Datum]) -> Array:
    """Return 1 for each good answer and -1 for each bad one, (answers,)."""
    return np.array([np.sign(datum.loss_inputs["labels"].sum()) for datum in answers], np.float64)


def _rewards_and_kl(
    data: Sequence[Datum], logprobs: Sequence[Floats], masks: Sequence[Array]
) -> tuple[Array, float]:
    """Return log(pi / ref) of each answer, (answers,) nats, and z."""
    log_ratios = _log_ratios(data, logprobs, masks)  # (answers, answer and mismatched)
    has_tokens = [bool(mask.any()) for mask in masks[1::2]]
    return log_ratios[:, 0], _clamped_mean(log_ratios[has_tokens, 1])


def _log_ratios(data: Sequence[Datum], logprobs: Sequence[Floats], masks: Sequence[Array]) -> Array:
    """Return log(pi / ref) of each answer and of its mismatched one, (answers, 2) nats."""
    log_ratios = [
        (lp.astype(np.float64) - datum.loss_inputs["reference"])[mask].sum()
        for datum, lp, mask in zip(data, logprobs, masks, strict=True)
    ]
    return np.array(log_ratios).reshape(-1, 2)


def _clamped_mean(values: Array) -> float:
    """Return the mean, or 0 if it is negative or there are no values."""
    return max(0.0, float(values.mean())) if len(values) else 0.0
