"""An empty folder as the current one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import in_folder


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """An empty folder as the current one."""
    with in_folder(tmp_path):
        yield tmp_path
