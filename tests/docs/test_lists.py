"""What the pages list is all that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from kitchen import Recipe
from kitchen.config.adapters import PORTS, adapter_class, adapter_settings, available
from recipes.chat_sl import ChatSl
from recipes.distillation import Distillation
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from stages.chat.conversations import FORMATS
from stages.chat.masks import TRAIN_ON
from stages.chat.render import OVERLONG
from stages.data.dataset import DataConfig
from stages.evaluate.evaluation import DecodingConfig, EvalConfig

DOCS = Path(__file__).parents[2] / "docs"
FORMAT_PAGE, SETTINGS_PAGE = (
    (DOCS / page).read_text() for page in ("data-formats.md", "settings.md")
)
RECIPES = (SlBasic, ChatSl, Evaluate, Dpo, Kto, Rl, Rlhf, Distillation, DistillationOffPolicy)
ADAPTERS = [(port, name) for port in PORTS for name in sorted(available(port)) if name != "fake"]


@pytest.mark.parametrize(
    "listed",
    [*(f"### `{each}`" for each in FORMATS), *(f"| `{each}` |" for each in TRAIN_ON), *OVERLONG],
)
def test_the_page_of_formats_has(listed: str) -> None:
    assert listed in FORMAT_PAGE


@pytest.mark.parametrize("name", [each.name for each in fields(DataConfig)])
def test_the_page_of_formats_has_each_way_to_read(name: str) -> None:
    assert f"`reading.{name}" in FORMAT_PAGE


@pytest.mark.parametrize("port, name", ADAPTERS)
def test_the_page_of_settings_has_those_of_each_adapter(port: str, name: str) -> None:
    rows = [row for row in SETTINGS_PAGE.splitlines() if f"`{name}`" in row]
    for setting in adapter_settings(adapter_class(port, name)):
        assert any(f"`{port}.{setting}`" in row for row in rows), setting


@pytest.mark.parametrize(
    "setting",
    [
        *(f"evaluation.{each.name}" for each in fields(EvalConfig)),
        *(f"answering.{each.name}" for each in fields(DecodingConfig)),
    ],
)
def test_the_page_of_evaluate_has_each_way_to_answer(setting: str) -> None:
    assert settings_on("evaluate", setting)


@pytest.mark.parametrize(
    "recipe, setting", [(recipe, setting) for recipe in RECIPES for setting in recipe.model_fields]
)
def test_the_page_of_a_recipe_has_its_settings(recipe: type[Recipe], setting: str) -> None:
    """Those with a default of its own; others may stand with sl_basic, to which it then leads."""
    page, same = recipe.__module__.removeprefix("recipes."), SlBasic.model_fields.get(setting)
    shared = same is not None and same.default == recipe.model_fields[setting].default
    assert settings_on(page, setting) or (shared and settings_on("sl_basic", setting))
    assert (
        page in ("sl_basic", "evaluate")
        or "](sl_basic.md#settings)" in (DOCS / f"recipes/{page}.md").read_text()
    )


def settings_on(page: str, setting: str) -> list[str]:
    """The rows of tables that tell of it, or of what it is made of."""
    rows = (DOCS / f"recipes/{page}.md").read_text().splitlines()
    return [
        row for row in rows if row.startswith("|") and re.search(rf"`{re.escape(setting)}[`.]", row)
    ]
