"""The site of the docs builds, all its links and anchors lead somewhere, and it fetches nothing
from elsewhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")
    }
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages - built == {Path("commands-not-run")}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    found = {
        (path.name, url)
        for path in site.rglob("*.html")
        for url in FETCHED.findall(path.read_text())
    }
    found |= {
        (path.name, url)
        for path in site.rglob("*.css")
        for url in re.findall(r"url\([\"']?(https?:[^)]+)\)", path.read_text())
    }
    assert not found
