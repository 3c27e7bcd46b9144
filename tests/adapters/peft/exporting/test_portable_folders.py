"""Exported folders: a model card, no folder of this machine, and files that others may read."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.local.hub import LocalHub
from kitchen.artifacts.export import Format
from kitchen.errors import BackendError
from kitchen.ports.hub import ModelInfo
from tests.support.export_kitchen import TOKENS, ExportKitchen
from tests.support.tiny_model import tiny_model

pytest.importorskip("torch")
pytest.importorskip("peft")


@pytest.fixture
def kitchen(tmp_path: Path) -> ExportKitchen:
    kitchen = ExportKitchen(tmp_path)
    tiny_model(kitchen.base)
    return kitchen


@pytest.mark.parametrize(
    ("form", "library"),
    [("adapter", "peft"), ("merged", "transformers"), ("gguf q8_0", "gguf")],
)
def test_exports_have_a_card_and_no_local_path(
    form: Format, library: str, kitchen: ExportKitchen, tmp_path: Path
) -> None:
    folder = tmp_path / "soup"
    before = os.umask(0o027)
    try:
        kitchen.export(kitchen.train(), folder, form)
    finally:
        os.umask(before)
    card = (folder / "README.md").read_text()
    assert f"library_name: {library}\n" in card
    assert "| base model | path:base |" in card
    for path in folder.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()
        if os.name != "nt":
            assert path.stat().st_mode & 0o777 == 0o640


class LicensedHub(LocalHub):
    """A hub that knows the licence of models, unless it is away."""

    away = False

    def info(self, model: str) -> ModelInfo:
        if self.away:
            raise BackendError("the hub is away")
        return replace(super().info(model), license="apache-2.0")


def test_a_card_has_the_licence_of_the_base(kitchen: ExportKitchen, tmp_path: Path) -> None:
    checkpoint = kitchen.train()
    kitchen.hub = hub = LicensedHub(cache=str(tmp_path / "cache"))
    for away, folder in ((False, tmp_path / "one"), (True, tmp_path / "two")):
        hub.away = away
        kitchen.export(checkpoint, folder, "adapter")
        card = (folder / "README.md").read_text()
        assert ("\nlicense: apache-2.0\n" in card) != away
        assert ("| its licence | apache-2.0 |" in card) != away


def test_the_base_model_is_found_beside_the_adapter(kitchen: ExportKitchen, tmp_path: Path) -> None:
    checkpoint = kitchen.train()
    kitchen.export(checkpoint, tmp_path / "soup", "adapter")
    config = json.loads((tmp_path / "soup/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "path:base"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("base", "soup"):
        shutil.move(tmp_path / name, elsewhere / name)
    sampler = kitchen.training.sampler(f"path:{elsewhere / 'soup'}")
    assert len(sampler.logprobs(TOKENS).result()) == len(TOKENS)
    sampler.close()
    shutil.move(elsewhere / "base", tmp_path / "another name")
    with pytest.raises(BackendError, match="put that folder beside the adapter's"):
        kitchen.training.lora(f"path:{elsewhere / 'soup'}")


def test_a_merged_adapter_folder_names_its_base(kitchen: ExportKitchen, tmp_path: Path) -> None:
    kitchen.export(kitchen.train(), tmp_path / "soup", "adapter")
    kitchen.export(f"path:{tmp_path / 'soup'}", tmp_path / "whole", "merged")
    assert "| base model | path:base |" in (tmp_path / "whole/README.md").read_text()
