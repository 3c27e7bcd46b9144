"""Adapters by name, by module and class, and wrapping one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from adapters.local.hub import LocalHub
from kitchen.config.adapters import Kitchen, adapter_class, required_ports, validated_setting
from kitchen.errors import BackendError, ConfigError
from kitchen.ports import DatasetStore, HubClient


class Loud(HubClient):
    """A hub that wraps the local one."""

    over = "local"

    def __init__(self, wrapped: HubClient, word: str = "oh") -> None:
        self.wrapped, self.word = wrapped, word


class Itself(DatasetStore):
    over = f"{__name__}:Itself"

    def __init__(self, wrapped: DatasetStore) -> None:
        self.wrapped = wrapped


def test_uninstalled_adapter_is_found_by_module_and_class(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "from adapters.fake.datasets import FakeDatasets\nclass Mine(FakeDatasets): pass\n"
    (tmp_path / "pantry.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    kitchen = Kitchen.named({"training": "fake", "datasets": "pantry:Mine"})
    assert isinstance(kitchen.datasets, FakeDatasets)
    with pytest.raises(ConfigError, match=r"no datasets adapter 'pantry:Yours'"):
        adapter_class("datasets", "pantry:Yours")
    with pytest.raises(BackendError, match="cannot be imported"):
        adapter_class("datasets", "no_pantry:Mine")


class Quiet(FakeTraining):
    """Inherits its constructor."""


def test_inherited_constructor_gets_its_ports() -> None:
    kitchen = Kitchen.named({"training": f"{__name__}:Quiet", "blobs": "fake"})
    assert isinstance(kitchen.training, Quiet)
    assert required_ports(Quiet) == required_ports(FakeTraining) == {"blobs": "blobs"}


def test_adapter_wraps_the_one_that_it_names(
    tmp_path: Path,
) -> None:
    name = f"{__name__}:Loud"
    kitchen = Kitchen.named({"training": "fake", "hub": name}, {"hub": {"word": "ah"}})
    assert isinstance(kitchen.hub, adapter_class("hub", name))
    assert kitchen.hub.word == "ah"
    assert isinstance(kitchen.hub.wrapped, LocalHub)


def test_adapter_cannot_wrap_itself() -> None:
    with pytest.raises(ConfigError, match="must name that one"):
        Kitchen.named({"training": "fake", "datasets": f"{__name__}:Itself"})


@pytest.mark.parametrize("value", ["two", "al"])
def test_invalid_setting_names_all_types(value: str) -> None:
    known = {"devices": int | Literal["all"]}
    with pytest.raises(ConfigError, match=f"devices={value}: .* a valid integer or 'all'"):
        validated_setting("training", "peft", known, "devices", value)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Literal["a", "b"] | int, "x", "it=x: Input should be 'a' or 'b' or a valid integer"),
        (str | list[str], [1, 2], "it[0]=1: Input should be a valid string"),
        (list[int], [7, "x"], "it[1]=x: Input should be a valid integer, unable to parse"),
        (list[list[int]], [[1, "x"]], "it[0][1]=x: Input should be a valid integer, unable to"),
        (dict[str, list[int]], {"k": [1, "x"]}, "it[k][1]=x: Input should be a valid integer"),
        (float, "x", "it=x: Input should be a valid number, unable to parse"),
    ],
)
def test_an_invalid_setting_gets_one_message(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validated_setting("training", "peft", {"it": kind}, "it", value)
    assert str(caught.value).startswith(f"training.{message}")
    assert str(caught.value).count("Input") == 1
