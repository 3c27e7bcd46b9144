"""The docs build as a site, links and anchors resolve, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import shell_output
from tests.support.pages import ROOT

LOADED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
)
LOADED_BY_CSS = re.compile(r"url\([\"']?(https?:[^)]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shell_output(ROOT, f"python -m mkdocs build --strict --site-dir '{folder}'")
    return folder


def test_every_page_is_built(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix("") for path in docs.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages - built == {Path("commands-not-run")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for pattern, suffix in ((LOADED, "html"), (LOADED_BY_CSS, "css")):
        for path in site.rglob(f"*.{suffix}"):
            assert not pattern.findall(path.read_text()), path
