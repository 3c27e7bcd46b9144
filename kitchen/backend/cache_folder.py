"""The folder of this user for files that can be made again, such as converted models."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return $KITCHEN_CACHE, or else the usual folder of the system: ~/.cache/crucible-kitchen."""
    chosen = os.environ.get("KITCHEN_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("crucible-kitchen", False)
