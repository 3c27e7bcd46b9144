"""Facts of a model known without its weights: sizes, capped logits, and layers without LoRA."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import transformers

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.peft.sampling.preview import preview_model
from kitchen.errors import BackendError
from kitchen.types import FullWeights, Lora
from tests.support.tiny_model import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": None,
}
EXPERTS: dict[str, Any] = {
    **SIZES,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


def notes(folder: Path, lora: Lora) -> list[str]:
    training = PeftTraining(LocalHub(), FakeBlobs(), device="cpu")
    return [text for name, text in training.notes(f"path:{folder}", lora) if name == "note"]


def write(folder: Path, config: Any) -> Path:
    """Write a tiny model whose architecture is that of a configuration; its weights do not fit."""
    tiny_model(folder)
    config.save_pretrained(folder)
    return folder


def change(folder: Path, **values: Any) -> Path:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **values}))
    return folder


@pytest.mark.parametrize(
    "config",
    [
        transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4, decoder_sparse_step=1),
        transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4, mlp_only_layers=[0]),
        transformers.MixtralConfig(**SIZES, num_local_experts=4),
    ],
)
def test_experts_without_lora_are_named(tmp_path: Path, config: Any) -> None:
    folder = write(tmp_path, config)
    [note] = notes(folder, Lora())
    assert "experts" in note
    assert "only q_proj, k_proj, v_proj, o_proj" in note
    assert not notes(folder, Lora(train_mlp=False))


def test_a_model_that_is_trained_whole_has_no_notes(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path)
    assert not notes(folder, Lora())
    assert not notes(folder, Lora(train_attn=False))


@pytest.mark.parametrize(
    ("values", "options", "reason"),
    [
        ({}, {}, "yes: hand-written layers over packed tokens"),
        ({"hidden_act": "gelu"}, {}, "no: transformers over packed tokens, because its activation"),
        ({}, {"quantization": "4bit"}, "yes: hand-written layers over packed tokens"),
        ({}, {"trainable": Lora(dropout=0.1)}, "no dropout"),
        ({}, {"trainable": FullWeights()}, "do not train all weights"),
        ({"model_type": "qwen3"}, {}, "yes: "),
        ({"model_type": "phi3"}, {}, "no hand-written layers for the model type 'phi3'"),
        (
            {"model_type": "mistral", "sliding_window": 4096},
            {},
            "transformers, one sequence at a time, because it has sliding windows (4,096 tokens)",
        ),
        (
            {"model_type": "gemma2", "head_dim": 16, "sliding_window": None},
            {},
            "because it has sliding windows",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            {},
            "its rotary embeddings depend on the length (dynamic)",
        ),
    ],
)
def test_the_fast_path_is_previewed(
    tmp_path: Path, values: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    folder = change(tiny_model(tmp_path), **values)
    rows = dict(preview_model(folder, **{"trainable": Lora(), **options}))
    assert reason in rows["fast path (expected)"]


@pytest.mark.parametrize(
    ("values", "dtype", "graphs"),
    [
        ({"model_type": "phi3"}, torch.float32, "no, because there are no hand-written layers"),
        ({"model_type": "qwen3"}, torch.float32, "yes"),
        ({}, torch.float64, "no, because its weights are torch.float64"),
        ({"head_dim": 24}, torch.bfloat16, "no, because its heads have 24 features"),
        ({}, torch.bfloat16, "yes"),
    ],
)
def test_decoding_by_graphs_is_previewed_for_cuda(
    tmp_path: Path, values: dict[str, Any], dtype: Any, graphs: str
) -> None:
    folder = change(tiny_model(tmp_path), **values)
    rows = dict(preview_model(folder, Lora(), device=torch.device("cuda"), dtype=dtype))
    if find_spec("triton") is None and "hand-written" not in graphs:
        graphs = "no, because the package triton is not installed"
    assert rows["CUDA graphs (expected)"].startswith(graphs)
    cpu = torch.device("cpu")
    assert "CUDA graphs (expected)" not in dict(preview_model(folder, Lora(), device=cpu))


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**7},
        {"vocab_size": 10**12},
        {"hidden_size": 10**9},
        {"head_dim": 10**12},
        {"num_key_value_heads": 10**12},
        {"decoder_layers": 10**7},  # of BART
        {"n_layers": 10**7},  # of MPT
        {"n_embd": 10**9},  # of GPT-2
        {"ffn_dim": 10**12},  # of OPT
        {"n_shared_experts": 10**9},
        {"final_logit_softcapping": "30"},
        {"logits_scaling": 0},
        {"logit_scale": True},
    ],
)
def test_impossible_models_are_refused_before_loading(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    name = f"path:{change(tiny_model(tmp_path), **values)}"
    training = PeftTraining(LocalHub(), FakeBlobs(), device="cpu")
    [setting] = values
    for lookup in (training.find, training.tokenizer, lambda model: training.notes(model, Lora())):
        with pytest.raises(BackendError, match=rf"config\.json.*{setting}"):
            lookup(name)
    session = training.open(name, Lora())
    with pytest.raises(BackendError, match=setting):
        session.facts()


def test_capped_attention_is_computed_as_capped(tmp_path: Path) -> None:
    import numpy as np
    import torch

    tiny_model(tmp_path)
    config = transformers.Gemma2Config(
        **SIZES,
        initializer_range=0.5,
        final_logit_softcapping=None,
        attn_logit_softcapping=1.0,
        query_pre_attn_scalar=1,
    )
    torch.manual_seed(0)
    build: Any = transformers.Gemma2ForCausalLM
    model = build(config)
    model.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    tokens = np.arange(3, 40)
    with torch.inference_mode():
        logits = model.eval()(torch.from_numpy(tokens)[None]).logits[0].double()
    expected = logits.log_softmax(-1)[np.arange(36), tokens[1:]].numpy()
    training = PeftTraining(LocalHub(), FakeBlobs(), device="cpu", dtype="float32", threads=1)
    sampler = training.sampler(f"path:{tmp_path}")
    assert np.allclose(sampler.logprobs(tokens).result()[1:], expected, atol=1e-3)
    sampler.close()


def test_missing_hardware_is_found_by_a_check(tmp_path: Path) -> None:
    training = PeftTraining(LocalHub(), FakeBlobs(), device="cuda:97")
    with pytest.raises(BackendError, match="CUDA"):
        training.find(f"path:{tiny_model(tmp_path)}")
