"""Token counts of a preview equal those of the run."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen, Recipe
from kitchen.engine.preview import preview
from kitchen.errors import ConfigError, DataError
from kitchen.types import Price
from recipes.distillation import Distillation
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from stages.chat.token_cost import AT_MOST, token_cost_rows
from tests.support.recording import observed_run

ROWS = [{"prompt": "?" * (n % 5 + 1), "completion": "{}" * (n % 3 + 1)} for n in range(22)]
PAIRS = [{"prompt": "?", "chosen": "yes" * (n % 3 + 1), "rejected": "no"} for n in range(10)]
DATA = FakeDatasets(
    {
        "rows": {"train": ROWS, "held": ROWS[:2]},
        "pairs": {"train": PAIRS, "held": PAIRS[:2]},
        "asked": {"test": ROWS[:5]},
        "more": {"train": ROWS[:4], "held": ROWS[:1]},
    }
)
QUICK: dict[str, Any] = {"batch_size": 4, "save_every": 0, "model": "tiny"}


def previewed(recipe: Recipe, price: Price | None = None, title: str = "") -> dict[str, str]:
    """Return the rows of all preview tables, or of those with a title."""
    ports = Kitchen(FakeTraining(), DATA, None, FakeBlobs()).ports()
    tables = preview(recipe.workflow(), ports if price is None else {**ports, Price: price})
    return {row[0]: row[-1] for table in tables for row in table.rows if title in table.title}


def number(text: str) -> float:
    return float(text.removeprefix(AT_MOST).removeprefix("about ").replace(",", ""))


@pytest.mark.parametrize(
    "recipe",
    [
        SlBasic(dataset="rows", **QUICK),
        SlBasic(dataset="rows", epochs=3, **QUICK),
        SlBasic(dataset="rows", max_steps=3, **QUICK),
        Dpo(dataset="pairs", epochs=2, **QUICK),
        Kto(dataset="pairs", epochs=2, **QUICK),
    ],
)
def test_tokens_and_steps_are_those_of_the_run(recipe: Recipe) -> None:
    shown, seen = previewed(recipe), observed_run(recipe, DATA)
    assert number(shown["tokens read in all"]) == sum(seen.series("tokens"))
    assert number(shown["optimiser steps in all"]) == len(seen.series("grad_norm"))
    assert not any(text.startswith(AT_MOST) for text in shown.values())


def test_tokens_of_a_partial_epoch_are_its_share() -> None:
    recipe = SlBasic(dataset="rows", max_steps=9, epochs=2, rendering={"overlong": "drop"}, **QUICK)
    shown, seen = previewed(recipe)["tokens read in all"], observed_run(recipe, DATA)
    assert shown.startswith("about ")
    assert number(shown) == pytest.approx(sum(seen.series("tokens")), rel=0.1)


@pytest.mark.parametrize(("kind", "what", "count"), [(Dpo, "pairs", 22), (Kto, "answers", 44)])
def test_unwritten_mistakes_count_at_maximum_length(kind: Any, what: str, count: int) -> None:
    recipe = kind(dataset="rows", mistakes={"max_tokens": 400}, **QUICK)
    shown, seen = previewed(recipe), observed_run(recipe, DATA)
    assert shown["tokens read in all"].startswith(AT_MOST)
    assert shown[f"{what} in an epoch"] == f"at most {count}"
    assert 0 < sum(seen.series("tokens")) <= number(shown["tokens read in all"])


def test_rollout_tokens_stay_within_the_bound() -> None:
    recipe = Rl(
        dataset="rows", steps=3, group=5, reward="exact", playing={"max_tokens": 7}, **QUICK
    )
    shown, seen = previewed(recipe), observed_run(recipe, DATA)
    assert shown["rollouts in all"] == "60"
    assert shown["tokens of answers"] == "at most 420"
    assert 0 < sum(seen.series("sampled_tokens")) <= 420
    assert number(shown["tokens that training reads"]) == number(shown["tokens of questions"]) + 420


def test_game_prompts_come_on_top() -> None:
    shown = previewed(
        Rl(dataset="game:guess", steps=3, group=5, playing={"max_tokens": 7}, **QUICK)
    )
    assert shown["tokens of answers, in a turn"] == "at most 420"
    assert shown["tokens of the prompts"] == "not known before the games are played"


def test_tokens_read_by_a_judge_are_counted() -> None:
    recipe = Rlhf(
        preferences="pairs", judge={"batch_size": 4, "epochs": 2}, steps=3, group=5, **QUICK
    )
    shown, seen = previewed(recipe), observed_run(recipe, DATA)
    assert number(shown["tokens read in all"]) == sum(seen.series("judge_tokens"))
    assert shown["rollouts in all"] == "60"


def test_compared_answers_are_counted() -> None:
    recipe = Rlhf(
        dataset="rows", reward="exact", ranking={"tries": 3, "problems": 4}, steps=1, **QUICK
    )
    shown = previewed(recipe, title="Answers to be compared")
    assert shown["answers in all"] == f"{(4 + 2) * 3}"
    held, most = (
        sum(len(row["prompt"]) for row in ROWS[:2]),
        max(len(row["prompt"]) for row in ROWS),
    )
    assert (
        3 * (4 + held + 6 * 3)
        < number(shown["tokens of questions"])
        <= 3 * (4 * most + held + 6 * 3)
    )
    assert "tokens that training reads" not in shown


@pytest.mark.parametrize(
    "more", [{"dataset": "rows", "teacher": "tiny"}, {"teachers": {"rows": "tiny", "more": "tiny"}}]
)
def test_student_answers_are_counted(more: Any) -> None:
    shown = previewed(Distillation(steps=3, group=5, playing={"max_tokens": 7}, **QUICK, **more))
    assert (shown["rollouts in all"], shown["tokens of answers"]) == ("60", "at most 420")


@pytest.mark.parametrize(
    ("metric", "read", "answers"), [("text", 15 + 5 * 3, 20), ("loss", 15 + 5 * 3 + 18 + 5, 0)]
)
def test_evaluation_questions_are_counted(metric: str, read: int, answers: int) -> None:
    """Five questions of 1 to 5 bytes, three tokens around each, and 18 bytes of answers, each with
    its end.
    """
    recipe = Evaluate(
        weights="tiny",
        dataset="asked",
        evaluation={"metric": metric, "max_tokens": 9},
        answering={"tries": 4, "temperature": 1.0} if answers else {},
    )
    shown = previewed(recipe)
    assert (number(shown["tokens read"]), shown["answers in all"]) == (read, f"{answers}")
    assert shown["tokens of answers"] == f"at most {answers * 9}"


def test_price_gives_the_cost() -> None:
    recipe = SlBasic(dataset="rows", **QUICK)
    shown = previewed(recipe, Price(2.5))
    tokens = number(shown["tokens read in all"])
    assert number(shown["cost of these, at 2.5 per million"]) == pytest.approx(
        tokens * 2.5e-6, rel=0.05
    )
    assert not any("cost" in what for what in previewed(recipe))
    playing = Rl(
        dataset="rows", steps=3, group=5, reward="exact", playing={"max_tokens": 7}, **QUICK
    )
    shown = previewed(playing, Price(1e6))  # a unit each
    assert number(shown["cost of these, at 1e+06 per million"]) == number(
        shown["tokens that training reads"]
    )


@pytest.mark.parametrize(
    ("price", "cost"), [(0.0, "0"), (0.4, "0.00049"), (1_000.0, "1.23"), (2e6, "2,468.00")]
)
def test_costs_small_and_large(price: float, cost: str) -> None:
    assert token_cost_rows("tokens", 1_234, AT_MOST, Price(price))[1][1] == f"at most {cost}"


@pytest.mark.parametrize("kind", [SlBasic, Dpo, Kto])
def test_preview_finds_nothing_to_train_on(kind: type[Recipe]) -> None:
    left = "no data is left" if kind is SlBasic else "nothing to train on"
    with pytest.raises(DataError, match=rf"^{left}: .*max_tokens=3"):
        previewed(
            kind(
                dataset="rows" if kind is SlBasic else "pairs",
                rendering={"max_tokens": 3, "overlong": "drop"},
                **QUICK,
            )
        )


def test_preview_finds_top_k_above_the_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"top_k=999 is more than the \d+ tokens"):
        previewed(
            Distillation(dataset="rows", teacher="any", divergence="forward", top_k=999, **QUICK)
        )
