"""Results that commands print, as JSON with --json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitchen.cli.console import console
from kitchen.cli.streams import answers
from kitchen.runs.jsonl import without_nan
from kitchen.safe_text import escape_json_controls
from kitchen.secrets import mask, masked


def as_json(value: Any) -> str:
    """Return a value as JSON text without secrets, and with control characters as escapes.

    Numbers that are not finite, which JSON lacks, become null.
    """
    shown = masked(without_nan(value))
    text = json.dumps(shown, indent=2, default=_masked_text, ensure_ascii=False)
    return escape_json_controls(text)


def print_json(value: Any) -> None:
    """Print the answer of a command as JSON to standard output."""
    print(as_json(value), file=answers())


def print_files(paths: Sequence[Path], *, json: bool) -> None:
    """Print the files that a command has written, a line each or as JSON."""
    if json:
        print_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        console().print(str(path), soft_wrap=True)


def _masked_text(value: Any) -> str:
    return mask(str(value))
