"""Rewards of answers, and questions whose reward may hang."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import threading
from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.ports.environments import StepResult
from stages.rl.rollouts import Rollout, RolloutConfig, RolloutRunner
from stages.tasks.rewards import (
    REWARDS,
    Question,
    exact_reward,
    field_f1_reward,
    grade_answers,
    math_reward,
    ungradable,
)
from stages.tasks.subprocesses import WorkerPool
from stages.tasks.tasks import CheckPrompts, DropBadTasks, LoadTasks, TaskBatches, Tasks

SUMS = FakeDatasets(
    {
        "sums": {
            "train": [{"prompt": "2 + 3 =", "completion": "5"}],
            "held_out": [{"prompt": "2 + 2 =", "completion": "Two and two.\n#### 4"}],
        }
    }
)


def test_field_f1_and_exact_rewards() -> None:
    assert field_f1_reward('{"a": 1}', '{"a": 1, "b": 2}') == StepResult(2 / 3)
    assert field_f1_reward("no", '{"a": 1}') == StepResult(0.0, parsed=False)
    assert (exact_reward(" 5\n", "5"), exact_reward("5.", "5")) == (
        StepResult(1.0),
        StepResult(0.0),
    )


@pytest.mark.parametrize(
    ("answer", "right", "worth", "parsed"),
    [
        ("5", "5", 1.0, True),
        ("The answer is 5.", "5", 1.0, True),
        ("6", "5", 0.0, True),
        ("five", "5", 0.0, False),
        ("", "5", 0.0, False),
        ("1,000", "1000", 1.0, True),
        ("0.5", "1/2", 1.0, True),
        ("-3", "-3", 1.0, True),
        ("$\\frac{1}{2}$", "\\frac12", 1.0, True),
        ("\\boxed{1 + x^2}", "x^2 + 1", 1.0, True),
        ("$(3, 4)$", "(3, 4)", 1.0, True),
        ("7 + 8", "15", 1.0, True),
        ("so it is $5", "It costs $5", 1.0, True),
        ("He has 3 * 4 = <<3*4=12>>12.\n#### 12", "So 2 * 6 = 12.\n#### 12", 1.0, True),
        ("#### 12 and then 13\n#### 13", "12", 0.0, True),
        ("12 ####", "12", 0.0, False),
    ],
)
def test_math_reward_and_parsed(answer: str, right: str, worth: float, parsed: bool) -> None:
    assert math_reward(answer, right) == StepResult(worth, parsed=parsed)


def test_rewards_are_found_by_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'field_f1'"):
        LoadTasks("sums", reward="field_f2")
    for reward in ("exact", "math"):
        tasks = LoadTasks("sums", reward=reward).run(SUMS)[0]
        [task] = tasks.train
        assert isinstance(task, Question)
        assert (task.answer, task.tag, task.workers is None) == ("5", "sums", reward != "math")
        assert task.reward is REWARDS[reward]


def test_default_reward_depends_on_the_references() -> None:
    rows = [{"prompt": "?", "completion": '{"a": 1}'}]
    objects = FakeDatasets({"objects": {"train": rows, "held": rows}})
    sum_, object_ = (
        LoadTasks(name).run(store)[0].train[0]
        for name, store in (("sums", SUMS), ("objects", objects))
    )
    assert isinstance(sum_, Question)
    assert isinstance(object_, Question)
    assert (sum_.reward, object_.reward) == (exact_reward, field_f1_reward)


@pytest.mark.parametrize(
    ("reward", "words"),
    [("field_f1", "'5' is not a JSON object"), ("math", "'a pinch' has no number or formula")],
)
def test_ungradable_reference_is_found_at_load(reward: str, words: str) -> None:
    rows = [{"prompt": "2 + 3 =", "completion": "5"}, {"prompt": "salt?", "completion": "a pinch"}]
    store = FakeDatasets({"mixed": {"train": rows, "held": rows[:1]}})
    row = {"field_f1": 0, "math": 1}[reward]
    with pytest.raises(DataError, match=f"mixed:train:{row}: reward={reward}: {words}"):
        LoadTasks("mixed", reward=reward).run(store)


def test_missing_extra_is_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(
        ConfigError, match=r"reward=math needs math-verify.*: pip install 'crucible-kitchen\[rl\]'"
    ):
        LoadTasks("sums", reward="math").verify(SUMS)
    LoadTasks("sums", reward="exact").verify(SUMS)


@pytest.mark.parametrize("reward", ["exact", "math"])
def test_many_answers_are_graded_at_once(reward: str) -> None:
    pairs = [("5", "5"), ("it is 5", "5"), ("6", "5"), ("five", "5"), ("#### 7", "7"), ("", "7")]
    graded = asyncio.run(grade_answers(reward, [(answer, (right,)) for answer, right in pairs]))
    assert graded == [REWARDS[reward](*pair) for pair in pairs]


def test_grading_that_times_out_returns_the_reason() -> None:
    results = asyncio.run(grade_answers("math", [("$x = 9^{9^9}$", ("5",))], timeout=2.0))
    assert results == ["grading took more than 2 s"]


def test_references_that_cannot_be_computed_are_named() -> None:
    endless = [r"\binom{10^9}{500000000}", r"\binom{10^9}{500000001}"]
    references = [["5"], [endless[0]], ["x^2"], ["7", endless[1]], ["9"]]
    problems = ungradable("math", references, timeout=2.0)
    assert list(problems) == [1, 3]
    assert all("with itself takes more than 2 s" in reason for reason in problems.values())
    assert ungradable("math", references, count=1, timeout=2.0) == {1: problems[1]}


def says_nine(answer: str, right: str) -> StepResult:
    """Compare the reference with a number that takes forever to compute."""
    return math_reward("$x = 9^{9^9}$", right)


@pytest.mark.slow
def test_hanging_grader_fails_the_rollout() -> None:
    processes, client = WorkerPool(), FakeTraining()
    good, bad = (
        Question(({"role": "user", "content": "?"},), "5", reward, "t", processes)
        for reward in (math_reward, says_nine)
    )
    player = RolloutRunner(
        client.sampler("fake"),
        client.tokenizer("fake"),
        RolloutConfig(4, max_seconds=10.0, max_failed=0.5),
    )
    [[played], [hung]] = asyncio.run(player.run([good, bad], 1, [0])).groups
    processes.close()
    assert (played.error, hung.error) == (
        "",
        "the environment took more than 10 s (playing.max_seconds)",
    )


class GivesUp(BaseException):
    """Like SystemExit, not an Exception."""


def play_question(reward: Any, count: int, **settings: Any) -> list[Rollout]:
    """Return one rollout of each of `count` equal questions."""
    client = FakeTraining()
    config = RolloutConfig(4, **{"max_failed": 1.0, **settings})
    player = RolloutRunner(client.sampler("fake"), client.tokenizer("fake"), config)
    question = Question(({"role": "user", "content": "?"},), "5", reward, "t")
    return list(asyncio.run(player.run([question] * count, 1, [0])).all())


def test_functions_that_wait_are_called_side_by_side() -> None:
    all_four = threading.Barrier(4)

    def wait_for_the_others(answer: str, right: str) -> StepResult:
        all_four.wait(timeout=60)
        return StepResult(float(right))

    rollouts = play_question(wait_for_the_others, 8, max_acting=4)
    assert [(rollout.reward, rollout.error) for rollout in rollouts] == [(5.0, "")] * 8


def test_function_that_hangs_fails_its_rollout_alone() -> None:
    calls, stop = itertools.count(), threading.Event()

    def hang_first(answer: str, right: str) -> StepResult:
        if next(calls) == 0:
            stop.wait()
        return StepResult(1.0)

    errors = [rollout.error for rollout in play_question(hang_first, 3, max_seconds=0.5)]
    stop.set()
    assert errors == ["the environment took more than 0.5 s (playing.max_seconds)", "", ""]


async def rate_later(answer: str, right: str) -> StepResult:
    await asyncio.sleep(0)
    return StepResult(2.0)


def bare(answer: str, right: str) -> Any:
    return 0.5


def nothing(answer: str, right: str) -> Any:
    """Return nothing."""


@pytest.mark.parametrize(
    "reward, error",
    [
        (rate_later, ""),
        (bare, f"{__name__}.bare returned 0.5, and must return a StepResult"),
        (nothing, f"{__name__}.nothing returned None, and must return a StepResult"),
        (lambda *_: {"reward": 1}, "returned {'reward': 1}, and must return a StepResult"),
        (lambda *_: StepResult("0.5"), "returned the reward '0.5', not a finite number"),
        (lambda *_: StepResult([1.0]), "returned the reward [1.0], not a finite number"),
        (lambda *_: StepResult(-math.inf), "returned the reward -inf, not a finite number"),
        (lambda *_: StepResult(1e308), "returned the reward 1e+308, which is too large"),
        (
            lambda *_: StepResult(np.float64(-1e39)),
            "returned the reward -1e+39, which is too large",
        ),
        (lambda *_: StepResult(10**31), "returned the reward 1e+31, which is too large"),
        (lambda *_: StepResult(1.0, "again"), "returned 'again' as its messages"),
        (lambda *_: StepResult(1.0, ("again",)), "returned ('again',) as its messages"),
    ],
)
def test_result_of_a_function_is_checked(reward: Any, error: str) -> None:
    [rollout] = play_question(reward, 1)
    assert error in rollout.error
    assert bool(rollout.error) == bool(error)


@pytest.mark.parametrize("reward", [True, np.float32(0.25), np.array(0.5), 3])
def test_every_number_is_a_reward(reward: Any) -> None:
    [rollout] = play_question(lambda *_: StepResult(reward), 1)
    assert (rollout.reward, type(rollout.reward)) == (float(reward), float)


@pytest.mark.parametrize("error", [SystemExit(3), GivesUp("no power")])
def test_exit_of_a_function_ends_the_run(error: BaseException) -> None:
    def leave(answer: str, right: str) -> StepResult:
        raise error

    with pytest.raises(RunFailed, match=rf"{type(error).__name__}: .*test_rewards.py:\d+ in leave"):
        play_question(leave, 2)


@pytest.mark.parametrize(
    "train, held_out, text",
    [
        ((), {"held_out": ("q",)}, "no problems to train on"),
        (("q",), {"test": ("q",), "easy": ()}, "the held-out set 'easy' has no problems"),
        ((), {}, "no problems to train on"),
    ],
)
def test_empty_sets_are_found_before_any_rollout(
    train: tuple[Any, ...], held_out: dict[str, tuple[Any, ...]], text: str
) -> None:
    tasks = Tasks(train, held_out)
    tokenizer = FakeTraining().tokenizer("fake")
    for check in (
        lambda: CheckPrompts(4).run(tasks, tokenizer),
        lambda: DropBadTasks(4).run(tasks, tokenizer),
        lambda: TaskBatches(1, 1).run(tasks),
        lambda: TaskBatches(1, 1).preview(tasks),
    ):
        with pytest.raises(DataError, match=text):
            check()


@pytest.mark.parametrize("check", [CheckPrompts(4), DropBadTasks(4)])
@pytest.mark.parametrize(
    "tags, clash",
    [
        (("a", "b"), ""),
        (("a", "a_std"), "reward/a_std"),
        (("x_std_std", "y", "x_std"), "reward/x_std_std"),
    ],
)
def test_tags_whose_metrics_clash_are_refused(
    check: CheckPrompts | DropBadTasks, tags: tuple[str, ...], clash: str
) -> None:
    question = ({"role": "user", "content": "Name?"},)
    tasks = Tasks(tuple(Question(question, "", bare, tag) for tag in tags), {})
    tokenizer = FakeTraining().tokenizer("fake")
    if not clash:
        check.run(tasks, tokenizer)
        return
    with pytest.raises(DataError, match=rf"metrics of the same name \({clash}\)"):
        check.run(tasks, tokenizer)
