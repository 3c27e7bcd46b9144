"""Built-in games: their turns, rewards and problems."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError, KitchenError
from kitchen.ports.environments import StepResult
from recipes.rl import Rl
from stages.data.splits import DataConfig
from stages.tasks.games import Guess, MakeGames
from stages.tasks.sources import ProblemSources
from tests.support.recording import RecordingObserver


async def played(game: Guess, *answers: str) -> list[StepResult]:
    env = game.env()
    [asked] = await env.reset()
    assert f"from {game.low} to {game.high}" in asked["content"]
    return [await env.step(answer) for answer in answers]


def test_guess_is_answered_by_higher_or_lower() -> None:
    turns = asyncio.run(played(Guess(1, 20, 13), "10", " 15.", "13"))
    assert [turn.messages[0]["content"] for turn in turns[:2]] == ["Higher.", "Lower."]
    assert [turn.reward for turn in turns] == [0.0, 0.0, 0.75]
    assert turns[2].messages == ()


def test_reward_falls_over_eight_guesses() -> None:
    assert asyncio.run(played(Guess(1, 20, 13), "13"))[0].reward == 1.0
    turns = asyncio.run(played(Guess(1, 20, 13), *map(str, range(1, 9))))
    assert [bool(turn.messages) for turn in turns] == [True] * 7 + [False]
    assert sum(turn.reward for turn in turns) == 0.0


@pytest.mark.parametrize("answer", ["", "ten", "10 or 11", "-3", "I guess 10", "1" * 10])
def test_non_number_ends_the_game(answer: str) -> None:
    [turn] = asyncio.run(played(Guess(1, 20, 13), answer))
    assert turn == StepResult(0.0, parsed=False)


def test_problems_are_distinct_and_splits_disjoint() -> None:
    reading = DataConfig(limit=300, held_out_rows=50)
    (one, facts, _), (again, _, _), (other, more, _) = (
        MakeGames("game:guess", reading, seed).run() for seed in (0, 0, 1)
    )
    assert one.train == again.train != other.train
    assert one.held_out == other.held_out
    assert facts["data.held_out.sha256"] == more["data.held_out.sha256"]
    held: Any = one.held_out["held_out"]
    assert (len(set(one.train)), len(set(held))) == (300, 50)
    assert not set(one.train) & set(held)
    assert all(1 <= game.low <= game.number <= game.high <= 100 for game in held)


@pytest.mark.parametrize(
    ("dataset", "reading", "words"),
    [
        ("game:gess", DataConfig(), "did you mean 'guess'"),
        ("game:guess", DataConfig(train="train"), "generates its problems"),
    ],
)
def test_unknown_game_is_refused(dataset: str, reading: DataConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MakeGames(dataset, reading).verify()


@pytest.mark.parametrize(
    ("reading", "mend"),
    [
        (
            DataConfig(limit=200_000, held_out_rows=1),
            r"; take fewer \(reading\.limit\), or hold out fewer",
        ),
        (
            DataConfig(limit=1, held_out_rows=200_000),
            r"; hold out fewer \(reading\.held_out_rows\)",
        ),
    ],
)
def test_too_few_distinct_problems_is_an_error(reading: DataConfig, mend: str) -> None:
    with pytest.raises(
        DataError, match=r"only \d+ of 200000 different problems could be made" + mend
    ):
        MakeGames("game:guess", reading).run()


def test_reward_setting_is_refused_for_games() -> None:
    with pytest.raises(ConfigError, match="leave out reward=exact"):
        ProblemSources("game:guess", DataConfig(), 0, 1, "exact").stage()
    assert isinstance(ProblemSources("game:guess", DataConfig(), 0, 1, None).stage(), MakeGames)


def test_rl_plays_games() -> None:
    seen, blobs = RecordingObserver(), FakeBlobs()
    kitchen.run(
        Rl(
            model="any",
            dataset="game:guess",
            steps=2,
            batch_size=4,
            group=4,
            playing={"max_tokens": 2},
            reading={"held_out_rows": 5},
        ),
        training=FakeTraining(blobs),
        blobs=blobs,
        name="run",
        observers=[seen],
    )
    assert seen.series("rollouts") == [16.0, 16.0]
    assert len(seen.series("held_out/reward_before")) == 1
    assert [0.0 <= reward < 1.0 for reward in seen.series("reward")] == [True, True]
    with pytest.raises(KitchenError, match="did you mean 'guess'"):
        kitchen.run(
            Rl(model="any", dataset="game:ges"),
            training=FakeTraining(blobs),
            blobs=blobs,
            name="none",
        )
