"""Every message that docs/troubleshooting.md quotes is one that the code can give."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.pages import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
QUOTED = re.findall(r"^### `(.+)`$", PAGE.read_text(), re.MULTILINE)
GAP = "…"  # in a quotation: a part that differs from case to case


def strings(source: str) -> Iterator[str]:
    """Yield all strings of a module, with a gap for each value that is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_page_quotes_many_messages() -> None:
    assert len(QUOTED) >= 30


def test_every_quoted_message_is_in_the_code() -> None:
    packages = ("kitchen", "stages", "adapters")
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    texts = "\n\n".join(text for path in modules for text in strings(path.read_text()))
    missing = [message for message in QUOTED if message.strip(f"{GAP} ") not in texts]
    assert not missing
