"""Each recipe is killed in each of its stages, and so in each of its phases, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed_runs import MODELS, RECIPES, KillDuringWrite, RunToKill, outcome
from tests.support.killing import KillAt, Killed

# for these the prompt matters, and the fake's bigram model reads only the last token
LOCAL_ONLY = ("rlhf", "rlhf_short", "distillation_instruction")
QUICK = ("rl", "sl_basic_stopped")
pytestmark = pytest.mark.usefixtures("letters")


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in RECIPES
        if name not in LOCAL_ONLY
    ],
)
def test_a_run_killed_in_any_stage_resumes_to_the_same(recipe: str, tmp_path: Path) -> None:
    killed_in_every_stage(RunToKill(tmp_path, recipe, "fake", ahead=1))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["rlhf", "distillation_instruction"])  # soak has the others
def test_a_killed_run_of_a_tiny_local_model_resumes(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from tests.support.tiny_model import tiny_model

    for seed, name in enumerate(MODELS):
        tiny_model(tmp_path / name, seed=seed)
    killed_in_every_stage(RunToKill(tmp_path, recipe, "peft", ahead=1))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["sl_basic", "dpo", "rl"])
def test_a_killed_run_on_an_adapter_resumes(recipe: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from tests.support.peft_adapters import QV, save_adapter
    from tests.support.tiny_model import tiny_model

    base = tiny_model(tmp_path / "base")
    for name in MODELS:
        config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=QV, task_type="CAUSAL_LM")
        save_adapter(base, tmp_path / name, config)
    killed_in_every_stage(RunToKill(tmp_path, recipe, "peft", ahead=1))


def killed_in_every_stage(run: RunToKill) -> None:
    """Kill the run in the middle of each stage, resume it, and compare the outcomes."""
    uninterrupted = KillAt()
    run.execute(uninterrupted, KillDuringWrite(str(run.folder / "whole")))
    expected = outcome(run.folder / "whole")
    for stage in dict.fromkeys(uninterrupted.stages):
        calls = [n for n, title in enumerate(uninterrupted.stages, 1) if title == stage]
        root = run.folder / stage
        with pytest.raises(Killed):
            run.execute(KillAt(calls[len(calls) // 2]), KillDuringWrite(str(root)))
        run.execute(KillAt(), KillDuringWrite(str(root)))
        assert outcome(root) == expected, f"stopped after {stage}"
