"""Every message that docs/troubleshooting.md quotes is one that the code can give."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
QUOTED = re.findall(r"^### `(.+)`$", PAGE.read_text(), re.MULTILINE)
GAP = "…"  # in a quotation: a part that differs from case to case


def texts(source: str) -> Iterator[str]:
    """All strings of a module, with a gap where a value is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def said() -> str:
    modules = [
        path
        for package in ("kitchen", "stages", "adapters")
        for path in (ROOT / package).rglob("*.py")
    ]
    return "\n\n".join(text for path in modules for text in texts(path.read_text()))


def test_there_are_some() -> None:
    assert len(QUOTED) >= 30


@pytest.mark.parametrize("message", QUOTED)
def test_the_message_is_in_the_code(message: str, said: str) -> None:
    assert message.strip(f"{GAP} ") in said
