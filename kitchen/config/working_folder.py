"""The current folder, which may hold recipes, stages and adapters of the user."""

from __future__ import annotations

import os
import sys


def add_cwd_to_path() -> None:
    """Put the current folder first on the path, so that `recipes/mine.py` in it is found."""
    folder = os.getcwd()
    if sys.path[0] != folder:
        sys.path.insert(0, folder)
