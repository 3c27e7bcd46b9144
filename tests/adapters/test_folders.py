"""The digest of a folder of weights, and the files of its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.folders import model_sha256, tokenizer_files
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


@pytest.mark.parametrize(
    "vocabulary",
    ["tokenizer.json", "sentencepiece.bpe.model", "spm.model", "tekken.json", "qwen.tiktoken"],
)
def test_a_tokenizer_is_found_by_its_vocabulary(tmp_path: Path, vocabulary: str) -> None:
    template = "additional_chat_templates/rag.jinja"
    others = ["model.safetensors", "config.json", "original/tokenizer.json"]
    for name in (template, "generation_config.json", *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert tokenizer_files(tmp_path) == {}
    (tmp_path / vocabulary).touch()
    expected = {template, "generation_config.json", vocabulary}
    assert tokenizer_files(tmp_path) == {name: tmp_path / name for name in expected}
