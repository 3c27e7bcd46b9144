"""SIGKILL at random points, a third of them inside a checkpoint write; the resumed run equals one
left alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("KITCHEN_SOAK", "0"))


def soak(
    folder: Path,
    recipe: str,
    backend: str,
    ahead: int,
    kills: int,
    shown: pytest.CaptureFixture[str],
) -> list[dict[str, Any]]:
    seed = random.SystemRandom().randrange(10**6)
    with shown.disabled():
        print(f" recipe={recipe} backend={backend} ahead={ahead} kills={kills} seed={seed}")
    command = [
        sys.executable,
        str(Path(__file__).with_name("victims.py")),
        str(folder),
        recipe,
        backend,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [*command, str(ahead), str(kills), str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}\n{done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "recipe, ahead",
    [
        ("sl_basic", 1),
        ("rl", 2),
        *(
            pytest.param(recipe, 1, marks=pytest.mark.slow)
            for recipe in ("chat_sl", "dpo", "distillation", "distillation_off_policy", "rlhf_own")
        ),
    ],
)
def test_a_few_kills_of_the_fake(
    recipe: str, ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(soak(tmp_path, recipe, "fake", ahead, 4, capsys)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, ahead",
    [
        ("sl_basic", 0),
        ("sl_basic", 1),
        ("sl_basic", 3),
        ("chat_sl", 2),
        ("dpo", 0),
        ("dpo", 2),
        ("kto", 2),
        ("rl", 0),
        ("rl", 2),
        ("distillation", 2),
        ("distillation_forward", 2),
        ("distillation_off_policy", 2),
        ("rlhf_own", 0),
        ("rlhf_own", 2),
    ],
)
def test_the_fake_is_killed(
    recipe: str, ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = soak(tmp_path, recipe, "fake", ahead, KILLS or 15, capsys)
    assert sum(bool(row["inside_write"]) for row in rows) >= len(rows) // 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, ahead",
    [
        ("sl_basic", 0),
        ("sl_basic", 1),
        ("sl_basic", 3),
        ("chat_sl", 1),
        ("dpo", 1),
        ("dpo_simpo", 1),
        ("dpo_mistakes", 1),
        ("kto", 1),
        ("evaluate", 0),
        ("rl", 0),
        ("rl", 1),
        ("rl_talk", 1),
        ("distillation", 1),
        ("distillation_forward", 1),
        ("distillation_instruction", 1),
        ("distillation_teachers", 1),
        ("distillation_off_policy", 1),
        ("rlhf", 1),
        ("rlhf_short", 1),
    ],
)
def test_a_tiny_local_model_is_killed(
    recipe: str, ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = soak(tmp_path, recipe, "peft", ahead, KILLS or 6, capsys)
    assert all(row["same"] for row in rows)
