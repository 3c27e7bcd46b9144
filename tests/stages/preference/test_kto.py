"""The KTO loss against its formula and finite differences, and the data of labelled answers."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import ConfigError, DataError
from kitchen.types import Array, Datum
from stages.chat.masks import TrainOn
from stages.chat.render import RenderDataset
from stages.preference.comparisons import (
    Comparisons,
    MistakesConfig,
    SampledRejections,
    as_batch,
)
from stages.preference.kto import (
    KtoLoss,
    LoadLabelledAnswers,
    RenderLabelledAnswers,
    mismatched,
    other_prompts,
)
from tests.support.tool_template import TIMER, plain_tokenizer, tool_tokenizer

RNG = np.random.default_rng(7)
BETA, GOOD, BAD = 0.3, 1.2, 0.7


def example(good: bool, prompt: int, answer: int) -> Datum:
    weights = np.repeat([0.0, 1.0], [prompt, answer]).astype(np.float32)
    return Datum(
        RNG.integers(1, 9, prompt + answer),
        {
            "target_tokens": RNG.integers(1, 9, prompt + answer),
            "weights": weights,
            "labels": np.where(weights != 0, 1 if good else -1, 0),
            "reference": RNG.normal(-2, 1, prompt + answer),
        },
    )


PAIRS = [
    (example(good, 3, size), example(True, 2, 4))
    for good, size in ((True, 2), (False, 4), (True, 3))
]
DATA = as_batch(PAIRS)


def logprobs(shift: float) -> list[Any]:
    """Log-probabilities that differ from the reference's by `shift` on average."""
    return [
        datum.loss_inputs["reference"] + RNG.normal(shift, 0.3, len(datum.tokens)) for datum in DATA
    ]


def log_ratio(nats: Array, datum: Datum) -> float:
    """The log-ratio of an answer to the reference, summed over its weighted tokens."""
    weighted = datum.loss_inputs["weights"] != 0
    return float(sum((nats - datum.loss_inputs["reference"])[weighted]))


def expected_loss(nats: list[Array], kl: float | None = None) -> tuple[float, float]:
    """The loss and z; a z that is passed in is used as it is."""
    ratios = [log_ratio(one, datum) for one, datum in zip(nats, DATA, strict=True)]
    kl = max(0.0, float(np.mean(ratios[1::2]))) if kl is None else kl
    total = 0.0
    for ratio, datum in zip(ratios[::2], DATA[::2], strict=True):
        good = datum.loss_inputs["labels"].max() > 0
        at = BETA * (ratio - kl) if good else BETA * (kl - ratio)
        total += (GOOD if good else BAD) * (1 - 1 / (1 + math.exp(-at)))
    return total / 3, kl


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_value_and_gradient_of_kto(shift: float) -> None:
    nats = logprobs(shift)
    value, gradients, metrics = KtoLoss(BETA, GOOD, BAD)(DATA, nats)
    expected, kl = expected_loss(nats)
    assert (kl > 0) == (shift > 0)
    assert value == pytest.approx(expected, rel=1e-6)
    assert metrics["kl_mismatched:sum"] == pytest.approx(kl)
    for at, gradient in enumerate(gradients):
        for place in range(len(gradient)):
            moved = [[each.copy() for each in nats] for _ in range(2)]
            moved[0][at][place] += 1e-6
            moved[1][at][place] -= 1e-6
            above, below = (expected_loss(one, kl)[0] for one in moved)
            assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-6)


def test_gradients_raise_good_and_lower_bad_answers() -> None:
    _, gradients, metrics = KtoLoss()(DATA, logprobs(0.1))
    for at, gradient in enumerate(gradients):
        on = gradient[DATA[at].loss_inputs["weights"] != 0]
        assert (gradient[DATA[at].loss_inputs["weights"] == 0] == 0).all()
        if at % 2:  # another prompt's answer, which only estimates the KL
            assert (on == 0).all()
        elif at == 2:  # the bad answer
            assert (on > 0).all()
        else:
            assert (on < 0).all()
    assert {"good_reward:sum", "bad_reward:sum"} <= set(metrics)
    assert "bad_reward:sum" not in KtoLoss()(DATA[:2], logprobs(0.1)[:2])[2]


def test_a_distant_policy_does_not_overflow() -> None:
    with np.errstate(all="raise", under="ignore"):
        value, gradients, _ = KtoLoss(10.0)(
            DATA, [lp - 5000 * (at % 4 == 0) for at, lp in enumerate(logprobs(0.1))]
        )
    assert math.isfinite(value)
    assert all(np.isfinite(one).all() for one in gradients)


@pytest.mark.parametrize("name", ["beta", "good_weight", "bad_weight"])
def test_invalid_options_of_kto(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        KtoLoss(**{name: 0.0})


def test_mismatched_answers_keep_all_their_tokens() -> None:
    ours = Datum(
        np.array([1, 2, 3]),
        {"target_tokens": np.array([2, 3, 4]), "weights": np.array([0.0, 1.0, 1.0])},
    )
    theirs = Datum(
        np.array([5, 6, 7, 8]),
        {"target_tokens": np.array([6, 7, 8, 9]), "weights": np.array([0.0, 0.0, 1.0, 1.0])},
    )
    cut = mismatched(ours, theirs, 3)
    assert (cut.tokens.tolist(), cut.targets.tolist()) == ([1, 2], [2, 8])
    whole = mismatched(ours, theirs, 10)
    assert whole.tokens.tolist() == [1, 2, 8]
    assert whole.targets.tolist() == [2, 8, 9]
    assert whole.loss_inputs["weights"].tolist() == [0.0, 1.0, 1.0]


ROWS = [
    {"prompt": "a", "completion": "1", "label": True},
    {"prompt": "b", "completion": "2", "label": False},
    {"prompt": "c", "chosen": "3", "rejected": "4"},
]
RIGHT = {"prompt": "d", "completion": "5"}


def test_labels_and_comparisons_may_be_mixed() -> None:
    store = FakeDatasets({"mixed": {"train": ROWS, "held": ROWS}})
    comparisons, labels, held, _, _ = LoadLabelledAnswers("mixed").run(store)
    assert [len(comparisons.train), len(labels.sets[""])] == [1, 2]
    assert [each.messages[-1].content for each in held.sets["held"]] == ["3", "1"]
    pairs, metrics = RenderLabelledAnswers(RenderDataset()).run(
        comparisons, SampledRejections({}), labels, ByteTokenizer()
    )
    assert (metrics["data/answers"], metrics["data/good"]) == (4.0, 2.0)
    answers = [
        ByteTokenizer().decode(own.targets[own.loss_inputs["weights"] != 0]).strip()[0]
        for own, _ in pairs.train
    ]
    assert answers == ["3", "4", "1", "2"]
    assert [int(own.loss_inputs["labels"].sum() > 0) for own, _ in pairs.train] == [1, 0, 1, 0]


USER = {"role": "user", "content": "2 + 2?"}
CALL = {"role": "assistant", "content": "call(2 + 2)"}
RESULT = {"role": "tool", "content": "4"}
FOUR = {"role": "assistant", "content": "four"}
HELLO = {"role": "assistant", "content": "Hello!"}


@pytest.mark.parametrize(
    ("row", "trained"),
    [
        ({"prompt": [USER, CALL, RESULT], "completion": [FOUR]}, "four"),
        ({"prompt": [USER, CALL, RESULT], "completion": "four"}, "four"),
        ({"prompt": [USER, HELLO, USER], "completion": [CALL, RESULT, FOUR]}, "call(2 + 2)four"),
        ({"prompt": [USER, HELLO, USER], "completion": "four"}, "four"),
        ({"messages": [USER, HELLO, USER, FOUR]}, "four"),
        ({"messages": [USER, HELLO, USER, CALL, RESULT, FOUR]}, "call(2 + 2)four"),
        ({"chosen": [USER, CALL, RESULT, FOUR], "rejected": [USER, CALL, RESULT, HELLO]}, "four"),
    ],
)
@pytest.mark.parametrize("train_on", ["last_assistant_turn", "all_assistant_messages"])
def test_labels_are_of_answers_only(row: dict[str, Any], trained: str, train_on: TrainOn) -> None:
    labelled_row = row if "chosen" in row else {**row, "label": True}
    rows = [labelled_row, ROWS[1]]
    comparisons, labels, *_ = LoadLabelledAnswers("some").run(
        FakeDatasets({"some": {"train": rows, "held": rows}})
    )
    pairs, _ = RenderLabelledAnswers(RenderDataset(train_on)).run(
        comparisons, SampledRejections({}), labels, ByteTokenizer()
    )
    assert answer(pairs.train[0][0]) == trained
    labelled_tokens = pairs.train[0][0].loss_inputs["labels"] != 0
    assert int(labelled_tokens.sum()) == int((pairs.train[0][0].loss_inputs["weights"] != 0).sum())


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_good_answers_that_are_all_empty_are_refused(empty: str) -> None:
    good = {"prompt": "q", "completion": empty, "label": True}
    bad = {"prompt": "q", "completion": "No", "label": False}
    rows = [bad, good, {**good, "prompt": "r"}]
    stage = LoadLabelledAnswers("some")
    with pytest.raises(DataError, match=r"^fake:some:train:1: the good answers of this row and of"):
        stage.run(FakeDatasets({"some": {"train": rows, "held": ROWS}}))
    pair = {"prompt": "q", "chosen": empty, "rejected": "No"}
    with pytest.raises(DataError, match=r"^fake:some:train:0: .* rename it \(reading\.columns"):
        stage.run(FakeDatasets({"some": {"train": [pair], "held": ROWS}}))
    some = [*rows, {**good, "completion": "Yes"}]
    stage.run(FakeDatasets({"some": {"train": some, "held": ROWS}}))


def test_rows_with_tools_in_the_system_message_are_counted() -> None:
    rows = [{**GOOD_ROW, "tools": [TIMER]}, BAD_ROW]
    data = FakeDatasets({"some": {"train": rows, "held": rows}})
    comparisons, labels, *_ = LoadLabelledAnswers("some").run(data)
    stage = RenderLabelledAnswers(RenderDataset("last_assistant_turn"))
    for tokenizer, count in ((plain_tokenizer(), 1), (tool_tokenizer(), None)):
        _, metrics = stage.run(comparisons, SampledRejections({}), labels, tokenizer)
        assert metrics.get("data/tools_in_system_message") == count
        *_, table = stage.preview(comparisons, labels, tokenizer, MistakesConfig())
        assert dict(table.rows).get("tools in system message") == (count and str(count))


GOOD_ROW = {"prompt": "q", "completion": "Let me think. Yes", "label": True}
BAD_ROW = {"prompt": "q", "completion": "Let me think. No", "label": False}
PAIR = {"prompt": "q", "chosen": "Let me think. Yes", "rejected": "Let me think. No"}


@pytest.mark.parametrize(
    ("late", "left_out"), [([GOOD_ROW, BAD_ROW], 2), ([PAIR], 2), ([GOOD_ROW, PAIR, GOOD_ROW], 4)]
)
def test_answers_of_both_labels_that_are_equal_once_cut(
    late: list[dict[str, Any]], left_out: int
) -> None:
    other = [
        {"prompt": "r", "completion": "Let me think. No", "label": False},  # of another prompt
        {"prompt": "r", "completion": "Yes", "label": True},  # not cut
        {"prompt": "r", "completion": "Yes", "label": False},  # raters disagree
    ]
    comparisons, labels, *_ = LoadLabelledAnswers("some").run(
        FakeDatasets({"some": {"train": [*late, *other], "held": [*late, *ROWS]}})
    )
    stage = RenderLabelledAnswers(RenderDataset(max_tokens=10, overlong="truncate"))
    pairs, metrics = stage.run(comparisons, SampledRejections({}), labels, ByteTokenizer())
    assert [answer(datum) for datum, _ in pairs.train] == ["Let me", "Yes", "Yes"]
    assert metrics["data/answers"] == 3
    assert metrics["data/equal_answers"] == metrics["data/held_out_equal_answers"] == left_out
    assert metrics["data/truncated"] == 1
    comparisons, labels, *_ = LoadLabelledAnswers("some").run(
        FakeDatasets({"some": {"train": late, "held": ROWS}})
    )
    with pytest.raises(
        DataError, match=rf"nothing to train on: {left_out} answers .*max_tokens=10"
    ):
        stage.run(comparisons, SampledRejections({}), labels, ByteTokenizer())


@pytest.mark.parametrize(
    "sets",
    [
        {"train": [*ROWS, RIGHT], "held": ROWS},
        {"train": ROWS, "held": [*ROWS, RIGHT]},
        {"train": [ROWS[2], RIGHT], "held": ROWS},
    ],
)
def test_labels_must_be_complete(sets: dict[str, list[dict[str, Any]]]) -> None:
    place = next(f"{name}:{rows.index(RIGHT)}" for name, rows in sets.items() if RIGHT in rows)
    with pytest.raises(DataError, match=f"{place}: label is missing"):
        LoadLabelledAnswers("some").run(FakeDatasets({"some": sets}))


def answer(datum: Datum) -> str:
    """The text of a datum's weighted tokens."""
    return ByteTokenizer().decode(datum.targets[datum.loss_inputs["weights"] != 0]).strip()


def test_comparisons_and_right_answers_may_be_mixed() -> None:
    store = FakeDatasets({"mixed": {"train": [ROWS[2], RIGHT], "held": [RIGHT]}})
    comparisons, labels, *_ = LoadLabelledAnswers("mixed").run(store)
    pairs, metrics = RenderLabelledAnswers(RenderDataset()).run(
        comparisons, SampledRejections({"": {1: "6"}}), labels, ByteTokenizer()
    )
    assert (metrics["data/answers"], metrics["data/good"]) == (4.0, 2.0)
    assert [answer(own)[0] for own, _ in pairs.train] == ["3", "4", "5", "6"]
    assert [answer(other)[0] for _, other in pairs.train] == ["5", "6", "3", "4"]
    assert [int(own.loss_inputs["labels"].sum() > 0) for own, _ in pairs.train] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**ROWS[0], "label": "yes"}] * 2, "label is 'yes'"),
        ([{**ROWS[0], "label": 1}] * 2, "true .a good answer. or"),
        (
            [{"prompt": "b", "completion": "2", "label": False}] * 20,
            "no held-out row has a good answer",
        ),
    ],
)
def test_invalid_labels(rows: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        LoadLabelledAnswers("bad").run(FakeDatasets({"bad": {"train": rows}}))


def test_mismatched_answers_are_of_another_prompt() -> None:
    rows = [
        {"prompt": "a", "chosen": "1", "rejected": "2"},
        {"prompt": "b", "chosen": "3", "rejected": "4"},
    ]
    alone = [{"prompt": "a", "chosen": "1", "rejected": "2"}]
    comparisons, labels, *_ = LoadLabelledAnswers("two").run(
        FakeDatasets({"two": {"train": rows, "held": alone}})
    )
    pairs, _ = RenderLabelledAnswers(RenderDataset()).run(
        comparisons, SampledRejections({}), labels, ByteTokenizer()
    )
    for own, other in pairs.train:
        prompts = [ByteTokenizer().decode(each.tokens)[0] for each in (own, other)]
        assert prompts[0] == prompts[1], "the prompt is its own"
        letters = [
            ByteTokenizer().decode(each.targets[each.loss_inputs["weights"] != 0])[0]
            for each in (own, other)
        ]
        assert {letters[0] in "12", letters[1] in "12"} == {True, False}
    assert not any(other.loss_inputs["weights"].any() for _, other in pairs.held_out["held"])
    idle = as_batch(
        [
            (
                Datum(own.tokens, {**own.loss_inputs, "reference": np.zeros(len(own.tokens))}),
                Datum(
                    other.tokens, {**other.loss_inputs, "reference": np.zeros(len(other.tokens))}
                ),
            )
            for own, other in pairs.held_out["held"]
        ]
    )
    assert (
        KtoLoss()(idle, [np.full(len(datum.tokens), -1.0) for datum in idle])[2][
            "kl_mismatched:sum"
        ]
        == 0.0
    )


def test_too_long_held_out_answers_are_an_error() -> None:
    long = [{"prompt": "a" * 50, "chosen": "1", "rejected": "2"}]
    comparisons, labels, *_ = LoadLabelledAnswers("two").run(
        FakeDatasets({"two": {"train": ROWS[2:3] * 2, "held": long}})
    )
    with pytest.raises(DataError, match=r"nothing to evaluate on.*max_tokens=20"):
        RenderLabelledAnswers(RenderDataset(max_tokens=20, overlong="drop")).run(
            comparisons, SampledRejections({}), labels, ByteTokenizer()
        )


def test_too_long_training_answers_are_an_error() -> None:
    comparisons, labels, *_ = LoadLabelledAnswers("two").run(
        FakeDatasets({"two": {"train": ROWS, "held": ROWS}})
    )
    with pytest.raises(DataError, match=r"no answer fits into rendering\.max_tokens=2"):
        RenderLabelledAnswers(RenderDataset(max_tokens=2, overlong="drop")).run(
            comparisons, SampledRejections({}), labels, ByteTokenizer()
        )


def test_answers_of_one_label_are_an_error() -> None:
    store = FakeDatasets({"good": {"train": ROWS[:1] * 4, "held": ROWS[:1]}})
    comparisons, labels, *_ = LoadLabelledAnswers("good").run(store)
    assert isinstance(comparisons, Comparisons)
    with pytest.raises(DataError, match="4 of 4 answers to train on are good"):
        RenderLabelledAnswers(RenderDataset()).run(
            comparisons, SampledRejections({}), labels, ByteTokenizer()
        )


@pytest.mark.parametrize(
    "begins", [list(each) for each in product(b"ab", repeat=5)] + [list(b"aabbcac"), list(b"ab")]
)
def test_mismatched_answers_are_searched_from_half_way(
    begins: list[int],
) -> None:
    count = len(begins)
    prompts = [bytes([each]) for each in begins]
    for at, other in enumerate(other_prompts(prompts)):
        candidates = [place % count for place in range(at + count // 2, at + count // 2 + count)]
        assert other == next((place for place in candidates if prompts[place] != prompts[at]), None)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            {**ROWS[2], "label": True},
            "'chosen' and 'rejected' already mark the better answer",
        ),
        ({"prompt": "a", "completion": "1", "label": None}, "label is null"),
        (
            {"prompt": "a", "completion": "1", "label": "true"},
            "label is 'true'.*without quotes; CSV",
        ),
        (
            {"prompt": "a", "completion": "1", "label": 1},
            r"label is 1, but must be true \(a good answer\) or false",
        ),
    ],
)
def test_labels_are_booleans(row: dict[str, object], why: str) -> None:
    rows = [*ROWS, row]
    with pytest.raises(DataError, match=why):
        LoadLabelledAnswers("mixed").run(FakeDatasets({"mixed": {"train": rows, "held": ROWS}}))


def test_comparisons_may_have_a_null_label() -> None:
    """A table may have rows of several shapes."""
    rows = [
        *ROWS,
        {"prompt": "e", "chosen": "7", "rejected": "8", "label": None, "completion": None},
    ]
    comparisons, *_ = LoadLabelledAnswers("mixed").run(
        FakeDatasets({"mixed": {"train": rows, "held": ROWS}})
    )
    assert len(comparisons.train) == 2


def test_answers_that_the_template_strips_are_counted() -> None:
    rows = [GOOD_ROW, {**GOOD_ROW, "completion": "  yes"}, {**BAD_ROW, "completion": "no\n"}]
    data = FakeDatasets({"some": {"train": rows, "held": rows}})
    comparisons, labels, *_ = LoadLabelledAnswers("some").run(data)
    stage = RenderLabelledAnswers(RenderDataset("last_assistant_turn"))
    plain = plain_tokenizer()
    template = str(plain._inner.chat_template)
    assert "m.content" in template
    trimming = plain.with_template(template.replace("m.content", "m.content | trim"))
    for tokenizer, count in ((trimming, 2), (plain, None)):
        _, metrics = stage.run(comparisons, SampledRejections({}), labels, tokenizer)
        assert metrics.get("data/stripped_answers") == count
        *_, table = stage.preview(comparisons, labels, tokenizer, MistakesConfig())
        assert dict(table.rows).get("stripped answers") == (count and str(count))
