"""Rows of samples.jsonl that evaluations write: item, scores and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen import Recipe
from kitchen.errors import QualityError
from kitchen.types import Samples
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.sl_basic import SlBasic
from stages.evaluate.before_after import CompareEvaluations, QualityGate
from stages.evaluate.checkpoint_eval import evaluation_report
from stages.evaluate.evaluation import Evaluation, EvaluationAfter, EvaluationBefore
from stages.evaluate.graded_answers import GradedAnswer
from stages.rl.rollout_eval import CompareRewards, PolicyAfter, PolicyBefore
from tests.support.recording import observed_run

TEXTS = [{"prompt": f"{n}?", "completion": "yes " * (n + 1), "doc": f"d{n % 2}"} for n in range(6)]
PAIRS = [{"prompt": f"{n}?", "chosen": "{}", "rejected": text} for n, text in enumerate("[(x{")]
DATA = FakeDatasets(
    {
        "texts": {"train": TEXTS, "held": TEXTS[:4]},
        "pairs": {"train": PAIRS, "held": PAIRS[:3]},
    }
)
QUICK: dict[str, Any] = {"batch_size": 2, "learning_rate": 0.1}


def recorded(recipe: Recipe) -> list[Mapping[str, Any]]:
    """Return the rows of evaluations that a run records."""
    published = observed_run(recipe, DATA).published
    samples = [value for value in published if isinstance(value, Samples)]
    return [row for value in samples for row in value.rows if "item" in row]


def test_losses_are_recorded_as_nats_and_tokens() -> None:
    rows = recorded(SlBasic(dataset="texts", max_steps=2, **QUICK))
    assert [(row["when"], row["row"]) for row in rows] == [
        (when, at) for when in ("before", "after") for at in range(4)
    ]
    assert rows[0]["scores"].keys() == {"nats", "tokens", "bytes"}
    assert [row["scores"]["bytes"] for row in rows[:4]] == [4.0, 8.0, 12.0, 16.0]
    assert rows[0]["scores"]["nats"] > rows[4]["scores"]["nats"] > 0
    assert [row["item"] for row in rows[:4]] == [row["item"] for row in rows[4:]]
    assert [row["columns"]["doc"] for row in rows[:4]] == ["d0", "d1", "d0", "d1"]


def test_teacher_has_the_items_of_the_student() -> None:
    settings = {"dataset": "texts", "instruction": "Say yes.", "max_steps": 2, **QUICK}
    rows = recorded(DistillationOffPolicy(**settings, evaluation={"metric": "text"}, model="chat"))
    items = {when: [row["item"] for row in rows if row["when"] == when] for when in WHEN}
    assert items["teacher"] == items["before"] == items["after"] != []


WHEN = ("teacher", "before", "after")


@pytest.mark.parametrize(
    ("recipe", "measure", "count"), [(Dpo, "pair_accuracy", 3), (Kto, "answer_accuracy", 6)]
)
def test_pair_accuracies_are_recorded(recipe: type[Recipe], measure: str, count: int) -> None:
    rows = recorded(recipe(dataset="pairs", epochs=2, **QUICK))
    ranked = [row for row in rows if measure in row["scores"]]
    assert len(ranked) == len({row["item"] for row in ranked}) == count
    for row in ranked:
        assert row["scores"][measure] == (row["scores"]["margin"] > 0)


def test_final_rewards_are_recorded() -> None:
    settings: dict[str, Any] = {"dataset": "texts", "reward": "exact", "steps": 1, "group": 2}
    rows = recorded(Rl(**settings, **QUICK))
    assert [(row["when"], row["set"]) for row in rows] == [
        *[("before", "held")] * 4,
        *[("after", "held")] * 4,
    ]
    assert all(row["scores"] == {"reward": row["reward"]} for row in rows)
    assert [row["item"] for row in rows[:4]] == [row["item"] for row in rows[4:]]
    assert [row["columns"]["doc"] for row in rows[:4]] == ["d0", "d1", "d0", "d1"]
    graded = recorded(
        Evaluate(weights="fake", dataset="texts", splits=("held",), evaluation={"metric": "text"})
    )
    assert [row["item"] for row in graded] == [row["item"] for row in rows[:4]]


def test_several_tries_are_rows_of_one_item() -> None:
    rows = recorded(
        Evaluate(
            weights="fake",
            dataset="texts",
            splits=("held",),
            evaluation={"metric": "text"},
            answering={"temperature": 1.0, "tries": 3},
        )
    )
    assert [row["try"] for row in rows] == [0, 1, 2] * 4
    assert len({row["item"] for row in rows}) == 4


def answer(right: bool, row: int, failed: str = "") -> GradedAnswer:
    score = float(right)
    return GradedAnswer("?", "!", "!", right, score, True, False, row=row, failed=failed)


def test_failed_answers_have_no_score_but_are_counted() -> None:
    old = tuple(answer(at == 0, at) for at in range(4))
    new = (answer(True, 0), answer(True, 1), answer(False, 2, "grading took too long"), old[3])
    assert new[2].scores == {}
    metrics, table, _ = CompareEvaluations().run(
        EvaluationBefore({"held": old}, {}), EvaluationAfter({"held": new}, {})
    )
    assert [row[1:3] for row in table.rows[:2]] == [
        ("4, 1 failed", "exact match"),
        ("4, 1 failed", "field F1"),
    ]
    assert (metrics["held/exact_match_before"], metrics["held/exact_match_after"]) == (1 / 3, 2 / 3)
    metrics, table = evaluation_report("Evaluation", Evaluation({"held": new}, {}))
    assert table.rows[0][:3] == ("held", "4, 1 failed", "exact match")
    assert metrics["held/exact_match"] == 2 / 3
    QualityGate(0.6).run(EvaluationAfter({"held": new}, {}))


def test_set_whose_answers_all_failed_has_no_score() -> None:
    failed = (answer(False, 0, "took too long"), answer(False, 1, "took too long"))
    after = EvaluationAfter({"held": failed}, {})
    metrics, table, _ = CompareEvaluations().run(EvaluationBefore({"held": failed}, {}), after)
    assert table.rows[0] == ("held", "2, 2 failed", "exact match", "no score", "no score", "")
    assert "held/exact_match_after" not in metrics
    metrics, table = evaluation_report("Evaluation", after)
    assert table.rows[0] == ("held", "2, 2 failed", "exact match", "no score")
    with pytest.raises(QualityError, match="no answer of held could be compared"):
        QualityGate(0.5).run(after)


def test_tries_that_failed_do_not_count_towards_pass_at_k() -> None:
    tries = (answer(True, 0), answer(False, 0, "too long"), answer(False, 1), answer(True, 1))
    metrics, table = evaluation_report("Evaluation", Evaluation({"held": tries}, {}), (1, 2))
    assert (metrics["held/exact_match"], metrics["held/pass_at_1"]) == (0.75, 0.75)
    assert metrics["held/pass_at_2"] == 1.0
    assert [row[1] for row in table.rows[2:4]] == ["2", "2, 1 failed"]


def test_failed_rollouts_have_no_reward_but_are_counted() -> None:
    errors = {"held": ("", "", "broken", "")}
    before = PolicyBefore({"held": (0.0, 0.0, 0.0, None)}, {"held": ("",) * 4}, {"held": ("",) * 4})
    after = PolicyAfter({"held": (1.0, 0.0, None, 1.0)}, errors, {"held": ("", "", None, "")})
    metrics, table = CompareRewards().run(before, after)
    assert table.rows[0][:2] == ("held", "3, 1 failed")
    assert (metrics["held/reward_before"], metrics["held/reward_after"]) == (0.0, 0.5)
    assert (metrics["held/failed_before"], metrics["held/failed_after"]) == (0.0, 1.0)
