"""Several rewards of one answer: their names, weights, sum and parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import from_arguments
from kitchen.errors import ConfigError, DataError
from kitchen.ports.environments import StepResult
from recipes.rl import Rl
from stages.data import DataConfig
from stages.tasks import GradingConfig
from stages.tasks.reward_setting import RewardSetting
from stages.tasks.step_results import WrongResult
from stages.tasks.tasks import LoadTasks, Tasks

HERE = __name__
ROWS = [
    {"prompt": "Name a herb.", "completion": "Thyme", "longest": 5, "weight": 2},
    {"prompt": "Name a fish.", "completion": ["cod", "hake"], "longest": 3, "weight": 1},
]


def short(answer: str, longest: int, weight: float = 1) -> float:
    return -weight * (len(answer) > longest)


async def no_fish(answer: str, weight: float = 1) -> float | None:
    return None if "cod" in answer else 2.0


def chats(answer: str) -> StepResult:
    return StepResult(1.0, ({"role": "user", "content": "And?"},))


def in_parts(answer: str, weight: float = 1) -> StepResult:
    reward = None if answer == "mint" else 1.0
    return StepResult(reward, parts={"length": len(answer), "herb": 1.0})


def huge(answer: str, weight: float) -> float:
    return 1e30


SHORT, NO_FISH, PARTS = f"{HERE}:short", f"{HERE}:no_fish", f"{HERE}:in_parts"


def load(reward: RewardSetting, rows: list[dict[str, Any]] = ROWS, **options: Any) -> Tasks:
    store = FakeDatasets({"dishes": {"train": rows, "test": rows[:1]}})
    return LoadTasks("dishes", reward=reward, **options).run(store)[0]


def score(reward: RewardSetting, answer: str, row: int = 0, **options: Any) -> StepResult:
    return asyncio.run(load(reward, **options).train[row].env().step(answer))


@pytest.mark.parametrize(
    ("reward", "row", "answer", "total", "parts"),
    [
        (("exact", SHORT), 0, "Thyme", 1.0, {"exact": 1.0, SHORT: 0.0}),
        ({"exact": 2, SHORT: 0.5}, 1, "hake", 1.5, {"exact": 1.0, SHORT: -1.0}),
        ({"exact": 0, SHORT: -3}, 0, "Rosemary", 6.0, {"exact": 0.0, SHORT: -2.0}),
        (("exact", NO_FISH), 1, "cod", 1.0, {"exact": 1.0}),
        ((NO_FISH,), 1, "cod", None, {}),
        ({NO_FISH: 2, SHORT: 1}, 0, "mint", 4.0, {NO_FISH: 2.0, SHORT: 0.0}),
        ((PARTS,), 0, "sage", 1.0, {f"{PARTS}/length": 4.0, f"{PARTS}/herb": 1.0, PARTS: 1.0}),
        ((PARTS,), 0, "mint", None, {f"{PARTS}/length": 4.0, f"{PARTS}/herb": 1.0}),
        (PARTS, 0, "sage", 1.0, {"length": 4.0, "herb": 1.0}),
    ],
)
def test_sum_has_weights_and_parts(
    reward: RewardSetting, row: int, answer: str, total: float | None, parts: dict[str, float]
) -> None:
    result = score(reward, answer, row)
    assert (result.reward, result.parts) == (total, parts)


def test_text_options_affect_only_exact() -> None:
    grading = GradingConfig(extract=r"<(.*)>", ignore_case=True)
    result = score({"exact": 1, SHORT: 1}, "<THYME>", grading=grading)
    assert result.parts == {"exact": 1.0, SHORT: 0.0}


def test_functions_alone_need_no_reference_answer() -> None:
    rows = [{key: value for key, value in row.items() if key != "completion"} for row in ROWS]
    assert score((SHORT, NO_FISH), "mint", rows=rows).reward == 2.0
    with pytest.raises(DataError, match="dishes:train:0"):
        load((SHORT, "exact"), rows)


@pytest.mark.parametrize("broken", [{"completion": "{"}, {"longest": None}])
def test_row_that_a_reward_cannot_read_is_bad(broken: dict[str, Any]) -> None:
    row = {"prompt": "?", "completion": '{"a": 1}', "longest": 3, **broken}
    rows = [{**ROWS[0], "completion": "{}"}, {key: row[key] for key in row if row[key] is not None}]
    rewards = ("field_f1", SHORT)
    with pytest.raises(DataError, match="dishes:train:1"):
        load(rewards, rows)
    tasks = load(rewards, rows, reading=DataConfig(bad_rows="drop"))
    assert (len(tasks.train), len(tasks.bad_rows)) == (1, 1)


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        ((SHORT, f"{HERE}:chats"), ":chats, one of several rewards, returned messages"),
        ({f"{HERE}:huge": 2}, "weighted sum of rewards.*too large"),
    ],
)
def test_results_that_cannot_be_added_are_refused(reward: RewardSetting, text: str) -> None:
    with pytest.raises(WrongResult, match=text):
        score(reward, "mint")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["reward=exact"], "exact"),
        (["reward=null"], None),
        ([f"reward=[exact, {SHORT}]"], ("exact", SHORT)),
        ([f"reward={{exact: 1, {SHORT}: 0.5}}"], {"exact": 1.0, SHORT: 0.5}),
        (["reward.exact=1", f"reward.{SHORT}=-0.5"], {"exact": 1.0, SHORT: -0.5}),
    ],
)
def test_settings_name_one_reward_or_several(arguments: list[str], expected: RewardSetting) -> None:
    resolved = resolve_settings(Rl, from_arguments(arguments))
    assert isinstance(resolved.recipe, Rl), resolved.problems
    assert resolved.recipe.reward == expected
    resolved.recipe.workflow()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["reward=5"], "command line: reward: 5 names no reward"),
        (["reward=[]"], "names no reward"),
        (["reward=[exact, 3]"], "3 names no reward"),
        (["reward=[exact, exact]"], "'exact' is in the list twice"),
        (["reward.exact=much"], "the weight of 'exact' is 'much'"),
        (["reward.exact=true"], "the weight of 'exact' is True"),
        (["reward.exact=.inf"], "should be a finite number"),
        (["reward.exact=0"], "all weights are 0"),
        (["reward=exact", "reward.math=1"], "reward.math would replace reward=exact"),
    ],
)
def test_other_settings_are_refused(arguments: list[str], text: str) -> None:
    [problem] = resolve_settings(Rl, from_arguments(arguments)).problems
    assert text in str(problem)


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (("exact", "mth"), "reward='mth' is unknown; did you mean 'math'"),
        ({f"{HERE}:shrt": 1}, "has no function 'shrt'; did you mean 'short'"),
    ],
)
def test_unknown_names_are_refused(reward: RewardSetting, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LoadTasks("dishes", reward=reward)
