"""The pages list every format, setting and option that exists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

import pytest

from kitchen import Recipe
from kitchen.config.adapters import PORTS, adapter_class, adapter_settings, available
from recipes._base import TrainingRecipe
from recipes.chat_sl import ChatSl
from recipes.claim_antagonist import ClaimAntagonist
from recipes.claim_evaluation import ClaimEvaluation
from recipes.claim_extraction import ClaimExtraction
from recipes.claim_validation import ClaimValidation
from recipes.compare import Compare
from recipes.distillation import Distillation
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.ensemble import Ensemble
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
from tests.results.__main__ import date_of
from tests.support.pages import ROOT

DOCS = ROOT / "docs"
RECIPES = (
    SlBasic,
    ChatSl,
    Evaluate,
    Ensemble,
    Compare,
    Dpo,
    Kto,
    Rl,
    Rlhf,
    Distillation,
    DistillationOffPolicy,
    ClaimEvaluation,
    ClaimExtraction,
    ClaimValidation,
    ClaimAntagonist,
)
ADAPTERS = [(port, name) for port in PORTS for name in sorted(available(port)) if name != "fake"]


def test_readme_fits_on_200_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_page_of_formats_is_complete() -> None:
    page = (DOCS / "data-formats.md").read_text()
    entries = [f"### `{name}`" for name in FORMATS]
    entries += [f"| `{name}` |" for name in TRAIN_ON]
    entries += [f"`reading.{setting.name}" for setting in fields(DataConfig)]
    entries += OVERLONG
    assert not [entry for entry in entries if entry not in page]


def test_the_page_of_settings_covers_every_adapter() -> None:
    lines = (DOCS / "settings.md").read_text().splitlines()
    for port, name in ADAPTERS:
        rows = [line for line in lines if f"`{name}`" in line]
        for setting in adapter_settings(adapter_class(port, name)):
            assert any(f"`{port}.{setting}`" in row for row in rows), (port, name, setting)


def test_the_page_of_evaluate_covers_nested_settings() -> None:
    rows = table_rows("evaluate")
    settings = [f"evaluation.{setting.name}" for setting in fields(EvalConfig)]
    settings += [f"answering.{setting.name}" for setting in fields(DecodingConfig)]
    assert not [setting for setting in settings if not is_listed(setting, rows)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.__name__)
def test_the_page_of_a_recipe_lists_its_settings(recipe: type[Recipe]) -> None:
    """A setting with the same default as in sl_basic may be listed there, if the page links it."""
    page = recipe.__module__.removeprefix("recipes.")
    rows = table_rows(page)
    shared_rows = table_rows("sl_basic")
    for setting, shared in shared_settings(recipe).items():
        assert is_listed(setting, rows) or (shared and is_listed(setting, shared_rows)), setting
    if issubclass(recipe, TrainingRecipe) and page != "sl_basic":
        assert "](sl_basic.md#settings)" in (DOCS / f"recipes/{page}.md").read_text()


def test_benchmarks_have_the_date_of_every_commit() -> None:
    text, _, table = (DOCS / "benchmarks.md").read_text().partition("## Dates of the commits")
    dated = re.findall(r"^\| (\d{4}-\d\d-\d\d) \| (.+) \|$", table, re.MULTILINE)
    dates = {commit: date for date, commits in dated for commit in commits.split(", ")}
    assert set(re.findall(r"\b[0-9a-f]{7}\b", text)) == dates.keys()
    for commit, date in dates.items():
        assert date_of(commit) in ("", date), commit  # "": not in this repository


def shared_settings(recipe: type[Recipe]) -> Mapping[str, bool]:
    """Return setting to whether sl_basic has it with the same default."""
    shared: dict[str, bool] = {}
    for setting, info in recipe.model_fields.items():
        same = SlBasic.model_fields.get(setting)
        shared[setting] = same is not None and same.default == info.default
    return shared


def table_rows(page: str) -> Sequence[str]:
    lines = (DOCS / f"recipes/{page}.md").read_text().splitlines()
    return [line for line in lines if line.startswith("|")]


def is_listed(setting: str, rows: Sequence[str]) -> bool:
    """Return whether a row describes the setting, or one inside it."""
    return any(re.search(rf"`{re.escape(setting)}[`.]", row) for row in rows)
