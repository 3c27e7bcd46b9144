"""The stage packages re-export what recipes use, and import no heavy library."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import stages
from tests.support.imports import HEAVY, imported_by

ROOT = Path(next(iter(stages.__path__)))
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_package_exports_exist_and_shadow_no_module(package: str) -> None:
    module = import_module(f"stages.{package}")
    submodules = {path.stem for path in (ROOT / package).glob("*.py")}
    assert module.__doc__
    assert sorted(module.__all__) == sorted(set(module.__all__))
    assert all(hasattr(module, name) for name in module.__all__)
    assert not submodules & set(module.__all__)


def test_importing_stages_loads_no_heavy_library() -> None:
    _, modules = imported_by(f"from stages import {', '.join(PACKAGES)}")
    assert "stages.chat" in modules
    assert modules.isdisjoint(HEAVY)
