"""A record from somebody else runs no code without the user's consent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import in_folder, invoke, output

PAYLOAD = "from pathlib import Path\nPath('loaded').touch()\n"
ADAPTER = PAYLOAD + "from adapters.fake.training import FakeTraining as Mine\n"
COMMANDS = [
    ("sample", "dish", "hi"),
    ("export", "dish", "out"),
    ("eval", "dish", "--dataset", "rows.jsonl"),
    ("push", "dish", "me/dish"),
    ("resume", "dish"),
]
UNTRUSTED = [
    {"adapters": {"training": "mine:Mine"}},
    {"adapters": {"hub": "mine:Mine"}},
    {"adapters": {"training": "runs.dish.mine:Mine"}},
    {
        "adapters": {"training": "subprocess:Popen"},
        "adapter_settings": {"training": {"args": ["touch", "loaded"]}},
    },
]

Edit = Callable[..., None]


@pytest.fixture
def edit(tmp_path: Path) -> Any:
    """A run "dish" in the current folder, and a function that edits the order in its record."""
    (tmp_path / "mine.py").write_text(ADAPTER)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "completion": "fine"}\n' * 12)
    record = tmp_path / "runs/dish/run.json"

    def edit_order(**order: dict[str, Any] | str) -> None:
        content = json.loads(record.read_text())
        content["status"] = "interrupted"
        for key, value in order.items():
            if isinstance(value, dict):
                content["order"][key] |= value
            else:
                content["order"][key] = value
        record.write_text(json.dumps(content))

    with in_folder(tmp_path):
        settings = ("dataset=rows.jsonl", "reading.held_out_rows=1", "batch_size=1")
        options = ("--training", "fake", "--hub", "local", "--name", "dish")
        output(0, "run", "recipes.sl_basic", *settings, *options)
        (tmp_path / "runs/dish/mine.py").write_text(ADAPTER)
        yield edit_order


@pytest.mark.parametrize("order", UNTRUSTED, ids=lambda order: str(order["adapters"]))
def test_record_loads_no_class_without_trust(
    tmp_path: Path, edit: Edit, order: dict[str, Any]
) -> None:
    edit(**order)
    port, name = next(iter(order["adapters"].items()))
    for command in COMMANDS:
        shown = output(2, *command)
        assert f"the {port} adapter {name}" in shown, command
        assert "--trust" in shown, command
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("recipe", ["mine:Mine", "runs.dish.mine:Mine", "this:Evil"])
def test_record_loads_no_recipe_without_trust(tmp_path: Path, edit: Edit, recipe: str) -> None:
    edit(recipe=recipe)
    assert f"the recipe {recipe}" in output(2, "resume", "dish")
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize(
    ("recipe", "settings", "name"),
    [
        ("recipes.rl:Rl", {"reward": "mine:Mine"}, "reward=mine:Mine"),
        ("recipes.rlhf:Rlhf", {"reward": "runs.dish.mine:Mine"}, "reward=runs.dish.mine:Mine"),
        ("recipes.rl:Rl", {"reward": ["exact", "os:system"]}, "reward=os:system"),
        ("recipes.rl:Rl", {"advantages": "os:system"}, "advantages=os:system"),
        ("recipes.sl_basic:SlBasic", {"schedule": "os:system"}, "schedule=os:system"),
        ("recipes.rl:Rl", {"reward": {"exact": 1, "mine:Mine": 2}}, "reward=mine:Mine"),
        ("recipes.rl:Rl", {"rewards": {"a": "exact", "b": "mine:Mine"}}, "rewards.b=mine:Mine"),
        ("recipes.rl:Rl", {"rewards": {"a": {"os:system": 1}}}, "rewards.a=os:system"),
        (
            "recipes.evaluate:Evaluate",
            {"evaluation": {"metric": "mine:Mine"}},
            "evaluation.metric=mine:Mine",
        ),
        (
            "recipes.claim_extraction:ClaimExtraction",
            {"evaluation": {"metrics": ["bleu", "mine:Mine"]}},
            "evaluation.metrics=mine:Mine",
        ),
        (
            "recipes.claim_validation:ClaimValidation",
            {"gate": {"data": {"fields": [{"name": "a", "check": "mine:Mine"}]}}},
            "gate.data.fields.check=mine:Mine",
        ),
        (
            "recipes.claim_validation:ClaimValidation",
            {"gate": {"tests": {"path": "runs/dish"}}},
            "gate.tests.path=runs/dish",
        ),
    ],
)
def test_record_loads_no_function_without_trust(
    tmp_path: Path, edit: Edit, recipe: str, settings: dict[str, Any], name: str
) -> None:
    edit(recipe=recipe, settings=settings)
    shown = output(2, "resume", "dish")
    assert f"names code to run, {name}." in shown
    assert "--trust" in shown
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "https://elsewhere.example"},
        {"base_url": "http://127.0.0.1.elsewhere.example:80"},
        {"base_url": "http://elsewhere.example\\@localhost"},
        {"base_url": "http://127.0.0.1?@elsewhere.example"},
        {"base_url": "http://["},
        {"base_url": "http://127.0.0.1:1", "key": "OTHER_SECRET"},
    ],
)
def test_record_sends_no_key_elsewhere_without_trust(edit: Edit, settings: dict[str, str]) -> None:
    edit(adapters={"training": "tinker"}, adapter_settings={"training": settings})
    secrets = {"TINKER_API_KEY": "tml-secret", "OTHER_SECRET": "other-secret"}
    for command in COMMANDS:
        shown = output(2, *command, **secrets)
        assert "training." in shown, command
        assert "--trust" in shown, command
        assert "-secret" not in shown, command


def test_typed_address_needs_no_trust(edit: Edit) -> None:
    url = "http://elsewhere.example"
    edit(adapters={"training": "tinker"}, adapter_settings={"training": {"base_url": url}})
    here = ("--set", "training.base_url=http://127.0.0.1:1", "--set", "training.patience=0.1")
    shown = invoke("sample", "dish", "hi", *here, TINKER_API_KEY="tml-secret").output
    assert "no final weights" in shown  # it has got past the check
    assert "--trust" not in shown


def test_trusted_record_loads_a_class_that_implements_the_port(tmp_path: Path, edit: Edit) -> None:
    edit(adapters={"training": "mine:Mine"})
    output(0, "sample", "dish", "?", "--trust", "--max-tokens", "2")
    assert (tmp_path / "loaded").exists()
    edit(**UNTRUSTED[-1])
    assert "TrainingClient" in output(2, "sample", "dish", "?", "--trust")
