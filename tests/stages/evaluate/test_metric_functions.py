"""Metrics by name, MODULE:function: the scores of answers, reports of them, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import ConfigError, DataError, QualityError, RunFailed
from kitchen.types import Sampled
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.sl_basic import SlBasic
from stages.chat.conversations import Conversation, parse_conversation
from stages.evaluate import EvalConfig
from stages.evaluate.before_after import QualityGate
from stages.evaluate.evaluation import EvaluationAfter
from stages.evaluate.graded_answers import GradedAnswer, grade_samples
from stages.evaluate.metric_functions import score_answers
from stages.tasks import GradingConfig
from tests.support.recording import RecordingObserver, observed_run

HERE = "tests.support.metric_functions"
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
TOKENIZER = ByteTokenizer()
ROWS = [{"prompt": f"{n}?", "completion": "soup", "must": ["s", "o"]} for n in range(8)]


def conversation(**columns: Any) -> Conversation:
    row = {**ROWS[0], **columns}
    return parse_conversation(row, "rows:0")


def graded(
    metric: str, *texts: str, grading: GradingConfig | None = None, end: str = "stop"
) -> list[GradedAnswer]:
    samples = []
    for text in texts:
        tokens = TOKENIZER.encode(text)
        samples.append((conversation(), Sampled(tokens, tokens.astype(float), end)))  # type: ignore[arg-type]
    return asyncio.run(
        grade_samples(f"{HERE}:{metric}", samples, TOKENIZER, grading=grading or GradingConfig())
    )


@pytest.mark.parametrize(
    ("metric", "text", "scores"),
    [
        ("words", "soup", {"words": 2.0}),
        ("words", "stew", {"words": 1.0}),
        ("same", "soup", {"same": 2.0}),
        ("same", "stew", {"same": 1.0}),
        ("same", "", {}),
    ],
)
def test_function_gets_answer_reference_and_columns(
    metric: str, text: str, scores: dict[str, float]
) -> None:
    [answer] = graded(metric, text)
    assert answer.scores == scores
    assert answer.failed == ("" if scores else f"{HERE}:same returned None")


@pytest.mark.parametrize(("texts", "warnings"), [(["", ""], 1), (["", "soup"], 0), ([], 0)])
def test_a_warning_says_that_no_answer_has_a_score(texts: list[str], warnings: int) -> None:
    with capture_logs() as logs:
        graded("same", *texts)
    assert [str(row["event"]).count("None for all 2 answers") for row in logs] == [1] * warnings


def test_options_of_grading_find_the_answer() -> None:
    found, missing = graded("words", "so: <s>", "so", grading=GradingConfig(extract="<(.*)>"))
    assert (found.scores, found.parsed) == ({"words": 1.0}, True)
    assert (missing.scores, missing.parsed) == ({"words": 0.0}, False)


def test_truncated_answer_is_scored_like_any_other() -> None:
    [answer] = graded("words", "soup", end="length")
    assert (answer.scores, answer.truncated) == ({"words": 2.0}, True)


def test_few_failures_are_recorded_with_the_users_line() -> None:
    answers = graded("fails_at_end", *"aaaaaaaac")
    assert [answer.scores for answer in answers] == [{"fails_at_end": 1.0}] * 8 + [{}]
    assert answers[-1].failed.startswith("KeyError: 'c'")
    assert "metric_functions.py:19 in fails_at_end" in answers[-1].failed
    assert "in fails_at_end" in answers[-1].failed


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        ("fails_at_end", "rows:0: .*1 of 1 answers.*KeyError: 'c' .*in fails_at_end"),
        ("chats", "returned messages"),
    ],
)
def test_many_failures_end_the_run(metric: str, text: str) -> None:
    with pytest.raises(RunFailed, match=text) as failure:
        graded(metric, "c")
    assert failure.value.__cause__ is not None


def test_score_that_is_no_number_is_a_failure() -> None:
    with pytest.raises(RunFailed, match="fails_at_end returned the score nan, not a finite"):
        graded("fails_at_end", "b")


def test_metric_that_hangs_is_cut_off() -> None:
    answers = [(conversation(), "")] * 30
    scored = score_answers(f"{HERE}:hangs", answers, GradingConfig(), 0.01)
    with pytest.raises(RunFailed, match=r": \d+ of 30 .*:hangs took more than 0\.01 s"):
        asyncio.run(scored)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (f"{HERE}:wrds", "evaluation.metric=.*has no function 'wrds'; did you mean 'words'"),
        (f"{HERE}:truncated", "already have a measure 'truncated'"),
        (f"{HERE}:pass_at_1", "already have a measure 'pass_at_1'"),
        ("no_such_module:score", "there is no module 'no_such_module'"),
        (f"{HERE}:wrong_bounds", r"has the bounds 1; .* such as \(0, 1\)"),
        ("txt", "metric='txt' is unknown; did you mean 'text'"),
    ],
)
def test_other_names_are_refused(metric: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EvalConfig(metric)


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="ignore_case has no effect on the metric"):
        EvalConfig(f"{HERE}:words", ignore_case=True)


def evaluated(
    rows: list[dict[str, Any]],
    metric: str,
    options: Mapping[str, Any] = NO_OPTIONS,
    **settings: Any,
) -> RecordingObserver:
    evaluation = {"metric": f"{HERE}:{metric}", "max_tokens": 2, **options}
    recipe = Evaluate(dataset="dishes", evaluation=evaluation, **settings)
    return observed_run(recipe, FakeDatasets({"dishes": {"held": rows}}))


def test_evaluation_reports_the_function_by_its_name() -> None:
    rows = [{key: row[key] for key in ("prompt", "must")} for row in ROWS]  # without answers
    seen = evaluated(rows, "negative")
    [score] = seen.series("held/negative")
    assert -2 <= score < 0
    assert seen.series("held/exact_match") == []
    assert "negative" in {row[2] for row in seen.tables[-1].rows}


def test_stop_text_ends_an_answer() -> None:
    letters = [chr(code) for code in range(128)]
    [score] = evaluated(ROWS, "negative", {"stop": letters, "max_tokens": 99}).series(
        "held/negative"
    )
    assert -5 < score <= -1


def test_interval_uses_only_bounds_that_the_function_states() -> None:
    stated, guessed = evaluated(ROWS, "share"), evaluated(ROWS, "words", {"stop": ["x"]})
    [low], [high] = stated.series("held/share_low"), stated.series("held/share_high")
    assert (round(low, 3), high) == (0.631, 1.0), "Clopper and Pearson's interval of 8 of 8"
    assert guessed.series("held/words_high") == [], "the words of no answer say nothing of others"
    with pytest.raises(RunFailed, match=r"returned the score 1\.5, outside of its bounds, 0 to 1"):
        graded("too_high", "soup")


def test_missing_column_names_the_row() -> None:
    rows = [ROWS[0], {"prompt": "?", "completion": "soup"}]
    with pytest.raises(DataError, match=r"dishes:held:1: evaluation.metric=.*reads 'must'"):
        evaluated(rows, "words")
    seen = evaluated(rows, "words", reading={"bad_rows": "drop"})
    assert seen.series("data/bad_rows") == [1.0]


def test_training_recipes_compare_the_scores() -> None:
    data = FakeDatasets({"dishes": {"train": ROWS, "held": ROWS[:2]}})
    settings: dict[str, Any] = {
        "dataset": "dishes",
        "evaluation": {"metric": f"{HERE}:words", "max_tokens": 4, "at_least": 1},
        "monitor": {"every": 10, "warn": {"at_least": {"words": 0.1}}},
    }
    seen = observed_run(SlBasic(**settings, epochs=40, batch_size=8, learning_rate=0.05), data)
    [before], [after] = seen.series("held/words_before"), seen.series("held/words_after")
    assert before < after == 2.0
    assert seen.series("held/words_gain") == [after - before]


def test_metric_reads_the_columns_of_comparisons() -> None:
    rows = [
        {"prompt": row["prompt"], "chosen": "so", "rejected": "x", "must": ["s"]} for row in ROWS
    ]
    recipe = Dpo(dataset="dishes", evaluation={"metric": f"{HERE}:words", "max_tokens": 2})
    seen = observed_run(recipe, FakeDatasets({"dishes": {"train": rows, "held": rows[:2]}}))
    assert len(seen.series("held/words_after")) == 1


def test_target_is_the_mean_of_the_function() -> None:
    answers = tuple(graded("words", "stew", "soup"))
    QualityGate(1.0).run(EvaluationAfter({"held": answers}, {}))
    low = tuple(graded("words", "fig", "stew"))
    with pytest.raises(QualityError, match=r"words on held is 0\.500, below the target of 1"):
        QualityGate(1.0).run(EvaluationAfter({"held": low}, {}))


def test_missing_column_is_found_before_anything_is_sampled() -> None:
    with pytest.raises(DataError, match=r"rows:0: evaluation.metric=.*reads 'must'"):
        EvalConfig(f"{HERE}:words").metric_for(
            [parse_conversation({"prompt": "?", "completion": "!"}, "rows:0")]
        )
