"""The docs build as a site, links resolve, search is offline, nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.commands import shell_output
from tests.support.pages import ROOT

pytestmark = pytest.mark.slow
LOADED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
)
STAGES = sorted(path.parent.name for path in (ROOT / "stages").glob("*/__init__.py"))
PACKAGES = ("kitchen", "kitchen.ports", *(f"stages.{name}" for name in STAGES))
LOADED_BY_CSS = re.compile(r"url\([\"']?(https?:[^)]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shell_output(ROOT, f"python -m mkdocs build --strict --site-dir '{folder}'", timeout=600)
    return folder


def test_every_page_is_built(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).with_suffix("") for path in docs.rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages - built == {Path("commands-not-run")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for pattern, suffix in ((LOADED, "html"), (LOADED_BY_CSS, "css")):
        files = list(site.rglob(f"*.{suffix}"))
        assert files
        for path in files:
            assert not pattern.findall(path.read_text()), path


def test_search_works_without_a_server(site: Path) -> None:
    assert "__index" in (site / "search/search_index.js").read_text()[:20]
    assert "javascripts/iframe-worker.js" in (site / "index.html").read_text()


def test_llms_txt_lists_every_page_but_the_decisions(site: Path) -> None:
    listed = set(re.findall(r"\]\((\S+?)\)", (site / "llms.txt").read_text()))
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    decisions = {page for page in pages if page.startswith("adr/")}
    assert listed == pages - decisions - {"index.html", "404.html"}


def test_the_api_pages_describe_everything_that_is_exported(site: Path) -> None:
    pages = "".join(path.read_text() for path in (site / "api").rglob("*.html"))
    described = set(re.findall(r'id="([\w.]+)"', pages))
    exported = {f"{name}.{each}" for name in PACKAGES for each in import_module(name).__all__}
    assert not exported - described
