"""What the pages list is all that there is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from kitchen.registry import PORTS, adapter_class, adapter_settings, available
from recipes.evaluate import Evaluate
from recipes.sl_basic import SlBasic
from stages.conversations import FORMATS
from stages.data import Reading
from stages.evaluation import Answering, Examination
from stages.masks import TRAIN_ON
from stages.render import OVERLONG

DOCS = Path(__file__).parents[2] / "docs"
FORMAT_PAGE, SETTINGS_PAGE = ((DOCS / page).read_text() for page in ("data-formats.md", "settings.md"))
ADAPTERS = [(port, name) for port in PORTS for name in sorted(available(port)) if name != "fake"]


@pytest.mark.parametrize("listed", [*(f"### `{each}`" for each in FORMATS), *(f"| `{each}` |" for each in TRAIN_ON),
                                    *OVERLONG])
def test_the_page_of_formats_has(listed: str) -> None:
    assert listed in FORMAT_PAGE


@pytest.mark.parametrize("name", [each.name for each in fields(Reading)])
def test_the_page_of_formats_has_each_way_to_read(name: str) -> None:
    assert f"`reading.{name}" in FORMAT_PAGE


@pytest.mark.parametrize("port, name", ADAPTERS)
def test_the_page_of_settings_has_those_of_each_adapter(port: str, name: str) -> None:
    rows = [row for row in SETTINGS_PAGE.splitlines() if f"`{name}`" in row]
    for setting in adapter_settings(adapter_class(port, name)):
        assert any(f"`{port}.{setting}`" in row for row in rows), setting


@pytest.mark.parametrize("page, setting", [
    *(("sl_basic", each) for each in SlBasic.model_fields if each != "rendering"),
    *(("evaluate", each) for each in Evaluate.model_fields if each not in ("evaluation", "answering")),
    *(("evaluate", f"evaluation.{each.name}") for each in fields(Examination)),
    *(("evaluate", f"answering.{each.name}") for each in fields(Answering))])
def test_the_page_of_a_recipe_has_its_settings(page: str, setting: str) -> None:
    rows = (DOCS / f"recipes/{page}.md").read_text()
    assert any(f"`{setting}`" in row for row in rows.splitlines() if row.startswith("|"))
