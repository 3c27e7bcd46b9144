"""`kitchen data`: what is in a data set, whoever keeps it."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kitchen.cli import app

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


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    path = sys.path[:]
    with contextlib.chdir(tmp_path):
        yield tmp_path
    sys.path[:] = path


def kitchen(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert "Traceback" not in result.output
    return result


def test_splits_columns_and_first_rows(here: Path) -> None:
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found = json.loads(kitchen("data", "rows.jsonl", "--json").stdout)
    assert (found["name"], found["split"], list(found["splits"])) == (
        "rows.jsonl",
        "train",
        ["train"],
    )
    assert found["size"] == (here / "rows.jsonl").stat().st_size
    assert found["columns"] == {
        "question": "text",
        "answer": "text or null",
        "n": "whole number",
        "tags": "list of text or empty list",
        "more": "{x: null, y: number}",
    }
    assert found["rows"] == [
        {"where": f"rows.jsonl:{line}", "row": row} for line, row in enumerate(ROWS, 1)
    ]


def test_people_see_the_same_and_how_to_go_on(here: Path) -> None:
    (here / "my rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    shown = kitchen("data", "my rows.jsonl", "--rows", "1").stdout
    assert "question  eggs?" in shown
    assert "limes?" not in shown
    command = shown.splitlines()[-1].strip()
    assert (
        command
        == "kitchen check recipes.sl_basic 'dataset=my rows.jsonl' --training fake --preview"
    )
    result = kitchen(*shlex.split(command)[1:])
    assert result.exit_code == 3
    assert "no known format in the row {question: 'eggs?'" in result.output


def test_another_split_of_a_packaged_data_set() -> None:
    found = json.loads(
        kitchen("data", "ingredients", "--split", "hand_typed", "--rows", "5", "--json").stdout
    )
    assert len(found["rows"]) == 5
    assert found["columns"] == {"messages": "list of {role: text, content: text}"}
    assert next(iter(found["splits"])) == "train"
    assert found["license"]


def test_no_more_rows_are_read_than_are_shown(here: Path) -> None:
    (here / "rows.jsonl").write_text(json.dumps(ROWS[0]) + "\n{ torn\n")
    assert kitchen("data", "rows.jsonl", "--rows", "1").exit_code == 0
    torn = kitchen("data", "rows.jsonl", "--rows", "2")
    assert torn.exit_code == 3
    assert "rows.jsonl:2" in torn.output


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("ingredint",), 3, "did you mean 'ingredients'?"),
        (("ingredients", "--split", "trian"), 3, "did you mean 'train'?"),
        (("ingredients", "--datasets", "lcoal"), 2, "did you mean 'local'?"),
        (("ingredients", "--rows", "0"), 2, "--rows"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], code: int, why: str) -> None:
    result = kitchen("data", *arguments)
    assert result.exit_code == code
    assert why in result.output


def test_any_store_will_do() -> None:
    shown = kitchen("data", "greetings", "--datasets", "fake").stdout
    assert "Greet Ada: good morning." in shown
    assert (
        "kitchen check recipes.sl_basic dataset=greetings --datasets fake --training fake --preview"
        in shown
    )
    command = shown.splitlines()[-1].strip()
    assert kitchen(*shlex.split(command)[1:]).exit_code == 0
