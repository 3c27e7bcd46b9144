"""Evaluations before and after training: scores, failures, intervals and tables."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.ports import Done, Tokenizer
from kitchen.statistics.intervals import Interval, interval, paired_interval
from kitchen.types import Floats, Sampled, Tokens
from stages.chat.conversations import parse_conversation
from stages.chat.render import RenderDataset
from stages.data.dataset import HeldOut
from stages.evaluate.before_after import CompareEvaluations
from stages.evaluate.checkpoint_eval import evaluation_report
from stages.evaluate.evaluation import (
    DecodingConfig,
    EvalConfig,
    Evaluation,
    EvaluationAfter,
    EvaluationBefore,
    Likelihood,
    evaluate,
    metrics_by_set,
)
from stages.evaluate.graded_answers import GradedAnswer, failure_counts, grade_samples
from tests.support.thoughts import ThoughtStrippingTokenizer

LONG = parse_conversation(
    {
        "messages": [
            {"role": role, "content": text}
            for role, text in (
                ("user", "1?"),
                ("assistant", "a thought/think>one"),
                ("user", "2?"),
                ("assistant", "two"),
            )
        ]
    },
    "rows:0",
)
SHORT = parse_conversation({"prompt": "3?", "completion": "three"}, "rows:1")


def answer(f1: float, **more: Any) -> GradedAnswer:
    return GradedAnswer("?", "!", "!", f1 == 1, f1, True, **{"truncated": False, **more})


def losses(
    *rows: Any, how: RenderDataset | None = None, tokenizer: Tokenizer | None = None
) -> Likelihood:
    sampler = FakeTraining().sampler("fake")
    found = asyncio.run(
        evaluate(
            sampler,
            tokenizer or ByteTokenizer(),
            EvalConfig("loss"),
            how or RenderDataset(),
            HeldOut({"held": rows}),
        )
    )
    return found.losses["held"]


def test_row_of_several_datums_counts_once() -> None:
    """The template strips earlier thoughts, so that each turn is one datum."""
    whole, alone = (
        losses(LONG, SHORT, tokenizer=ThoughtStrippingTokenizer()),
        losses(SHORT, tokenizer=ThoughtStrippingTokenizer()),
    )
    assert len(RenderDataset().datums(LONG, ThoughtStrippingTokenizer())) == 2
    assert (len(whole.nats), whole.nats[1], whole.tokens[1]) == (2, alone.nats[0], alone.tokens[0])
    assert whole.tokens == (len("a thought/think>one") + len("two") + 2, len("three") + 1)
    assert whole.num_bytes == (len("a thought/think>one") + len("two"), len("three"))


def test_overlong_rows_are_dropped_and_not_counted() -> None:
    how = RenderDataset(max_tokens=15, overlong="drop")
    assert len(losses(LONG, SHORT, how=how).nats) == 1
    with pytest.raises(
        DataError, match=r"rows:0: this row and all others of its held-out set .*max_tokens=15"
    ):
        losses(LONG, how=how)


class Astray:
    """A sampler of diverged weights."""

    def logprobs(self, tokens: Tokens) -> Done[Floats]:
        return Done(np.full(len(tokens), np.nan, np.float32))

    def close(self) -> None: ...


def test_non_finite_loss_names_the_row() -> None:
    astray: Any = Astray()
    with pytest.raises(RunFailed, match="rows:1: the loss of this row is not finite"):
        asyncio.run(
            evaluate(
                astray,
                ByteTokenizer(),
                EvalConfig("loss"),
                RenderDataset(),
                HeldOut({"held": (SHORT,)}),
            )
        )


def test_ungradable_answers_count_as_wrong_and_are_counted() -> None:
    row = parse_conversation({"prompt": "?", "completion": "5"}, "rows:0")
    texts = [("$x = 9^{9^9}$", "stop"), ("$x = 9^{9^9}$", "length")]
    answers = asyncio.run(
        grade_samples(
            "math",
            [
                (row, Sampled(ByteTokenizer().encode(text), np.zeros(len(text), np.float32), why))
                for text, why in texts
            ],
            ByteTokenizer(),  # type: ignore[arg-type]
            timeout=2.0,
        )
    )
    assert [
        (each.exact, each.f1, each.parsed, each.truncated, each.failed) for each in answers
    ] == [(False, 0.0, False, False, "grading took more than 2 s"), (False, 0.0, False, True, "")]
    assert failure_counts(answers) == {
        ("truncated", "truncated"): 1,
        ("could not be compared", "uncompared"): 1,
    }
    metrics, table = evaluation_report("Evaluation", Evaluation({"held": tuple(answers)}, {}))
    assert (metrics["held/truncated"], metrics["held/uncompared"]) == (1.0, 1.0)
    assert ("held", "1", "could not be compared", "1 of 2 answers") in table.rows


def test_sampling_options_need_compared_answers() -> None:
    with pytest.raises(ConfigError, match="held is evaluated by its loss"):
        metrics_by_set(HeldOut({"held": (SHORT,)}), EvalConfig(), DecodingConfig(temperature=1.0))


def test_before_after_and_difference_have_intervals() -> None:
    was, now = [0.0, 0.5, 0.5, 1.0], [1.0, 0.5, 1.0, 1.0]
    old, new = (tuple(answer(each, truncated=each < 0.5) for each in some) for some in (was, now))
    before, after = EvaluationBefore({"held": old}, {}), EvaluationAfter({"held": new}, {})
    metrics, table, _ = CompareEvaluations().run(before, after)
    exact, f1, cut = table.rows
    assert exact == (
        "held",
        "4",
        "exact match",
        interval([0, 0, 0, 1]).format(),
        interval([1, 0, 1, 1]).format(),
        paired_interval([0, 0, 0, 1], [1, 0, 1, 1]).format(sign=True),
    )
    assert f1 == (
        "held",
        "4",
        "field F1",
        interval(was).format(),
        interval(now).format(),
        paired_interval(was, now).format(sign=True),
    )
    assert cut == ("held", "4", "truncated", "1", "0", "")
    assert (metrics["held/field_f1_gain"], metrics["held/truncated_before"]) == (0.375, 1.0)


def test_loss_difference_is_paired_by_row() -> None:
    """Each row improves by one nat, so the difference is certain though both losses vary."""
    before, after = (Likelihood(nats, (2, 4), (1, 3)) for nats in ((4.0, 6.0), (2.0, 2.0)))
    metrics, table, _ = CompareEvaluations().run(
        EvaluationBefore({}, {"held": before}), EvaluationAfter({}, {"held": after})
    )
    loss, bits = table.rows
    assert loss == (
        "held",
        "2",
        "loss, nats per token",
        "1.6667 [0.0000, 4.4903]",
        "0.6667 [0.0000, 3.4903]",
        "-1.0000 [no interval]",
    )
    assert metrics["held/loss_after"] == pytest.approx(4 / 6)
    assert metrics["held/bits_per_byte_after"] == pytest.approx(1 / math.log(2))
    assert bits[3].startswith(f"{10 / 4 / math.log(2):.4f} [")


def test_intervals_are_formatted() -> None:
    found = Interval(0.12345, -0.5, 0.75, 0.95)
    assert (found.format(), found.format(4), found.format(1, sign=True)) == (
        "0.123 [-0.500, 0.750]",
        "0.1235 [-0.5000, 0.7500]",
        "+0.1 [-0.5, +0.8]",
    )
