"""Facts of a model known without its weights: sizes, capped logits, and layers without LoRA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import transformers

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from kitchen.errors import BackendError
from kitchen.types import Lora
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
    return list(training.notes(f"path:{folder}", lora))


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
