"""The digest that identifies a folder of weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.folders import model_sha256
from adapters.local.hub import LocalHub


@pytest.fixture
def hub(tmp_path: Path) -> LocalHub:
    for name, files in {
        "base": {"config.json": "{}", "model.safetensors": "0"},
        "own": {
            "adapter_config.json": config(tmp_path / "base", 16),
            "adapter_model.safetensors": "1",
        },
    }.items():
        (tmp_path / name).mkdir()
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    return LocalHub(cache=str(tmp_path / "cache"))


def config(base: Path, alpha: int) -> str:
    return json.dumps({"base_model_name_or_path": str(base), "r": 4, "lora_alpha": alpha})


@pytest.mark.parametrize(
    "change", ["model.safetensors", "adapter_model.safetensors", "adapter_config.json", "nothing"]
)
def test_an_adapters_digest_covers_weights_config_and_base(
    tmp_path: Path, hub: LocalHub, change: str
) -> None:
    model = f"path:{tmp_path / 'own'}"
    before = model_sha256(hub, model)
    if change == "adapter_config.json":
        (tmp_path / "own" / change).write_text(config(tmp_path / "base", 160))
    elif change != "nothing":
        (tmp_path / ("base" if change == "model.safetensors" else "own") / change).write_text(
            "other"
        )
    assert (model_sha256(hub, model) == before) is (change == "nothing")
