"""Adapters by name, by module and class, and over one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.local.hub import LocalHub
from kitchen.config.adapters import Kitchen, adapter_class
from kitchen.errors import BackendError, ConfigError
from kitchen.ports import DatasetStore, HubClient


class Loud:
    """A hub over the local one."""

    over = "local"

    def __init__(self, beside: HubClient, word: str = "oh") -> None:
        self.beside, self.word = beside, word


class Itself:
    over = f"{__name__}:Itself"

    def __init__(self, beside: DatasetStore) -> None:
        self.beside = beside


def test_a_class_of_ones_own_is_found_by_its_module(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "from adapters.fake.datasets import FakeDatasets\nclass Mine(FakeDatasets): pass\n"
    (tmp_path / "pantry.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Kitchen.named({"training": "fake", "datasets": "pantry:Mine"})
    assert isinstance(found.datasets, FakeDatasets)
    with pytest.raises(ConfigError, match=r"no datasets adapter 'pantry:Yours'"):
        adapter_class("datasets", "pantry:Yours")
    with pytest.raises(BackendError, match="cannot be imported"):
        adapter_class("datasets", "no_pantry:Mine")


def test_an_adapter_that_asks_for_its_own_port_is_given_the_one_that_it_names(
    tmp_path: Path,
) -> None:
    name = f"{__name__}:Loud"
    found = Kitchen.named({"training": "fake", "hub": name}, {"hub": {"word": "ah"}})
    assert isinstance(found.hub, adapter_class("hub", name))
    assert found.hub.word == "ah"
    assert isinstance(found.hub.beside, LocalHub)


def test_an_adapter_cannot_be_put_over_itself() -> None:
    with pytest.raises(ConfigError, match="must name another one"):
        Kitchen.named({"training": "fake", "datasets": f"{__name__}:Itself"})
