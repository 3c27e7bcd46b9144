"""`kitchen check`: the plan, the preview, and every problem at once."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.commands import invoke, output
from tests.support.soup import FAKE, SMALL

pytestmark = pytest.mark.usefixtures("here")

EXITING = '''"""A recipe whose stage ends the process."""
import sys
from kitchen import Recipe, Stage, Step, sequence
class Boil(Stage):
    def run(self) -> None: ...
    def {method}(self) -> None:
        {statement}
class {name}(Recipe):
    def workflow(self) -> Step:
        return sequence(Boil())
'''


def test_several_problems_are_numbered() -> None:
    arguments = ("lr=1", "--training", "fak", "--set", "hbu.x=1", "--config", "no.yaml")
    shown = output(2, "check", "recipes.sl_basic", *arguments)
    assert "error: 4 problems" in shown
    assert all(f"  {number}. " in shown for number in range(1, 5))


def test_the_plan_is_shown_as_a_tree(here: Path) -> None:
    arguments = ("check", "recipes.sl_basic", "--training", "fake", "rendering.max_tokens=512")
    shown = output(0, *arguments)
    assert "├── RenderDataset(max_tokens=512)  TrainRows, Tokenizer → TrainData, Metrics\n" in shown
    assert (
        "│       ├── ReportStep  Batch, LossOutput, OptimStepResult, LearningRate → Metrics\n"
        in shown
    )
    assert "rendering.max_tokens    512  command line" in shown
    assert "no problems" in shown
    assert not (here / "runs").exists()
    assert "not honoured" not in shown, "the default alpha is the backend's own"
    other = ("lora_alpha=16", "lora_dropout=0.1")
    shown = output(0, *arguments, *other)
    assert "not honoured: lora_alpha" in shown
    assert "not honoured: lora_dropout" in shown
    assert "not honoured" not in output(0, "check", "recipes.sl_basic", *other)


def test_a_stage_with_an_empty_model_names_no_weights() -> None:
    assert "no problems" in output(0, "check", "recipes.rlhf", "--training", "fake")


def test_check_answers_in_json() -> None:
    result = invoke("check", "recipes.sl_basic", *FAKE, "reading.limit=5", "lora_rank=32", "--json")
    found = json.loads(result.stdout)
    assert found["exit_code"] == result.exit_code == 0
    assert found["sources"]["reading.limit"] == "command line"
    assert found["settings"]["reading"]["limit"] == 5
    assert found["not_honoured"] == ["lora_alpha"]
    assert found["problems"] == []
    result = invoke("check", "recipes.sl_basic", "reading.limit=0", "--json")
    assert json.loads(result.stdout)["problems"]
    assert json.loads(result.stdout)["exit_code"] == result.exit_code == 2


@pytest.mark.parametrize(
    ("command", "options"),
    [("check", (*FAKE, "--json")), ("describe", ("--json",)), ("schema", ())],
)
def test_prints_of_a_module_are_not_in_json(
    here: Path, command: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["from recipes.sl_basic import SlBasic", 'print("loaded")', "class Loud(SlBasic): ..."]
    (here / "loud.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.delitem(sys.modules, "loud", raising=False)
    result = invoke(command, "loud:Loud", *options)
    assert json.loads(result.stdout)
    assert "loaded\n" in result.stderr


def test_a_preview_marks_the_trained_tokens(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"prompt": "two", "completion": "deux"}\n' * 20)
    command = ("check", "recipes.sl_basic", *FAKE, "dataset=rows.jsonl")
    shown = output(0, *command, "batch_size=4", "warmup_steps=1", "--preview")
    flat = "\n".join(line.rstrip() for line in shown.splitlines())
    assert "\ncontext       6  <|user|>two<|end_of_turn|><|assistant|>\n" in flat
    assert "\ntrained       5  deux<|end_of_turn|>\n" in flat
    # 5 of the 10 tokens of a row
    assert "share of tokens trained on  50.0%" in shown
    assert "optimiser steps in all      5" in flat  # 18 rows, 2 of 20 held out
    assert re.search(r"^configured +0\.001 +peak of the schedule$", flat, re.MULTILINE)
    assert "suggested" not in flat  # the formula for learning rates does not know this model
    assert "tokens read in all        180" in flat
    priced = output(0, *command, "epochs=2", "--price", "5")
    assert "tokens read in all                  360" in priced
    assert "cost of these, at 5 per million  0.0018" in priced
    assert "--price" in output(2, "check", "recipes.sl_basic", *FAKE, "--price", "-1")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("recipe", "titles"),
    [
        ("sl_basic", ["The first datum", "The first answer of held_out"]),
        ("dpo", ["The first pair", "The first answer of held_out"]),
        ("rl", ["The first prompt"]),
    ],
)
def test_a_preview_in_json_has_its_tables(recipe: str, titles: list[str]) -> None:
    command = ("check", f"recipes.{recipe}", *FAKE, "dataset=arithmetic", "--preview", "--json")
    found = json.loads(invoke(*command).stdout)["preview"]
    tables = {table["title"]: table for table in found}
    for title in titles:
        assert "<|user|>" in tables[title]["rows"][0][-1]
        assert tables[title]["columns"][-2:] == ["tokens", "text"]
    assert "preview" not in json.loads(invoke(*command[:-2], "--json").stdout)


def test_a_preview_of_bad_rows_ends_with_3(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"question": "two"}\n' * 20)
    shown = output(3, "check", *SMALL, "dataset=rows.jsonl", "--preview")
    assert re.search(r"error: rows\.jsonl:\d+: ", shown)
    assert "{question: 'two'}" in shown


@pytest.mark.parametrize("statement", ["sys.exit(0)", "raise SystemExit", "exit(3)"])
@pytest.mark.parametrize(
    ("method", "command"),
    [("verify", ("check",)), ("verify", ("run",)), ("preview", ("check", "--preview"))],
)
def test_checks_of_a_stage_that_exit_are_reported(
    here: Path, method: str, command: tuple[str, ...], statement: str
) -> None:
    name = f"exits_{method}_{len(command)}_{command[0]}_{len(statement)}"
    (here / "recipes").mkdir(exist_ok=True)
    recipe = EXITING.format(name="Exits", method=method, statement=statement)
    (here / "recipes" / f"{name}.py").write_text(recipe)
    word, *options = command
    shown = output(1, word, f"recipes.{name}", *options, *FAKE)
    assert "SystemExit" in shown
    assert f"recipes/{name}.py:7 in {method}" in shown
    assert not (here / "runs").exists()


def test_a_teacher_elsewhere_needs_the_sampling_adapter() -> None:
    options = ("recipes.distillation_off_policy", *FAKE, "--sampling", "fake", "model=fake/bigram")
    rows = {
        teacher: next(
            line.split()
            for line in output(0, "check", *options, f"teacher={teacher}").splitlines()
            if line.startswith("sampling")
        )
        for teacher in ("openai:echo", "fake/bigram")
    }
    assert rows["openai:echo"] == ["sampling", "fake", "the", "recipe"]
    assert rows["fake/bigram"] == ["sampling", "fake", "nothing"]
