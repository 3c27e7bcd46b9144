"""A model's folder runs none of its code, and a damaged file of it is named."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from adapters.local.hub import LocalHub
from adapters.peft.model.base_model import load_base
from adapters.peft.sampling.preview import preview_model
from adapters.peft.settings import Settings
from adapters.tokenizer import load_tokenizer
from kitchen.errors import BackendError
from kitchen.types import Lora
from tests.support.tiny_model import tiny_model

CODE = """from pathlib import Path
Path({marker!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "odd"
class Model(LlamaForCausalLM):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def open_model(folder: Path) -> None:
    settings = Settings("cpu", "float32", 1, 0, False, "none", 1)
    load_base(LocalHub(), f"path:{folder}", settings, torch.device("cpu"), torch.float32)


def build_modules(folder: Path) -> None:
    preview_model(folder, Lora())


@pytest.mark.parametrize("open_it", [open_model, build_modules, load_tokenizer])
def test_custom_code_is_never_run(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_it: Callable[[Path], object],
) -> None:
    marker = tmp_path / "ran"
    (folder / "odd.py").write_text(CODE.format(marker=str(marker)))
    classes = {"AutoConfig": "odd.Config", "AutoModelForCausalLM": "odd.Model"}
    change(folder / "config.json", model_type="odd", architectures=["Model"], auto_map=classes)
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="Words",
        auto_map={"AutoTokenizer": [None, "odd.Words"]},
    )
    monkeypatch.setattr(sys, "stdin", StringIO("y\ny\ny\n"))
    with pytest.raises(BackendError, match=r"custom code \(auto_map\), which is never run"):
        open_it(folder)
    assert not marker.exists()
    assert sys.stdin.read() == "y\ny\ny\n"


@pytest.mark.parametrize("model_type", ["vit", "wav2vec2", "t5"])
@pytest.mark.parametrize("open_it", [open_model, build_modules])
def test_custom_code_of_no_language_model_is_not_run(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_it: Callable[[Path], object],
    model_type: str,
) -> None:
    """transformers knows the configuration, but no causal language model that has it."""
    marker = tmp_path / "ran"
    (folder / "odd.py").write_text(CODE.format(marker=str(marker)))
    classes = {"AutoModelForCausalLM": "odd.Model"}
    change(folder / "config.json", model_type=model_type, architectures=["Model"], auto_map=classes)
    monkeypatch.setattr(sys, "stdin", StringIO("y\ny\n"))
    with pytest.raises(BackendError, match=r"custom code \(auto_map\), which is never run"):
        open_it(folder)
    assert not marker.exists()
    assert sys.stdin.read() == "y\ny\n"


def test_known_architecture_ignores_custom_code(folder: Path) -> None:
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "odd.Model"})
    open_model(folder)


@pytest.mark.parametrize("kernel", ["kernels-community/flash-attn", "nobody/attention:run"])
def test_configuration_cannot_choose_a_kernel_of_the_hub(folder: Path, kernel: str) -> None:
    change(folder / "config.json", attn_implementation=kernel)
    open_model(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b"\xff" * 64),
        ("model.safetensors", b""),
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"no json"),
        ("tokenizer_config.json", b'{"a": '),
    ],
)
def test_damaged_file_is_named(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)
    open_it = load_tokenizer if file.startswith("tokenizer") else open_model
    with pytest.raises(BackendError, match=re.escape(str(folder / file))):
        open_it(folder)


@pytest.mark.parametrize(
    "changed", [{"vocab_size": 500}, {"intermediate_size": 96}, {"num_key_value_heads": 4}]
)
def test_weights_of_other_shapes_name_the_configuration(
    folder: Path, changed: dict[str, int]
) -> None:
    change(folder / "config.json", **changed)
    expected = rf"do not have the shapes that {re.escape(str(folder / 'config.json'))} gives"
    with pytest.raises(BackendError, match=expected):
        open_model(folder)
