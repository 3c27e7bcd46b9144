"""The names of TRL and Axolotl on the page for their users, and in error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kitchen.config.discovery import find_recipe
from kitchen.config.familiar_names import FAMILIAR, GUIDE
from kitchen.config.settings import leaf_keys

PAGE = Path(__file__).parents[2] / GUIDE
# names of Python arguments and commands, and names that recipes have too
NOT_SETTINGS = {
    "learning_rate",
    "lora_alpha",
    "lora_dropout",
    "max_steps",
    "warmup_steps",
    "beta",
    "temperature",
    "type",
    "rl",
    "axolotl",
}
LOSSES = {"ipo", "simpo", "orpo"}  # values of rl
RECIPES = ("sl_basic", "chat_sl", "dpo", "kto", "rl", "rlhf", "distillation", "evaluate")


def names_on_page() -> set[str]:
    """Return the settings in the first columns of the tables of TRL and Axolotl."""
    text = PAGE.read_text().partition("## From tinker-cookbook")[0]
    text = text[text.index("| setting in TRL") :]
    cells = re.findall(r"^\| ([^|]+) \|", text, flags=re.M)
    spans = re.findall(r"`([^`]+)`", " ".join(cells))
    names = {re.split(r"[:\s]", span)[0] for span in spans}
    return {name for name in names if re.fullmatch(r"[a-z][a-z0-9_]*", name)}


def all_keys() -> Iterator[tuple[str, ...]]:
    for name in RECIPES:
        yield from leaf_keys(find_recipe(f"recipes.{name}"))


def test_every_name_on_the_page_has_an_answer() -> None:
    assert not names_on_page() - set(FAMILIAR) - NOT_SETTINGS - LOSSES


def test_every_answer_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert not [name for name in FAMILIAR if f"`{name}" not in text]


def test_answers_name_settings_that_exist() -> None:
    known = {
        ".".join(keys) for name in RECIPES for keys in leaf_keys(find_recipe(f"recipes.{name}"))
    }
    for advice in FAMILIAR.values():
        named = re.match(r"use ([a-z_.]+)(?:=| |,|$)", advice)
        if named and named[1] != "the":
            assert named[1] in known or any(key.startswith(f"{named[1]}.") for key in known), advice


def test_no_answer_hides_a_setting() -> None:
    known = {keys[0] for keys in all_keys()}
    assert not known & set(FAMILIAR)
