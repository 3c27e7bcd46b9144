"""Multiple choice: rows with choices, their likelihoods, and the metrics of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError, QualityError, RunFailed
from kitchen.ports.future import Done
from kitchen.types import Floats, Tokens
from stages.chat.conversations import parse_conversation
from stages.chat.render import RenderDataset
from stages.data.dataset import HeldOut
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.checkpoint_eval import EvaluateCheckpoint, LoadHeldOut, evaluation_report
from stages.evaluate.choices import ScoredChoices, check_choices
from stages.evaluate.evaluation import (
    DecodingConfig,
    EvalConfig,
    Evaluation,
    EvaluationAfter,
    EvaluationBefore,
    evaluate,
    metrics_by_set,
    sample_records,
)
from tests.support.no_chat_template import PlainTokenizer

CHOICES = ["salt", "basil", "sugar", "flour"]
HERB = {"question": "Which is a herb?", "choices": CHOICES, "answer": 1}
CHOICE = EvalConfig(metric="choice")


class LetterSampler:
    """A sampler whose log-probability of a token depends on its letter alone."""

    def __init__(self, nats: Mapping[str, float], default: float = -1.0) -> None:
        self.nats = {ord(letter): value for letter, value in nats.items()}
        self.default = default

    def logprobs(self, tokens: Tokens) -> Done[Floats]:
        return Done(np.array([self.nats.get(int(t), self.default) for t in tokens], np.float32))

    def close(self) -> None: ...


def evaluated(*rows: Any, sampler: Any, tokenizer: Any = None, **render: Any) -> Evaluation:
    parsed = tuple(parse_conversation(row, f"rows:{at}") for at, row in enumerate(rows))
    return asyncio.run(
        evaluate(
            sampler,
            tokenizer or ByteTokenizer(),
            CHOICE,
            RenderDataset(**render),
            HeldOut({"held": parsed}),
        )
    )


@pytest.mark.parametrize(
    ("columns", "right"),
    [
        ({"answer": 1}, "basil"),
        ({"answer": 3.0}, "flour"),
        ({"answer": "basil"}, "basil"),
        ({"answer": "C"}, "sugar"),
        ({"answerKey": "D"}, "flour"),
        ({"answer": "0"}, "salt"),
        ({"answer": "y", "choices": {"text": CHOICES, "label": ["x", "y", "z", "w"]}}, "basil"),
        ({"answer": "2", "choices": ["4", "2"]}, "2"),
        ({"answerKey": "2", "choices": {"text": CHOICES, "label": list("1234")}}, "basil"),
        ({"answerKey": "2", "choices": {"text": list("4321"), "label": list("1234")}}, "3"),
        ({"answerKey": "B", "choices": ["B", "A"]}, "A"),
        ({"answer": 1, "choices": ["1", "0"]}, "0"),
        ({"answer": "1", "choices": ["0", "1", "2"]}, "1"),
        ({"completion": "sugar", "prompt": "?", "answer": 1}, "sugar"),
    ],
)
def test_rows_with_choices(columns: Any, right: str) -> None:
    row = {"question": "Which?", "choices": CHOICES, **columns}
    parsed = parse_conversation(row, "rows:0")
    assert parsed.messages[-1].content == right
    assert right in parsed.choices
    assert parsed.single_turn


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"answer": 4}, "answer is 4"),
        ({"answer": -1}, "answer is -1"),
        ({"answer": "pepper"}, "answer is 'pepper'"),
        ({"answer": True}, "answer is True"),
        ({"answer": 0.5}, "answer is 0.5"),
        ({"answer": None}, "'answer' is missing"),
        ({"answer": "1", "choices": ["1", "0"]}, "the text of choice 0 and the index of choice 1"),
        ({"answer": "A", "choices": ["B", "A"]}, "the text of choice 1 and the label of choice 0"),
        (
            {"answer": "2", "choices": {"text": list("4321"), "label": list("1234")}},
            "the text of choice 2 and the label of choice 1",
        ),
        ({"answer": 0, "choices": ["salt"]}, "choices"),
        ({"answer": 0, "choices": ["salt", ""]}, "choices"),
        ({"answer": 0, "choices": "salt, basil"}, "choices"),
        ({"answer": 0, "choices": {"text": CHOICES, "label": ["A"]}}, "labels"),
    ],
)
def test_bad_choices_are_named(columns: Any, named: str) -> None:
    row = {"question": "Which?", "choices": CHOICES, **columns}
    with pytest.raises(DataError, match=rf"^rows:0: .*{named}"):
        parse_conversation(row, "rows:0")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), PlainTokenizer()])
def test_likeliest_choice_wins(tokenizer: Any) -> None:
    [row] = evaluated(HERB, sampler=LetterSampler({"b": 9.0}), tokenizer=tokenizer).choices["held"]
    assert (row.chosen, row.chosen_by_length, row.expected) == ("basil", "basil", "basil")
    separator = 0 if tokenizer.chat else -1  # a space comes before an answer without a template
    expected = [separator - 4, separator + 9 - 4, separator - 5, separator - 5]
    assert row.logprobs == pytest.approx(expected), "without the token that ends an answer"


def test_length_is_normalised_by_characters() -> None:
    row = {"prompt": "?", "choices": ["no", "certainly"], "answer": 1}
    found = evaluated(row, sampler=LetterSampler({"n": -3.0, "o": -3.0}))
    [scored] = found.choices["held"]
    assert scored.logprobs == pytest.approx((-6.0, -11.0))
    assert (scored.chosen, scored.chosen_by_length) == ("no", "certainly")
    metrics, table = evaluation_report("Evaluation", found)
    assert (metrics["held/acc"], metrics["held/acc_norm"]) == (0.0, 1.0)
    assert metrics["held/acc_norm_low"] < 1 == metrics["held/acc_norm_high"]
    assert [line[2] for line in table.rows] == ["accuracy", "accuracy by length"]
    held_out = HeldOut({"held": (parse_conversation(row, "rows:0"),)})
    [record] = sample_records(found, held_out).rows
    assert (record["text"], record["wanted"], record["exact"]) == ("no", "certainly", False)
    assert record["scores"] == {"acc": 0.0, "acc_norm": 1.0}


def test_only_wrong_choices_may_be_equal() -> None:
    row = {"prompt": "?", "choices": ["a", "b", "a"], "answer": 1}
    [scored] = evaluated(row, sampler=LetterSampler({"a": 0.0})).choices["held"]
    assert (scored.chosen, scored.expected) == ("a", "b")
    with pytest.raises(DataError, match=r"rows:0: .*choices has the right one"):
        evaluated({**row, "answer": 2}, sampler=LetterSampler({"a": 0.0}))


def test_row_without_choices_is_named() -> None:
    rows = [parse_conversation(HERB, "rows:0")]
    rows.append(parse_conversation({"prompt": "?", "completion": "basil"}, "rows:1"))
    with pytest.raises(DataError, match=r"rows:1: evaluation.metric=choice: .*no choices"):
        metrics_by_set(HeldOut({"held": tuple(rows)}), CHOICE, DecodingConfig())


def test_sampling_options_have_no_effect_on_choices() -> None:
    held_out = HeldOut({"held": (parse_conversation(HERB, "rows:0"),)})
    with pytest.raises(ConfigError, match="held is evaluated by the likelihood of choices"):
        metrics_by_set(held_out, CHOICE, DecodingConfig(temperature=1.0))
    with pytest.raises(ConfigError, match=r"evaluation.extract has no effect"):
        EvalConfig(metric="choice", extract="x")
    with pytest.raises(ConfigError, match=r"evaluation.stop has no effect on the metric loss"):
        EvalConfig(metric="loss", stop=("x",))


def test_overlong_rows_are_dropped_or_refused() -> None:
    long = {**HERB, "question": "Which? " * 20}
    found = evaluated(long, HERB, sampler=LetterSampler({}), max_tokens=60, overlong="drop")
    assert [row.row for row in found.choices["held"]] == [1]
    for overlong in ("error", "truncate"):
        with pytest.raises(DataError, match=r"rows:0: .*max_tokens=60"):
            evaluated(long, HERB, sampler=LetterSampler({}), max_tokens=60, overlong=overlong)
    with pytest.raises(DataError, match=r"rows:0: this row and all others"):
        evaluated(long, sampler=LetterSampler({}), max_tokens=60, overlong="drop")


def test_likelihoods_that_are_not_finite_name_the_row() -> None:
    with pytest.raises(RunFailed, match="rows:1: the likelihood of a choice is not finite"):
        evaluated({**HERB, "choices": ["a", "b"]}, HERB, sampler=LetterSampler({"s": np.nan}))


def test_choices_are_compared_before_and_after() -> None:
    def scored(*logprobs: float) -> ScoredChoices:
        return ScoredChoices("?", "yes", ("yes", "no"), logprobs)

    before = EvaluationBefore({}, {}, {"held": (scored(-2, -1), scored(-1, -2))})
    after = EvaluationAfter({}, {}, {"held": (scored(-1, -2), scored(-1, -2))})
    metrics, table, _ = CompareEvaluations().run(before, after)
    assert (metrics["held/acc_before"], metrics["held/acc_after"]) == (0.5, 1.0)
    assert metrics["held/acc_gain"] == 0.5
    assert [row[2] for row in table.rows] == ["accuracy", "accuracy by length"]
    QualityGate(1.0).run(after)
    with pytest.raises(QualityError, match=r"held is 0.500"):
        QualityGate(0.75).run(EvaluationAfter({}, {}, before.choices))


def test_evaluate_scores_choices_of_a_data_set() -> None:
    client: Any = FakeTraining()
    store = FakeDatasets({"herbs": {"test": [HERB, {**HERB, "answer": "sugar"}]}})
    held_out, _, _ = LoadHeldOut("herbs").run(store)
    stage = EvaluateCheckpoint("fake", CHOICE, RenderDataset())
    after, samples = asyncio.run(stage.run(client, client, held_out))
    assert len(after.choices["test"]) == len(samples.rows) == 2
    assert {row["wanted"] for row in samples.rows} == {"basil", "sugar"}
    counts, *_ = stage.preview(client, client, held_out)
    assert ("answers in all", "0") in counts.rows


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "choices": ["salt", "salt"], "answer": 0},
        {"question": "?", "choices": ["salt", "rice", "salt "], "answer": "C"},
        {"question": "?", "choices": {"text": ["a", "a"], "label": ["1", "2"]}, "answerKey": "2"},
        {"prompt": "?", "completion": "salt", "choices": ["salt", "rice", "salt"]},
    ],
)
def test_a_right_choice_that_is_there_twice_is_refused(row: Mapping[str, Any]) -> None:
    conversation = parse_conversation(row, "rows:0")
    with pytest.raises(DataError, match=r"rows:0: evaluation.metric=choice: choices has the right"):
        check_choices([conversation])
    with pytest.raises(DataError, match=r"rows:0: evaluation.metric=choice"):
        CHOICE.metric_for([conversation])
    assert EvalConfig(metric="text").metric_for([conversation]) == "text"
