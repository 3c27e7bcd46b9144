"""Own answers compared by what they are worth, and comparisons that are given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import ConfigError, DataError
from stages.chat.conversations import Message
from stages.chat.prompts import prompt_messages, reference_answer
from stages.data.splits import DataConfig
from stages.judge.judge import Judging
from stages.judge.judge_training import PairAnswers
from stages.judge.ranked_answers import (
    CompareAnswers,
    LoadPreferences,
    Ranked,
    RankedAnswers,
    Ranking,
    find_comparisons,
    furthest,
)
from stages.rl.rollouts import Rollout, RolloutConfig
from stages.tasks.rewards import Question, exact_reward
from stages.tasks.tasks import Tasks
from tests.support.untemplated import Plain

TASK = Question(({"role": "user", "content": "2 eggs"},), "{}", exact_reward, "t")
TASKS = Tasks((TASK,), {"held": (TASK,)})


def rollout(text: str, reward: float, *, failed: str = "", truncated: bool = False) -> Rollout:
    return Rollout((), reward, "t", text, truncated=truncated, failed=failed)


def test_the_answers_furthest_apart_are_compared() -> None:
    group = [
        rollout("a", 0.5),
        rollout("b", 1.0),
        rollout("a", 0.5),
        rollout("c", 0.25),
        rollout("d", 0.5),
        rollout("cut", 2.0, truncated=True),
        rollout("", 3.0, failed="broken"),
    ]
    assert furthest(7, group, Ranking(pairs=2)) == [Ranked(7, "b", "c"), Ranked(7, "b", "a")]
    assert len(furthest(7, group, Ranking(pairs=9))) == 5, "all but a and d"
    assert furthest(7, group, Ranking(pairs=9, margin=0.5)) == [Ranked(7, "b", "c")]
    assert furthest(7, group[:1], Ranking()) == []


def test_ranked_answers_are_comparisons_of_what_was_asked() -> None:
    answers = {"": (Ranked(0, "{}", "[]"),), "held": (Ranked(0, "{}", "no"),)}
    found, metrics = asyncio.run(CompareAnswers().run(TASKS, RankedAnswers(answers)))
    [one], [other] = found.train, found.held_out["held"]
    assert (prompt_messages(one.chosen), reference_answer(one.chosen)) == (
        (Message("user", "2 eggs"),),
        "{}",
    )
    assert other.rejected is not None
    assert reference_answer(other.rejected) == "no"
    assert metrics == {"data/comparisons": 1.0, "held/comparisons": 1.0}


def test_a_judge_without_a_template_learns_from_ranked_answers_as_they_were_written() -> None:
    ranked = Ranked(0, " {}", " no").alone(Plain())
    assert ranked == Ranked(0, "{}", "no")
    assert Ranked(0, " {}", " no").alone(ByteTokenizer()).better == " {}", (
        "a template joins nothing"
    )
    found, _ = asyncio.run(
        CompareAnswers().run(TASKS, RankedAnswers({"": (ranked,), "held": (ranked,)}))
    )
    pairs, _ = PairAnswers(Judging().rendering).run(found, Plain())
    assert [Plain().decode(datum.tokens[1:]) for datum in pairs.data[0]] == [
        "2 eggs {}",
        "2 eggs no",
    ]


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ((Ranked(0, "{}", "[]"),), r"nothing to measure the judge on.*ranking\.tries"),
        ((), r"nothing to learn to judge from.*ranking\.problems"),
    ],
)
def test_answers_that_are_all_worth_the_same_teach_no_judge(
    train: tuple[Ranked, ...], why: str
) -> None:
    with pytest.raises(DataError, match=why):
        asyncio.run(CompareAnswers().run(TASKS, RankedAnswers({"": train, "held": ()})))


def test_one_answer_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="tries=1 leaves nothing to compare"):
        Ranking(tries=1)


def test_preferences_give_comparisons_and_what_they_answer() -> None:
    pairs = [{"prompt": f"{n} eggs", "chosen": "{}", "rejected": "[]"} for n in range(4)]
    right = [{"prompt": "?", "completion": "{}"}] * 4
    data = FakeDatasets(
        {"pairs": {"train": pairs, "held": pairs[:1]}, "right": {"train": right, "held": right[:1]}}
    )
    found, tasks, _, _ = LoadPreferences("pairs").run(data)
    assert len(found.train) == len(tasks.train) == 4
    assert asyncio.run(begun(tasks)) == [{"role": "user", "content": "0 eggs"}]
    with pytest.raises(DataError, match="'rejected' is missing"):
        LoadPreferences("right").run(data)


async def begun(tasks: Tasks) -> Any:
    return list(await tasks.held_out["held"][0].env().reset())


def test_a_game_of_several_turns_has_no_answer_to_judge() -> None:
    with pytest.raises(ConfigError, match="game:guess is played in turns"):
        find_comparisons(
            None,
            "game:guess",
            DataConfig(),
            0,
            "any",
            Ranking(),
            RolloutConfig(),
            8,
            None,
            CompareAnswers(),
        )
