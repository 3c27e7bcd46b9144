"""evaluate on the fake: what it reads and reports, and that resuming repeats no request."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.config.order import Order
from kitchen.engine.preview import preview
from kitchen.errors import ConfigError, DataError, QualityError
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal, read_run
from recipes.evaluate import Evaluate
from recipes.sl_basic import SlBasic
from stages.evaluate.evaluation import EvalConfig


def chats(answer: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"{n}?"},
                {"role": "assistant", "content": answer},
            ]
        }
        for n in range(count)
    ]


DATA = FakeDatasets(
    {
        "chats": {"train": chats("{}", 8), "held": chats("{}", 4), "hard": chats('{"a": 1}', 3)},
        "alone": {"train": chats("{}", 9)},
        "texts": {"train": chats("no json", 3)},
        "many": {"held": chats("{}", 40), "other": chats("{}", 2)},
        "sums": {
            "train": chats("=4", 8),
            "held": [*chats("4.0", 2), *chats("#### 4", 1), *chats("5", 1)],
        },
        "lengths": {
            "both": [*chats("n", 1), *chats("no json!", 1)],
            "only1": chats("n", 1),
            "only8": chats("no json!", 1),
        },
        "columns": {"test": [{"question": "1?", "answer": "{}"}]},
    }
)


@pytest.fixture(scope="module")
def blobs() -> FakeBlobs:
    """With a run that has learnt to say "{}"."""
    blobs = FakeBlobs()
    recipe = SlBasic(
        model="tiny", dataset="chats", batch_size=2, epochs=5, learning_rate=0.5, warmup_steps=0
    )
    execute(
        Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json")),
        recipe,
        Kitchen(FakeTraining(blobs), DATA, None, blobs),
        "dish",
    )
    return blobs


def evaluated(
    blobs: FakeBlobs, name: str, training: FakeTraining | None = None, **settings: Any
) -> dict[str, float]:
    recipe = Evaluate(**{"weights": "run:dish", "dataset": "chats", **settings})
    order = Order("recipes.evaluate:Evaluate", recipe.model_dump(mode="json"))
    execute(order, recipe, Kitchen(training or FakeTraining(blobs), DATA, None, blobs), name)
    found: dict[str, float] = {}
    for row in read_journal(blobs, name, "metrics"):
        found |= {key: value for key, value in row.items() if "/" in key}
    return found


def test_all_splits_but_train_are_scored_with_intervals(blobs: FakeBlobs) -> None:
    found = evaluated(blobs, "all")
    assert (found["held/exact_match"], found["hard/exact_match"]) == (1.0, 0.0)
    assert found["held/exact_match_low"] == pytest.approx(4 / (4 + 1.96**2), abs=1e-3)
    assert found["held/field_f1"] == 1.0
    assert found["held/field_f1_low"] == found["held/exact_match_low"]
    assert not any(key.startswith("train/") for key in found)
    titles = [table["title"] for table in read_journal(blobs, "all", "tables")]
    assert titles == ["Evaluated of chats", "Evaluation, 95 % intervals"]


def test_predictions_and_what_they_depend_on_are_recorded(blobs: FakeBlobs) -> None:
    evaluated(blobs, "recorded")
    rows = read_journal(blobs, "recorded", "samples")
    assert [row["text"] for row in rows] == ["{}"] * 7
    assert {row["set"] for row in rows} == {"held", "hard"}
    assert [(row["row"], row["try"]) for row in rows] == [(n, 0) for n in (*range(3), *range(4))]
    assert {
        key: rows[1][key]
        for key in ("prompt", "wanted", "text", "exact", "f1", "parsed", "truncated")
    } == {
        "prompt": "1?",
        "wanted": '{"a": 1}',
        "text": "{}",
        "exact": False,
        "f1": 0.0,
        "parsed": True,
        "truncated": False,
    }
    assert DATA.load("chats", split="hard").where(1) == rows[1]["where"]
    facts = read_run(blobs, "recorded")["facts"]
    assert (facts["weights"], facts["weights.model"], len(facts["weights.sha256"])) == (
        "run:dish@final",
        "tiny",
        64,
    )
    assert facts["data.held.sha256"] != facts["data.hard.sha256"]


@pytest.mark.parametrize(
    ("settings", "sets"),
    [
        ({"splits": ("hard",)}, {"hard": 3}),
        ({"splits": ("train", "held")}, {"train": 8, "held": 4}),
        ({"rows": 2}, {"held": 2, "hard": 2}),
        ({"dataset": "alone"}, {"train": 9}),
    ],
)
def test_which_rows(blobs: FakeBlobs, settings: dict[str, Any], sets: dict[str, int]) -> None:
    name = json.dumps(settings).replace("/", "")
    evaluated(blobs, name, **settings)
    rows = [row["set"] for row in read_journal(blobs, name, "samples")]
    assert {each: rows.count(each) for each in rows} == sets


def test_answers_that_cannot_be_compared_have_a_loss(blobs: FakeBlobs) -> None:
    found = evaluated(blobs, "loss", dataset="texts")
    assert found.keys() == {
        f"train/{key}{end}" for key in ("loss", "bits_per_byte") for end in ("", "_low", "_high")
    }
    assert 0 < found["train/loss_low"] <= found["train/loss"] <= found["train/loss_high"]


def test_a_loss_is_of_all_tokens_alike_and_its_interval_of_rows(blobs: FakeBlobs) -> None:
    """The rows have two tokens and nine, the end token included."""
    found = evaluated(blobs, "lengths", dataset="lengths")
    alone = [
        evaluated(blobs, f"of-{n}", dataset="lengths", splits=[f"only{n}"])[f"only{n}/loss"]
        for n in (1, 8)
    ]
    assert found["both/loss"] == pytest.approx((2 * alone[0] + 9 * alone[1]) / 11, rel=1e-6)
    assert [found["both/loss_low"], found["both/loss_high"]] == pytest.approx(
        sorted(alone), rel=1e-6
    )


def test_answers_may_be_compared_as_mathematics(blobs: FakeBlobs) -> None:
    recipe = SlBasic(
        model="tiny", dataset="sums", batch_size=2, epochs=40, learning_rate=0.5, warmup_steps=0
    )
    execute(
        Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json")),
        recipe,
        Kitchen(FakeTraining(blobs), DATA, None, blobs),
        "sums",
    )
    asked: dict[str, Any] = {"weights": "run:sums", "dataset": "sums", "splits": ["held"]}
    found = [
        evaluated(blobs, metric, **asked, evaluation={"metric": metric})
        for metric in ("text", "math")
    ]
    assert [each["held/exact_match"] for each in found] == [0.0, 0.75]
    [*answers] = read_journal(blobs, "math", "samples")
    assert [(each["text"], each["exact"], each["f1"], each["parsed"]) for each in answers] == [
        ("=4", True, 1.0, True)
    ] * 3 + [("=4", False, 0.0, True)]


@pytest.mark.parametrize(
    ("metric", "why"),
    [("json", "'no json' is not a JSON object"), ("math", "'no json' has no number or formula")],
)
def test_unparsable_reference_answers_are_errors_at_once(
    blobs: FakeBlobs, metric: str, why: str
) -> None:
    recipe = Evaluate(weights="run:dish", dataset="texts", evaluation=EvalConfig(metric=metric))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=f"texts:train:0: evaluation.metric={metric}: {why}"):
        list(preview(recipe.workflow(), Kitchen(FakeTraining(blobs), DATA, None, blobs).ports()))
    with pytest.raises(DataError, match=f"texts:train:0: evaluation.metric={metric}: {why}"):
        evaluated(blobs, f"unread-{metric}", dataset="texts", evaluation={"metric": metric})


def test_unknown_metrics_and_missing_extras_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="metric='mth' is unknown; did you mean 'math'"):
        EvalConfig(metric="mth")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(
        ConfigError, match=r"evaluation.metric=math needs math-verify.*'crucible-kitchen\[rl\]'"
    ):
        EvalConfig(metric="math")


def test_columns_are_renamed(blobs: FakeBlobs) -> None:
    how = {"question": "prompt", "answer": "completion"}
    assert evaluated(blobs, "renamed", dataset="columns", columns=how)["test/exact_match"] == 1.0


def test_a_model_is_evaluated_as_it_came(blobs: FakeBlobs) -> None:
    assert evaluated(blobs, "base", weights="tiny")["held/exact_match"] == 0.0


def test_a_split_that_is_not_there_is_an_error(blobs: FakeBlobs) -> None:
    with pytest.raises(DataError, match="chats has no split 'hedl'; did you mean 'held'"):
        evaluated(blobs, "split", splits=("hedl",))


def test_a_missed_quality_target_is_final(
    blobs: FakeBlobs,
) -> None:
    missed = {"splits": ("hard",), "evaluation": {"at_least": 0.5}}
    with pytest.raises(QualityError, match="exact match on hard is 0"):
        evaluated(blobs, "missed", **missed)

    class Mute(FakeTraining):
        """It can say nothing."""

        def sampler(self, weights: Any) -> Any:
            raise AssertionError("asked again")

    with pytest.raises(QualityError):
        evaluated(blobs, "missed", Mute(blobs), **missed)
    with pytest.raises(AssertionError, match="asked again"):
        evaluated(blobs, "fresh", Mute(blobs))


DRAWN: dict[str, Any] = {
    "dataset": "many",
    "splits": ("held",),
    "evaluation": {"metric": "text", "max_tokens": 3},
    "answering": {"temperature": 12, "tries": 4, "pass_at": (1, 2, 4)},
}


def texts(blobs: FakeBlobs, name: str, **settings: Any) -> list[str]:
    evaluated(blobs, name, **{**DRAWN, **settings})
    return [row["text"] for row in read_journal(blobs, name, "samples") if row["set"] == "held"]


def test_scores_are_means_over_tries_with_pass_at_k(blobs: FakeBlobs) -> None:
    found = evaluated(blobs, "drawn", **DRAWN)
    rows = read_journal(blobs, "drawn", "samples")
    assert [(row["row"], row["try"]) for row in rows] == [
        (n, t) for n in range(40) for t in range(4)
    ]
    right = [sum(row["exact"] for row in rows if row["row"] == n) for n in range(40)]
    assert 0 < sum(right) < 160
    assert found["held/exact_match"] == found["held/pass_at_1"] == pytest.approx(sum(right) / 160)
    assert found["held/pass_at_4"] == pytest.approx(sum(each > 0 for each in right) / 40)
    assert found["held/pass_at_1"] < found["held/pass_at_2"] < found["held/pass_at_4"]
    assert found["held/pass_at_2_low"] < found["held/pass_at_2"] < found["held/pass_at_2_high"]
    [shown] = [
        table
        for table in read_journal(blobs, "drawn", "tables")
        if table["title"].startswith("Evaluation")
    ]
    assert [row[2] for row in shown["rows"]] == [
        "exact match",
        "field F1",
        "pass@1",
        "pass@2",
        "pass@4",
        "cut short",
    ]


def test_samples_do_not_depend_on_other_sets(blobs: FakeBlobs) -> None:
    first = texts(blobs, "one")
    assert len(set(first)) > 1
    assert first == texts(blobs, "same") == texts(blobs, "with the other", splits=None)
    assert first != texts(blobs, "another", seed=1)


def test_one_answer_may_be_drawn_too(blobs: FakeBlobs) -> None:
    assert len(set(texts(blobs, "warm", answering={"temperature": 12}))) > 1
    assert len(set(texts(blobs, "greedy", answering={}))) == 1


@pytest.mark.parametrize(
    ("answering", "why"),
    [
        ({"tries": 4}, "tries=4 at temperature=0"),
        ({"tries": 4, "temperature": 1, "pass_at": (1, 8)}, "pass_at=8 must be from 1 to tries=4"),
        ({"pass_at": (0,)}, "pass_at=0 must be from 1 to tries=1"),
    ],
)
def test_tries_that_tell_nothing_are_refused(answering: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Evaluate(answering=answering)


def test_tries_where_no_answers_are_drawn_are_refused(blobs: FakeBlobs) -> None:
    with pytest.raises(
        ConfigError, match="train is evaluated by its loss, for which no answers are sampled"
    ):
        evaluated(blobs, "nothing drawn", dataset="texts", answering={"temperature": 1, "tries": 2})
