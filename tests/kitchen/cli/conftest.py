"""A user's folder, outside the repository, as the current one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.soup import write_soup_recipe


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """An empty folder as the current one; `sys.path` is restored."""
    path = sys.path[:]
    with contextlib.chdir(tmp_path):
        yield tmp_path
    sys.path[:] = path


@pytest.fixture
def soup(here: Path) -> Iterator[Path]:
    """The current folder with recipes/soup.py in it."""
    write_soup_recipe(here)
    yield here
    sys.modules.pop("recipes.soup", None)  # other tests have another module of that name
