"""A user's folder with a recipe, as the current one, and a hub on loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_fixtures import hub_server
from tests.support.soup import write_soup_recipe

__all__ = ["hub_server"]


@pytest.fixture
def soup(here: Path) -> Iterator[Path]:
    """The current folder with recipes/soup.py in it."""
    write_soup_recipe(here)
    yield here
    sys.modules.pop("recipes.soup", None)  # other tests have another module of that name
