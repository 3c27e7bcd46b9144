"""Each recipe is stopped in each of its stages, so in each of its phases, and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.victims import MODELS, RECIPES, Dish, KilledWriting, outcome
from tests.support.killing import KillAt, Killed

# a bigram reads one token: a prompt says nothing to it
LOCAL = ("rlhf", "rlhf_short", "distillation_instruction")
pytestmark = pytest.mark.usefixtures("letters")


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=[] if name in ("rl", "rlhf_answer") else pytest.mark.slow)
        for name in RECIPES
        if name not in LOCAL
    ],
)
def test_a_run_killed_in_any_stage_resumes_to_the_same(recipe: str, tmp_path: Path) -> None:
    stopped_everywhere(Dish(tmp_path, recipe, "fake", ahead=1))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LOCAL)
def test_so_it_does_on_a_tiny_local_model(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from tests.support.tiny_model import tiny_model

    for seed, name in enumerate(MODELS):
        tiny_model(tmp_path / name, seed=seed)
    stopped_everywhere(Dish(tmp_path, recipe, "peft", ahead=1))


def stopped_everywhere(dish: Dish) -> None:
    fuse = KillAt()
    dish.cook(fuse, KilledWriting(str(dish.folder / "whole")))
    wanted = outcome(dish.folder / "whole")
    for stage in dict.fromkeys(fuse.stages):
        calls = [number for number, title in enumerate(fuse.stages, 1) if title == stage]
        root = dish.folder / stage
        with pytest.raises(Killed):
            dish.cook(KillAt(calls[len(calls) // 2]), KilledWriting(str(root)))
        dish.cook(KillAt(), KilledWriting(str(root)))
        assert outcome(root) == wanted, f"stopped after {stage}"
