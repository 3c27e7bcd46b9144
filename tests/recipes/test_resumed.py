"""Each recipe is stopped in each of its stages, so in each of its phases, and gone on with, on the fake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kitchen.test_resume import Fuse, Killed
from tests.soak.victims import RECIPES, Dish, KilledWriting, outcome

LOCAL = ("rlhf", "rlhf_short", "distillation_instruction")  # a bigram reads one token: a prompt says nothing to it
pytestmark = pytest.mark.usefixtures("letters")


@pytest.mark.parametrize("recipe", [
    pytest.param(name, marks=[] if name in ("rl", "rlhf_answer") else pytest.mark.slow)
    for name in RECIPES if name not in LOCAL])
def test_stopped_in_the_middle_of_each_stage_it_comes_to_the_same(recipe: str, tmp_path: Path) -> None:
    dish, fuse = Dish(tmp_path, recipe, "fake", ahead=1), Fuse()
    dish.cook(fuse, KilledWriting(str(tmp_path / "whole")))
    wanted = outcome(tmp_path / "whole")
    for stage in dict.fromkeys(fuse.stages):
        calls = [number for number, title in enumerate(fuse.stages, 1) if title == stage]
        root = tmp_path / stage
        with pytest.raises(Killed):
            dish.cook(Fuse(calls[len(calls) // 2]), KilledWriting(str(root)))
        dish.cook(Fuse(), KilledWriting(str(root)))
        assert outcome(root) == wanted, f"stopped after {stage}"
