"""Runs that were killed or damaged resume as if nothing had happened, or are refused.

Runs killed by SIGKILL at random points resume, and then equal a run that was never killed. A third
of the kills are inside the write of a checkpoint. Runs with a flipped bit in any of their files
equal it too, or end in our own error.
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

KILLS = int(os.environ.get("KITCHEN_SOAK", "0"))  # of each run; 0: a number for each test
FLIPS = 5 * KILLS


def soak(
    folder: Path,
    recipe: str,
    backend: str,
    ahead: int,
    kills: int,
    capsys: pytest.CaptureFixture[str],
    script: str = "victims.py",
) -> list[dict[str, Any]]:
    """Kill and resume runs in another process; return what it reports of each kill.

    With the script `flips.py`, flip a bit before each resume instead.
    """
    seed = random.SystemRandom().randrange(10**6)
    with capsys.disabled():
        print(f" {script} recipe={recipe} backend={backend} ahead={ahead} n={kills} seed={seed}")
    arguments = [folder, recipe, backend, ahead, kills, seed]
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
    )
    print(process.stdout)
    report = f"seed {seed}\n{process.stdout}\n{process.stderr[-3000:]}"
    assert process.returncode == 0, report
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.parametrize(
    "recipe, ahead",
    [
        ("rl", 2),
        *(
            pytest.param(recipe, 1, marks=pytest.mark.slow)
            for recipe in (
                "sl_basic",
                "chat_sl",
                "dpo",
                "distillation",
                "distillation_off_policy",
                "rlhf_own",
            )
        ),
    ],
)
def test_fake_runs_resume_after_a_few_kills(
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
        ("claim_extraction", 2),
        ("rl", 0),
        ("rl", 2),
        ("distillation", 2),
        ("distillation_forward", 2),
        ("distillation_off_policy", 2),
        ("rlhf_own", 0),
        ("rlhf_own", 2),
    ],
)
def test_fake_runs_resume_after_many_kills(
    recipe: str, ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = soak(tmp_path, recipe, "fake", ahead, KILLS or 6, capsys)
    assert sum(bool(row["inside_write"]) for row in rows) >= len(rows) // 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe, ahead",
    [
        ("sl_basic", 0),
        ("sl_basic", 1),
        ("sl_basic", 3),
        ("sl_basic_full", 1),
        ("chat_sl", 1),
        ("dpo", 1),
        ("dpo_simpo", 1),
        ("dpo_mistakes", 1),
        ("kto", 1),
        ("claim_extraction", 1),
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
def test_local_runs_resume_after_kills(
    recipe: str, ahead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = KILLS or 1
    rows = soak(tmp_path, recipe, "peft", ahead, kills, capsys)
    assert [row["same"] for row in rows] == [True] * kills


@pytest.mark.parametrize(
    "recipe, backend, flips",
    [
        ("sl_basic", "fake", 12),
        *(
            pytest.param(recipe, backend, flips, marks=pytest.mark.slow)
            for recipe, backend, flips in (
                ("sl_basic", "fake", 60),
                ("dpo_mistakes", "fake", 20),
                ("rl", "fake", 40),
                ("evaluate", "fake", 20),
                ("rlhf_own", "fake", 20),
                ("sl_basic", "peft", 20),
                ("distillation", "peft", 10),
            )
        ),
    ],
)
def test_flipped_bits_are_harmless_or_refused(
    recipe: str, backend: str, flips: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flips = FLIPS or flips
    rows = soak(tmp_path, recipe, backend, 1, flips, capsys, "flips.py")
    assert len(rows) == flips
    assert {row["outcome"] for row in rows} <= {"same", "refused", "detected"}
