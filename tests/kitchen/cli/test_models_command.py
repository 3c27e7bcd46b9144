"""`kitchen models`: weights of runs as versions of models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import invoke, output
from tests.support.soup import SMALL


@pytest.fixture
def trained(here: Path) -> Path:
    """A folder with a run that has exported weights twice, and a run trained from it."""
    output(0, "run", *SMALL, "eval_every=2", "--name", "first")
    output(0, "run", *SMALL, "model=run:first", "seed=1", "--name", "second")
    return here


def test_weights_are_versions_of_a_model(trained: Path) -> None:
    assert "there are no models in runs" in output(0, "models")
    assert "model:soup@1 is run:first@final" in output(0, "models", "add", "soup", "first")
    assert "model:soup@2 is run:first@2" in output(
        0, "models", "add", "soup", "run:first@2", "--alias", "champion"
    )
    again = json.loads(invoke("models", "add", "soup", "first", "--json").stdout)
    assert (again["version"], again["new"]) == (1, False)
    assert "champion: 2" in output(0, "models")
    assert "model:soup@champion is model:soup@1" in output(
        0, "models", "alias", "soup@1", "champion"
    )
    found = json.loads(invoke("models", "--json").stdout)["soup"]
    assert [version["at"] for version in found["versions"]] == ["final", "2"]
    assert found["aliases"] == {"champion": 1}
    assert "intervals, of run:first@final" in output(0, "models", "show", "soup@2")
    assert "did you mean 'first'" in output(2, "models", "add", "soup", "frist")
    shown = output(0, "models", "show", "soup@champion")
    assert "intervals, of" not in shown
    assert "run:first@final" in shown
    assert "base model (of first)" in shown


def test_a_model_is_named_wherever_weights_are(trained: Path) -> None:
    output(0, "models", "add", "soup", "second")
    lineage = json.loads(invoke("models", "show", "soup", "--json").stdout)["lineage"]
    assert [(entry["relation"], entry["weights"]) for entry in lineage] == [
        ("trained from (of second)", "run:first@final"),
        ("base model (of first)", "packaged:smollm2-135m-instruct"),
    ]
    typed = ("2 cups of flour", "--max-tokens", "4")
    of_run = invoke("sample", "run:second", *typed).stdout
    assert invoke("sample", "model:soup@1", *typed).stdout == of_run
    output(0, "run", *SMALL, "model=model:soup", "--name", "third")
    facts = json.loads((trained / "runs/third/run.json").read_text())["facts"]
    assert facts["weights"] == "run:second@final"
    evaluated = output(0, "eval", "model:soup", "evaluation.max_tokens=4")
    assert "the rows that model:soup held out" in evaluated


def test_changed_weights_are_refused(trained: Path) -> None:
    output(0, "models", "add", "soup", "first")
    version = trained / "runs/_models/soup/versions/000001.json"
    assert version.exists()
    replaced = trained / "runs/first"
    replaced.rename(trained / "elsewhere")
    output(0, "run", *SMALL, "seed=5", "--name", "first")
    assert "have changed since they were registered" in output(2, "sample", "model:soup", "x")


MISTAKES = [
    (("show", "sopu"), "did you mean 'soup'"),
    (("show", "soup@3"), "no such version"),
    (("show", "soup@champio"), "did you mean 'champion'"),
    (("add", "a/b", "first"), "cannot be the name of a model"),
    (("add", "soup", "first", "--alias", "12"), "numbers name versions"),
    (("add", "soup", "packaged:smollm2-135m-instruct"), "only weights of a run"),
    (("add", "soup", "firs"), "firs"),
]


def test_mistakes_are_named(trained: Path) -> None:
    output(0, "models", "add", "soup", "first", "--alias", "champion")
    for command, problem in MISTAKES:
        result = invoke("models", *command)
        assert result.exit_code in (2, 4), command
        assert problem in result.output
    assert len(list((trained / "runs/_models/soup/versions").iterdir())) == 1


def test_a_damaged_version_is_named(trained: Path) -> None:
    output(0, "models", "add", "soup", "first")
    version = trained / "runs/_models/soup/versions/000001.json"
    version.write_text(version.read_text().replace("first", "other"))
    assert "000001.json is damaged" in output(2, "models", "show", "soup")
    assert "000001.json is damaged" in output(2, "models")
