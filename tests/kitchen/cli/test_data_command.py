"""`kitchen data`: the content of a data set, from any store."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import invoke, output

pytestmark = pytest.mark.usefixtures("here")
ROWS = [
    {
        "question": "eggs?",
        "answer": "two",
        "n": 1,
        "tags": ["a", "b"],
        "more": {"x": None, "y": 1.5},
    },
    {"question": "limes?", "answer": None, "n": 2, "tags": [], "more": {"x": None, "y": 1.5}},
]


def write_rows(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def suggested_command(shown: str) -> list[str]:
    """Return the words after `kitchen` in the last line."""
    return shlex.split(shown.splitlines()[-1].strip())[1:]


def test_splits_columns_and_first_rows_are_shown(here: Path) -> None:
    write_rows(here / "rows.jsonl")
    found = json.loads(invoke("data", "rows.jsonl", "--json").stdout)
    assert found["name"] == "rows.jsonl"
    assert found["split"] == "train"
    assert list(found["splits"]) == ["train"]
    assert found["size"] == (here / "rows.jsonl").stat().st_size
    assert found["columns"] == {
        "question": "text",
        "answer": "text or null",
        "n": "whole number",
        "tags": "list of text or empty list",
        "more": "{x: null, y: number}",
    }
    rows = [{"where": f"rows.jsonl:{line}", "row": row} for line, row in enumerate(ROWS, 1)]
    assert found["rows"] == rows


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_secrets_and_control_characters_are_not_shown(here: Path, options: list[str]) -> None:
    row = {"my s3cret-key": "s3cret-key", "more": [{"s3cret-key": ["a s3cret-key"]}]}
    steering = {
        "\u202ename": "\x9b31m",
        "list": ["\u2066", {"k\u061c": "\x1b]0;t\x07"}],
        "x": "\x7f",
    }
    (here / "rows.jsonl").write_text(json.dumps(row | steering, ensure_ascii=False) + "\n")
    shown = output(0, "data", "rows.jsonl", *options, MY_API_KEY="s3cret-key")
    assert "s3cret" not in shown
    assert "***" in shown
    assert not set(shown) & set("\u202e\x9b\u2066\u061c\x1b\x07\x7f")
    assert "202e" in shown


def test_json_escapes_read_as_the_data(here: Path) -> None:
    row = {"\u202ename": "\x9b31m", "nested": [{"k\u061c": "\x1b\x7f\u2028\n\t"}]}
    (here / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert json.loads(invoke("data", "rows.jsonl", "--json").stdout)["rows"][0]["row"] == row


def test_the_suggested_check_can_be_run(here: Path) -> None:
    write_rows(here / "my rows.jsonl")
    shown = output(0, "data", "my rows.jsonl", "--rows", "1")
    assert "question  eggs?" in shown
    assert "limes?" not in shown
    words = suggested_command(shown)
    assert words[:3] == ["check", "recipes.sl_basic", "dataset=my rows.jsonl"]
    assert "{question: 'eggs?'" in output(3, *words)


@pytest.mark.parametrize(
    ("row", "recipe"),
    [
        ({"prompt": "?", "chosen": "a", "rejected": "b"}, "recipes.dpo"),
        ({"prompt": "?", "completion": "a", "label": True}, "recipes.kto"),
        ({"text": "Basil.", "label": 1}, "recipes.sl_basic"),
    ],
)
def test_the_suggested_recipe_reads_such_rows(here: Path, row: object, recipe: str) -> None:
    (here / "rows.jsonl").write_text((json.dumps(row) + "\n") * 2)
    words = suggested_command(output(0, "data", "rows.jsonl"))
    assert words[:2] == ["check", recipe]
    output(0, *words, "reading.held_out=0.5")


def test_another_split_can_be_shown() -> None:
    command = ("data", "ingredients", "--split", "hand_typed", "--rows", "5", "--json")
    found = json.loads(invoke(*command).stdout)
    assert len(found["rows"]) == 5
    assert found["columns"] == {"messages": "list of {role: text, content: text}"}
    assert next(iter(found["splits"])) == "train"
    assert found["license"]


def test_rows_and_values_are_counted(here: Path) -> None:
    write_rows(here / "rows.jsonl")
    shown = output(0, "data", "rows.jsonl", "--rows", "1")
    assert re.search(r"train +trained on, but for a held-out share +2", shown)
    assert re.search(r"answer +text +1 of 2", shown)
    assert re.search(r"tags +list of text +1 of 2", shown)
    assert "0.2 kB" in shown
    found = json.loads(invoke("data", "ingredients", "--json").stdout)
    assert found["splits"]["hand_typed"] == 60


def test_rows_that_cannot_be_read_are_counted(here: Path) -> None:
    (here / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n{ torn\n7\n")
    shown = output(0, "data", "rows.jsonl", "--rows", "1")
    assert "train: 2 rows cannot be read, the first: rows.jsonl:2" in shown
    assert "rows.jsonl:2" in output(3, "data", "rows.jsonl", "--rows", "2")
    (here / "rows.json").write_text('[{"a": 1}, {"a": 2}')
    assert "train: 1 row cannot be read: rows.json:1" in output(
        0, "data", "rows.json", "--rows", "1"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("ingredint",), 3, "'ingredients'"),
        (("ingredients", "--split", "trian"), 3, "'train'"),
        (("ingredients", "--datasets", "lcoal"), 2, "'local'"),
        (("ingredients", "--rows", "0"), 2, "--rows"),
        (("game:guess",), 3, "kitchen check recipes.rl dataset=game:guess"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], code: int, named: str) -> None:
    assert named in output(code, "data", *arguments)


def test_any_data_set_store_is_shown() -> None:
    shown = output(0, "data", "greetings", "--datasets", "fake")
    assert "Greet Ada: good morning." in shown
    words = suggested_command(shown)
    assert words[2:5] == ["dataset=greetings", "--datasets", "fake"]
    output(0, *words)
