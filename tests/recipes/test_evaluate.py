"""evaluate on the fake: splits, metrics and samples, and resuming without new requests."""

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
        "texts": {"train": [*chats("no json", 2), *chats("no json at all", 1)]},
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
    """Return a store with a run that has learnt to answer "{}"."""
    blobs = FakeBlobs()
    recipe = SlBasic(
        model="tiny", dataset="chats", batch_size=2, epochs=5, learning_rate=0.5, warmup_steps=0
    )
    execute(
        Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json")),
        recipe,
        Kitchen(FakeTraining(blobs), DATA, None, blobs),
        "trained",
    )
    return blobs


def measure(
    blobs: FakeBlobs, name: str, training: FakeTraining | None = None, **settings: Any
) -> dict[str, float]:
    recipe = Evaluate(**{"weights": "run:trained", "dataset": "chats", **settings})
    order = Order("recipes.evaluate:Evaluate", recipe.model_dump(mode="json"))
    execute(order, recipe, Kitchen(training or FakeTraining(blobs), DATA, None, blobs), name)
    metrics: dict[str, float] = {}
    for row in read_journal(blobs, name, "metrics"):
        metrics |= {key: value for key, value in row.items() if "/" in key}
    return metrics


def test_all_splits_but_train_are_scored_with_intervals(blobs: FakeBlobs) -> None:
    metrics = measure(blobs, "all")
    assert (metrics["held/exact_match"], metrics["hard/exact_match"]) == (1.0, 0.0)
    assert metrics["held/exact_match_low"] == pytest.approx(0.025 ** (1 / 4))
    assert metrics["held/field_f1"] == 1.0
    assert metrics["held/field_f1_low"] == metrics["held/exact_match_low"]
    assert not any(key.startswith("train/") for key in metrics)
    titles = [table["title"] for table in read_journal(blobs, "all", "tables")]
    assert titles == ["Evaluation data of chats", "Evaluation, 95 % intervals"]


def test_predictions_and_what_they_depend_on_are_recorded(blobs: FakeBlobs) -> None:
    measure(blobs, "recorded")
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
        "run:trained@final",
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
def test_settings_choose_the_rows(
    blobs: FakeBlobs, settings: dict[str, Any], sets: dict[str, int]
) -> None:
    run = json.dumps(settings).replace("/", "")
    measure(blobs, run, **settings)
    rows = [row["set"] for row in read_journal(blobs, run, "samples")]
    assert {name: rows.count(name) for name in rows} == sets


def test_answers_that_cannot_be_compared_have_a_loss(blobs: FakeBlobs) -> None:
    metrics = measure(blobs, "loss", dataset="texts")
    assert metrics.keys() == {
        f"train/{key}{end}" for key in ("loss", "bits_per_byte") for end in ("", "_low", "_high")
    }
    assert 0 < metrics["train/loss_low"] <= metrics["train/loss"] <= metrics["train/loss_high"]


def test_the_loss_weighs_tokens_alike_and_resamples_rows(blobs: FakeBlobs) -> None:
    """The rows have two tokens and nine, the end token included."""
    metrics = measure(blobs, "lengths", dataset="lengths")
    alone = [
        measure(blobs, f"of-{n}", dataset="lengths", splits=[f"only{n}"])[f"only{n}/loss"]
        for n in (1, 8)
    ]
    assert metrics["both/loss"] == pytest.approx((2 * alone[0] + 9 * alone[1]) / 11, rel=1e-6)
    assert 0 <= metrics["both/loss_low"] <= min(alone)
    assert metrics["both/loss_high"] >= max(alone)


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
    settings: dict[str, Any] = {"weights": "run:sums", "dataset": "sums", "splits": ["held"]}
    exact_match = [
        measure(blobs, metric, **settings, evaluation={"metric": metric})["held/exact_match"]
        for metric in ("text", "math")
    ]
    assert exact_match == [0.0, 0.75]
    rows = read_journal(blobs, "math", "samples")
    assert [(row["text"], row["exact"], row["f1"], row["parsed"]) for row in rows] == [
        ("=4", True, 1.0, True)
    ] * 3 + [("=4", False, 0.0, True)]


@pytest.mark.parametrize(
    ("metric", "why"),
    [("json", "'no json' is not a JSON object"), ("math", "'no json' has no number or formula")],
)
def test_unparsable_reference_answers_are_errors_at_once(
    blobs: FakeBlobs, metric: str, why: str
) -> None:
    evaluation = EvalConfig(metric=metric)  # type: ignore[arg-type]
    recipe = Evaluate(weights="run:trained", dataset="texts", evaluation=evaluation)
    with pytest.raises(DataError, match=f"texts:train:0: evaluation.metric={metric}: {why}"):
        list(preview(recipe.workflow(), Kitchen(FakeTraining(blobs), DATA, None, blobs).ports()))
    with pytest.raises(DataError, match=f"texts:train:0: evaluation.metric={metric}: {why}"):
        measure(blobs, f"unread-{metric}", dataset="texts", evaluation={"metric": metric})


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
    columns = {"question": "prompt", "answer": "completion"}
    metrics = measure(blobs, "renamed", dataset="columns", reading={"columns": columns})
    assert metrics["test/exact_match"] == 1.0


def test_a_base_model_is_evaluated(blobs: FakeBlobs) -> None:
    assert measure(blobs, "base", weights="tiny")["held/exact_match"] == 0.0


def test_an_unknown_split_is_an_error(blobs: FakeBlobs) -> None:
    with pytest.raises(DataError, match="chats has no split 'hedl'; did you mean 'held'"):
        measure(blobs, "split", splits=("hedl",))


def test_a_missed_quality_target_is_final(
    blobs: FakeBlobs,
) -> None:
    missed = {"splits": ("hard",), "evaluation": {"at_least": 0.5}}
    with pytest.raises(QualityError, match="exact match on hard is 0"):
        measure(blobs, "missed", **missed)

    class NoSampler(FakeTraining):
        """A client that must not be asked for a sampler."""

        def sampler(self, weights: Any) -> Any:
            raise AssertionError("a sampler was opened")

    with pytest.raises(QualityError):
        measure(blobs, "missed", NoSampler(blobs), **missed)
    with pytest.raises(AssertionError, match="a sampler was opened"):
        measure(blobs, "fresh", NoSampler(blobs))


SAMPLED: dict[str, Any] = {
    "dataset": "many",
    "splits": ("held",),
    "evaluation": {"metric": "text", "max_tokens": 3},
    "answering": {"temperature": 12, "tries": 4, "pass_at": (1, 2, 4)},
}


def sampled_texts(blobs: FakeBlobs, name: str, **settings: Any) -> list[str]:
    measure(blobs, name, **{**SAMPLED, **settings})
    return [row["text"] for row in read_journal(blobs, name, "samples") if row["set"] == "held"]


def test_scores_are_means_over_tries_with_pass_at_k(blobs: FakeBlobs) -> None:
    metrics = measure(blobs, "sampled", **SAMPLED)
    rows = read_journal(blobs, "sampled", "samples")
    assert [(row["row"], row["try"]) for row in rows] == [
        (n, t) for n in range(40) for t in range(4)
    ]
    right = [sum(row["exact"] for row in rows if row["row"] == n) for n in range(40)]
    assert 0 < sum(right) < 160
    assert (
        metrics["held/exact_match"] == metrics["held/pass_at_1"] == pytest.approx(sum(right) / 160)
    )
    assert metrics["held/pass_at_4"] == pytest.approx(sum(count > 0 for count in right) / 40)
    assert metrics["held/pass_at_1"] < metrics["held/pass_at_2"] < metrics["held/pass_at_4"]
    assert (
        metrics["held/pass_at_2_low"] < metrics["held/pass_at_2"] < metrics["held/pass_at_2_high"]
    )
    [shown] = [
        table
        for table in read_journal(blobs, "sampled", "tables")
        if table["title"].startswith("Evaluation, ")
    ]
    assert [row[2] for row in shown["rows"]] == [
        "exact match",
        "field F1",
        "pass@1",
        "pass@2",
        "pass@4",
        "truncated",
    ]


def test_samples_do_not_depend_on_other_sets(blobs: FakeBlobs) -> None:
    first = sampled_texts(blobs, "one")
    assert len(set(first)) > 1
    assert (
        first == sampled_texts(blobs, "same") == sampled_texts(blobs, "with the other", splits=None)
    )
    assert first != sampled_texts(blobs, "another", seed=1)


def test_chosen_rows_do_not_depend_on_the_seed(blobs: FakeBlobs) -> None:
    chosen = []
    for seed in (0, 1, 2):
        measure(blobs, f"seed-{seed}", **{**SAMPLED, "rows": 5, "seed": seed})
        rows = read_journal(blobs, f"seed-{seed}", "samples")
        chosen.append([row["where"] for row in rows if row["try"] == 0])
    assert chosen[0] == chosen[1] == chosen[2]
    assert len(chosen[0]) == 5


def test_a_single_answer_may_be_sampled(blobs: FakeBlobs) -> None:
    assert len(set(sampled_texts(blobs, "warm", answering={"temperature": 12}))) > 1
    assert len(set(sampled_texts(blobs, "greedy", answering={}))) == 1


@pytest.mark.parametrize(
    ("answering", "why"),
    [
        ({"tries": 4}, "tries=4 at temperature=0"),
        ({"tries": 4, "temperature": 1, "pass_at": (1, 8)}, "pass_at=8 must be from 1 to tries=4"),
        ({"pass_at": (0,)}, "pass_at=0 must be from 1 to tries=1"),
    ],
)
def test_tries_without_effect_are_refused(answering: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Evaluate(answering=answering)


def test_tries_are_refused_where_the_loss_is_measured(blobs: FakeBlobs) -> None:
    with pytest.raises(
        ConfigError, match="train is evaluated by its loss, for which no answers are sampled"
    ):
        measure(blobs, "not sampled", dataset="texts", answering={"temperature": 1, "tries": 2})
