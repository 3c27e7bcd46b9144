"""Answers that are good or bad by themselves, without another beside them (KTO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.ports import DatasetStore, Tokenizer
from kitchen.ports.datasets import Row
from kitchen.stage import Stage
from kitchen.types import Array, Datum, Facts, Floats, Metrics, Table, Tokens
from stages.chat.conversations import Conversation, parse_conversation
from stages.chat.render import RenderDataset
from stages.chat.token_cost import AT_MOST, EpochSize
from stages.data.dataset import DatasetLoader, HeldOut, load_splits
from stages.data.splits import DatasetReader, ParsedRows
from stages.preference.comparisons import (
    Comparison,
    Comparisons,
    Mistakes,
    OwnMistakes,
    Pair,
    Pairs,
    check_marks,
    comparison,
    unwritten,
    without_rejected,
)


@dataclass(frozen=True)
class Labelled:
    """A conversation whose last answer is wanted, or is not."""

    conversation: Conversation
    good: bool


@dataclass(frozen=True)
class Labels:
    """Labelled conversations, by set; those to train on under the empty name."""

    sets: Mapping[str, tuple[Labelled, ...]]


class LoadLabels(DatasetLoader):
    """Read rows with a `label`, true or false, comparisons, or right answers; held-out sets as
    LoadDataset makes them.

    Of held-out answers, the good ones are examined. Raises DataError where some answers have a
    label and some, that are no comparison, have none.
    """

    def run(self, store: DatasetStore) -> tuple[Comparisons, Labels, HeldOut, Facts, Table]:
        found = load_splits(
            DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows, _read)
        )
        rows = {
            name: tuple(ParsedRows(data, _read))
            for name, data in (("", found.train), *found.held_out.items())
        }
        pairs = {
            name: tuple(each for each in some if isinstance(each, Comparison))
            for name, some in rows.items()
        }
        labels = {
            name: tuple(each for each in some if isinstance(each, Labelled))
            for name, some in rows.items()
        }
        if any(labels.values()):
            _check_all_rated(pairs)
        good = {
            name: (*(each.chosen for each in pairs[name]), *_good(labels[name]))
            for name in found.held_out
        }
        if not any(good.values()):
            raise DataError(
                f"{self.dataset}: no held-out row has a good answer, which evaluations compare "
                "with; hold "
                "out more rows (reading.held_out) or others (reading.test)"
            )
        held = HeldOut({name: some for name, some in good.items() if some})
        return Comparisons(pairs.pop(""), pairs), Labels(labels), held, found.facts, found.table

    preview = run


def _good(rows: Sequence[Labelled]) -> list[Conversation]:
    return [each.conversation for each in rows if each.good]


def _check_all_rated(rows: Mapping[str, Sequence[Comparison]]) -> None:
    """Beside answers with a label, one without any is right for nobody's reason."""
    if lacking := without_rejected(rows):
        raise DataError(
            f"{lacking[0].chosen.where}: there is no label, where other rows have one, so nobody "
            "knows "
            "whether the answer is good; say true or false, or drop the row"
        )


def _read(row: Row, where: str) -> Comparison | Labelled:
    label = row.get("label")
    if label is None:
        found = comparison(row, where)
        if found.rejected is None and "label" in row:
            raise DataError(
                f"{where}: label is null, so nobody knows whether the answer is good; say true or "
                "false, "
                "drop the row, or, where all answers are right, have no column of that name"
            )
        return found
    if not isinstance(label, bool):
        text = (
            ", without quotes; CSV, where every value is text, cannot say that"
            if isinstance(label, str)
            else ""
        )
        raise DataError(
            f"{where}: label is {label!r}, and must be true (a good answer) or false (a bad "
            f"one){text}"
        )
    if row.get("chosen") is not None or row.get("rejected") is not None:
        raise DataError(
            f"{where}: 'chosen' and 'rejected' say which answer is good, and have no label beside "
            "them; "
            "leave it out, or rename the column (reading.columns.label=other)"
        )
    answer = parse_conversation(
        {name: value for name, value in row.items() if name != "label"}, where
    )
    return Labelled(check_marks(answer), label)


class RenderLabels(Stage):
    """StepResult answers into datums, and put beside each the answer of a stranger to the same prompt.

    Both have weight 1 on the tokens of the answer, and the first has "labels": 1 there if it is
    good, -1 if not.
    """

    render: RenderDataset

    def run(
        self, comparisons: Comparisons, mistakes: Mistakes, labels: Labels, tokenizer: Tokenizer
    ) -> tuple[Pairs, Metrics]:
        found = {
            name: self._examples([*_split(name, rows, mistakes), *labels.sets[name]], tokenizer)
            for name, rows in comparisons.sets().items()
        }
        train = found.pop("")
        if not train:
            raise DataError(
                f"nothing to train on: no answer fits into max_tokens={self.render.max_tokens} "
                "(raise "
                "rendering.max_tokens), or all are changed by the chat template"
            )
        good = sum(float(datum.loss_inputs["labels"].max() > 0) for datum, _ in train)
        if not 0 < good < len(train):
            raise DataError(
                f"of {len(train)} answers to train on {good:.0f} are good: some must be, and some "
                "not; add "
                "rows, or, where the model writes the bad ones, give it more tries (mistakes.tries)"
            )
        held = {name: some for name, some in found.items() if some}
        if not held:
            raise DataError(
                "nothing to measure on: no held-out answer fits into "
                f"max_tokens={self.render.max_tokens}; hold out more rows, or raise "
                "rendering.max_tokens"
            )
        return Pairs(train, held), Metrics(
            {
                "data/answers": float(len(train)),
                "data/good": good,
                "data/tokens": float(sum(len(datum.tokens) for datum, _ in train)),
                "data/held_out_answers": float(sum(map(len, found.values()))),
            }
        )

    def preview(
        self, comparisons: Comparisons, labels: Labels, tokenizer: Tokenizer, how: OwnMistakes
    ) -> EpochSize:
        """An answer and a stranger's have, taken over all, as many tokens as each other."""
        rows = [*_split("", comparisons.train, Mistakes({})), *labels.sets[""]]
        sizes = [
            len(datum.tokens)
            for each in rows
            for datum in self.render.datums(each.conversation, tokenizer)
        ]
        if not sizes:
            raise DataError(
                f"nothing to train on: all of {len(rows)} answers are left out, for they do not "
                "fit into "
                f"max_tokens={self.render.max_tokens}"
            )
        more = unwritten(comparisons.train, tokenizer, self.render, how)
        return EpochSize(
            len(sizes) + len(more), "answers", 2 * sum([*sizes, *more]), AT_MOST if more else ""
        )

    def _examples(self, rows: Sequence[Labelled], tokenizer: Tokenizer) -> tuple[Pair, ...]:
        rendered = [(self.render.datums(each.conversation, tokenizer), each.good) for each in rows]
        data = [_labelled(datum, good) for some, good in rendered for datum in some]
        others = _others([_prompt(datum).tobytes() for datum in data])
        return tuple(
            (datum, self._strange(datum, data, other))
            for datum, other in zip(data, others, strict=True)
        )

    def _strange(self, datum: Datum, data: Sequence[Datum], other: int | None) -> Datum:
        """One that weighs nothing where all prompts are the same."""
        if other is None:
            idle = np.zeros(len(datum.tokens), np.float32)
            return Datum(datum.tokens, {"target_tokens": datum.targets, "weights": idle})
        return strange(datum, data[other], self.render.max_tokens)


def _split(name: str, rows: Sequence[Comparison], mistakes: Mistakes) -> list[Labelled]:
    """The answers of comparisons, each by itself."""
    found = []
    for at, each in enumerate(rows):
        found.append(Labelled(each.chosen, True))
        if (rejected := mistakes.rejected(name, at, each)) is not None:
            found.append(Labelled(rejected, False))
    return found


def _labelled(datum: Datum, good: bool) -> Datum:
    weights = datum.loss_inputs["weights"]
    return Datum(
        datum.tokens, {**datum.loss_inputs, "labels": np.where(weights != 0, 1 if good else -1, 0)}
    )


def _prompt(datum: Datum) -> Tokens:
    return datum.tokens[: _begin(datum) + 1]


def _begin(datum: Datum) -> int:
    """Of the answer, among the targets."""
    return int(np.flatnonzero(datum.loss_inputs["weights"])[0])


def _others(begins: Sequence[bytes]) -> list[int | None]:
    """Of each the nearest one with another prompt, from half of the data on; None where all prompts
    are the same.
    """
    count = len(begins)
    if len(set(begins)) < 2:
        return [None] * count
    # the next one with another prompt; what the first round leaves open, the second one knows
    after = [0] * count
    for place in reversed(range(2 * count)):
        here, following = place % count, (place + 1) % count
        after[here] = following if begins[following] != begins[here] else after[following]
    halfway = [(at + count // 2) % count for at in range(count)]
    return [
        place if begins[place] != begins[at] else after[place] for at, place in enumerate(halfway)
    ]


def strange(datum: Datum, other: Datum, most: int) -> Datum:
    """The prompt of one, and the answer of the other, cut to so many tokens with its last target."""
    ours, theirs = _begin(datum), _begin(other)
    targets = np.concatenate([datum.targets[:ours], other.targets[theirs:]])
    weights = np.concatenate(
        [datum.loss_inputs["weights"][:ours], other.loss_inputs["weights"][theirs:]]
    )
    tokens = np.concatenate([datum.tokens[: ours + 1], other.tokens[theirs + 1 :]])
    cut = max(most - 1, ours + 1)  # of the answer, one token at least
    return Datum(
        tokens[:cut], {"target_tokens": targets[:cut], "weights": weights[:cut].astype(np.float32)}
    )


@dataclass(frozen=True)
class LabelLoss:
    """sum over answers of w · l · (1 - v), their value v = sigmoid(±beta (r - z)); a
    kitchen.types.Loss.

    KTO (Ethayarajh et al., 2024, arXiv:2402.01306, eq. 8): r = log(pi / ref) of the answer, nats, +
    for good answers and - for bad ones, whose l are `good_weight` and `bad_weight`; z, of which
    there is no gradient, is how far the policy is from its reference: the mean of log(pi / ref) of
    answers to other prompts, or 0 if that is less, or if there are none.

    Reads of each datum "weights", w on the tokens of the answer and 0 elsewhere, and "reference",
    what the reference gives each token, nats; datums are by turns an answer, with "labels" 1 or -1,
    and that of a stranger.
    """

    beta: float = 0.1
    good_weight: float = 1.0
    bad_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beta", "good_weight", "bad_weight"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be more than 0")

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, Sequence[Floats], Mapping[str, float]]:
        masks = [datum.loss_inputs["weights"] != 0 for datum in data]
        # (answers,)
        weights = np.array([datum.loss_inputs["weights"].max() for datum in data[::2]], np.float64)
        signs = np.array(
            [np.sign(datum.loss_inputs["labels"].sum()) for datum in data[::2]], np.float64
        )
        ratios = np.array(
            [
                (lp.astype(np.float64) - datum.loss_inputs["reference"])[mask].sum()
                for datum, lp, mask in zip(data, logprobs, masks, strict=True)
            ]
        ).reshape(-1, 2)
        strangers = ratios[[bool(mask.any()) for mask in masks[1::2]], 1]
        away = max(0.0, float(strangers.mean())) if len(strangers) else 0.0
        margins = signs * self.beta * (ratios[:, 0] - away)
        costs = weights * np.where(signs > 0, self.good_weight, self.bad_weight)
        short = np.exp(-np.logaddexp(0, margins))  # 1 - v
        pushes = -costs * signs * self.beta * short * (1 - short)
        pushes = np.stack([pushes, np.zeros(len(pushes))], 1).ravel()  # none on strangers
        gradients = [
            (push * mask).astype(np.float32) for push, mask in zip(pushes, masks, strict=True)
        ]
        value = float(costs @ short)
        return (
            value,
            gradients,
            {
                "loss:sum": value,
                "kl_strangers:sum": away,
                "margin:sum": float(weights @ margins),
                "accuracy:sum": float(weights @ (margins > 0)),
                **self._rewards(ratios[:, 0], signs),
            },
        )

    def _rewards(self, ratios: Array, signs: Array) -> Mapping[str, float]:
        """Means of good and bad answers, of which a batch may have none."""
        return {
            f"{name}_reward:sum": self.beta * float(ratios[signs == sign].mean())
            for name, sign in (("good", 1), ("bad", -1))
            if (signs == sign).any()
        }
