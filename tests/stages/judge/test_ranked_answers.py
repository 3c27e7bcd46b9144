"""Comparisons for a judge: ranked answers of the model, and data sets."""

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
from stages.judge.judge import JudgeConfig
from stages.judge.judge_training import BuildJudgePairs
from stages.judge.ranked_answers import (
    BuildComparisons,
    LoadPreferences,
    RankedAnswers,
    RankedPair,
    RankingConfig,
    comparison_source,
    furthest_pairs,
)
from stages.rl.rollouts import Rollout
from stages.tasks.rewards import Question, exact_reward
from stages.tasks.sources import ProblemSources
from stages.tasks.tasks import Tasks
from tests.support.no_chat_template import PlainTokenizer

TASK = Question(({"role": "user", "content": "2 eggs"},), "{}", exact_reward, "t")
TASKS = Tasks((TASK,), {"held": (TASK,)})


def rollout(text: str, reward: float, *, truncated: bool = False) -> Rollout:
    return Rollout((), reward, "t", text, truncated=truncated)


def test_pairs_with_the_largest_gap_are_compared() -> None:
    group = [
        rollout("a", 0.5),
        rollout("b", 1.0),
        rollout("a", 0.5),
        rollout("c", 0.25),
        rollout("d", 0.5),
        rollout("cut", 2.0, truncated=True),
        Rollout.failure("t", "broken"),
    ]
    assert furthest_pairs(7, group, RankingConfig(pairs=2)) == [
        RankedPair(7, "b", "c"),
        RankedPair(7, "b", "a"),
    ]
    assert len(furthest_pairs(7, group, RankingConfig(pairs=9))) == 5, "all but a and d"
    assert furthest_pairs(7, group, RankingConfig(pairs=9, margin=0.5)) == [RankedPair(7, "b", "c")]
    assert furthest_pairs(7, group[:1], RankingConfig()) == []
    same = [rollout("a", 0.1 + 0.2), rollout("b", 0.3), rollout("c", 0.3)]
    assert furthest_pairs(7, same, RankingConfig(pairs=9)) == [], "they differ by rounding"


def test_ranked_answers_become_comparisons() -> None:
    answers = {"": (RankedPair(0, "{}", "[]"),), "held": (RankedPair(0, "{}", "no"),)}
    found, metrics = asyncio.run(BuildComparisons().run(TASKS, RankedAnswers(answers)))
    [one], [other] = found.train, found.held_out["held"]
    assert (prompt_messages(one.chosen), reference_answer(one.chosen)) == (
        (Message("user", "2 eggs"),),
        "{}",
    )
    assert other.rejected is not None
    assert reference_answer(other.rejected) == "no"
    assert metrics == {"data/comparisons": 1.0, "held/comparisons": 1.0}


def test_ranked_answers_without_a_template_lose_the_separator() -> None:
    ranked = RankedPair(0, " {}", " no").stripped(PlainTokenizer())
    assert ranked == RankedPair(0, "{}", "no")
    assert RankedPair(0, " {}", " no").stripped(ByteTokenizer()).better == " {}", (
        "a template has no separator"
    )
    found, _ = asyncio.run(
        BuildComparisons().run(TASKS, RankedAnswers({"": (ranked,), "held": (ranked,)}))
    )
    pairs, _ = BuildJudgePairs(JudgeConfig().rendering).run(found, PlainTokenizer())
    assert [PlainTokenizer().decode(datum.tokens[1:]) for datum in pairs.data[0]] == [
        "2 eggs {}",
        "2 eggs no",
    ]


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ((RankedPair(0, "{}", "[]"),), r"no comparisons to evaluate the judge on.*ranking\.tries"),
        ((), r"no comparisons to train the judge on.*ranking\.problems"),
    ],
)
def test_equal_rewards_are_an_error(train: tuple[RankedPair, ...], why: str) -> None:
    with pytest.raises(DataError, match=why):
        asyncio.run(BuildComparisons().run(TASKS, RankedAnswers({"": train, "held": ()})))


def test_ranking_needs_two_tries() -> None:
    with pytest.raises(ConfigError, match=r"ranking\.tries=1"):
        RankingConfig(tries=1)


def test_preferences_give_comparisons_and_prompts() -> None:
    pairs = [{"prompt": f"{n} eggs", "chosen": "{}", "rejected": "[]"} for n in range(4)]
    right = [{"prompt": "?", "completion": "{}"}] * 4
    data = FakeDatasets(
        {"pairs": {"train": pairs, "held": pairs[:1]}, "right": {"train": right, "held": right[:1]}}
    )
    found, tasks, _, _ = LoadPreferences("pairs").run(data)
    assert len(found.train) == len(tasks.train) == 4
    assert asyncio.run(first_prompt(tasks)) == [{"role": "user", "content": "0 eggs"}]
    with pytest.raises(DataError, match="'rejected' is missing"):
        LoadPreferences("right").run(data)


def test_a_judge_compares_single_messages() -> None:
    call = {"role": "assistant", "content": "call(2 + 2)"}
    result = {"role": "tool", "content": "4"}
    right, wrong = ({"role": "assistant", "content": text} for text in ("four", "five"))
    single = {"prompt": [*TASK.messages, call, result], "chosen": [right], "rejected": [wrong]}
    longer = {"prompt": "2 eggs", "chosen": [call, result, right], "rejected": [wrong]}
    store = FakeDatasets({"tools": {"train": [single] * 2, "held": [single]}})
    found, *_ = LoadPreferences("tools").run(store)
    assert [m.content for m in prompt_messages(found.train[0].chosen)] == [
        "2 eggs",
        "call(2 + 2)",
        "4",
    ]
    store = FakeDatasets({"tools": {"train": [single, longer], "held": [single]}})
    with pytest.raises(DataError, match="train:1: the answer of 'chosen' has 3 messages"):
        LoadPreferences("tools").run(store)


async def first_prompt(tasks: Tasks) -> Any:
    return list(await tasks.held_out["held"][0].env().reset())


def test_games_cannot_be_judged() -> None:
    sources = ProblemSources("game:guess", DataConfig())
    with pytest.raises(ConfigError, match="game:guess"):
        comparison_source(None, sources, RankingConfig())
