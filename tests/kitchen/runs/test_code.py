"""A run is not resumed with other code unnoticed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from kitchen.errors import ConfigError
from kitchen.runs.code import code_digests
from tests.support.commands import kitchen

REWARD = "def reward(answer: str) -> float:\n    return len(answer) / 10\n"
STAGES = """from kitchen import Metrics, Progress, Stage
from mine.rewards import reward

class Pay(Stage):
    def run(self, minute: int, progress: Progress) -> Metrics:
        if progress.step == 3 and not open("go").read():
            raise ValueError("not yet")
        return Metrics(paid=reward("word"))
"""
RECIPE = '''"A recipe of three files."
from collections.abc import Iterable
from kitchen import Recipe, Stage, Step, for_each
from mine.paying import Pay

class Minutes(Stage):
    def run(self) -> Iterable[int]:
        return range(6)

class Paying(Recipe):
    """Pay for each minute."""

    def workflow(self) -> Step:
        return for_each(Minutes(), save=1)(Pay())
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "mine/rewards.py": REWARD,
        "mine/paying.py": STAGES,
        "recipes/paying.py": RECIPE,
        "go": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    failed = kitchen(tmp_path, "run", "recipes.paying", "--training", "fake", "--name", "dish")
    assert "not yet" in failed.stderr
    (tmp_path / "go").write_text("now")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("mine/rewards.py", "/ 10", "/ 5"),
        ("mine/paying.py", 'reward("word")', 'reward("words")'),
        ("recipes/paying.py", "range(6)", "range(7)"),
    ],
)
def test_changed_code_is_refused_unless_accepted(
    folder: Path, file: str, old: str, new: str
) -> None:
    changed = folder / file
    changed.write_text(changed.read_text().replace(old, new))
    refused = kitchen(folder, "resume", "dish")
    assert refused.returncode == 2
    assert f"the code of {file.removesuffix('.py').replace('/', '.')} has changed" in refused.stderr
    assert "--other-code" in refused.stderr
    assert kitchen(folder, "resume", "dish", "--other-code").returncode == 0


def test_comments_and_layout_do_not_count(folder: Path) -> None:
    rewards = folder / "mine/rewards.py"
    rewards.write_text(
        "# a comment\n\n" + REWARD.replace("len(answer) / 10", "(len(answer) /  10)")
    )
    resumed = kitchen(folder, "resume", "dish", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["metrics"]["paid"] == 0.4


def test_reward_by_name_is_code_of_the_run(tmp_path: Path) -> None:
    rows = [json.dumps({"prompt": f"{n}?", "completion": "x"}) for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    scores = tmp_path / "scores.py"
    circle = "TREE = {}\nTREE['me'] = TREE\n"  # data that has itself in it
    scores.write_text(
        f"{circle}def score(answer):\n    return float(open('factor').read()) * len(answer)\n"
    )
    settings = ["dataset=rows.jsonl", "reading.held_out=0.25", "reward.scores:score=0.5"]
    settings += ["steps=1", "batch_size=1", "group=2", "playing.max_tokens=4", "--name", "dish"]
    failed = kitchen(tmp_path, "run", "recipes.rl", "--training", "fake", *settings)
    assert "FileNotFoundError" in failed.stderr
    assert "(scores.py:4 in score)" in failed.stderr
    (tmp_path / "factor").write_text("1")
    assert "--trust" in kitchen(tmp_path, "resume", "dish").stderr
    scores.write_text(scores.read_text().replace("* len", "+ len"))
    refused = kitchen(tmp_path, "resume", "dish", "--trust")
    assert "the code of scores has changed" in refused.stderr
    resumed = kitchen(tmp_path, "resume", "dish", "--trust", "--other-code")
    assert resumed.returncode == 0, resumed.stderr


def test_a_deleted_source_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "gone.py"
    source.write_text(RECIPE.replace("from mine.paying import Pay", "Pay = Stage"))
    monkeypatch.syspath_prepend(tmp_path)
    workflow = importlib.import_module("gone").Paying().workflow()
    source.unlink()
    try:
        with pytest.raises(ConfigError, match=r"cannot read \S+gone\.py, the source of .*'gone'"):
            code_digests("gone:Paying", workflow)
    finally:
        del sys.modules["gone"]
