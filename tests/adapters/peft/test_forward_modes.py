"""Architectures of all kinds: their forward modes, and results against transformers and PEFT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.local.blobs import LocalBlobs
from adapters.local.hub import LocalHub
from adapters.peft.batching.prefix_groups import MIN_CARRIED
from adapters.peft.client import PeftTraining
from adapters.peft.model.network import ForwardMode, matches_logits
from adapters.peft.sampling.preview import preview_model
from adapters.peft.session import PeftSession
from kitchen.errors import BackendError
from kitchen.types import Datum, Lora

Opened = Callable[..., PeftSession]
BOUND = 1e-4  # relative, of a gradient in float32
# tokens: of windows, and of whatever else changes with length; beyond the trial of
# `choose_forward_mode`
REACH = 40
SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
MIXED = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": REACH}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": REACH,
}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0] * 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Architecture:
    """An architecture, and how it is best computed."""

    name: str  # of transformers, what comes before ForCausalLM
    mode: ForwardMode
    changed: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.note}".strip()


KINDS = [
    Architecture("Llama", ForwardMode.FUSED),
    Architecture(
        "Llama",
        ForwardMode.FUSED,
        {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        "biases",
    ),
    Architecture("Llama", ForwardMode.PACKED, {"hidden_act": "gelu"}, "gelu"),
    Architecture("Mistral", ForwardMode.FUSED, {"sliding_window": None}),
    Architecture("Qwen2", ForwardMode.FUSED, {}, "biases of queries, keys and values"),
    Architecture("Qwen2", ForwardMode.SEQUENTIAL, {**MIXED, "use_sliding_window": True}, "windows"),
    Architecture("Qwen3", ForwardMode.FUSED, {"head_dim": 16}),
    Architecture(
        "SmolLM3", ForwardMode.PACKED, {"no_rope_layers": [1, 0]}, "no positions in a layer"
    ),
    Architecture(
        "Granite",
        ForwardMode.PACKED,
        {"residual_multiplier": 0.3, "embedding_multiplier": 4.0, "logits_scaling": 0.3},
        "multipliers",
    ),
    Architecture("Cohere", ForwardMode.PACKED, {"logit_scale": 3.0}, "scaled logits"),
    Architecture("Cohere2", ForwardMode.SEQUENTIAL, {**MIXED, "logit_scale": 3.0}, "windows"),
    Architecture(
        "Gemma2",
        ForwardMode.SEQUENTIAL,
        {
            **MIXED,
            "head_dim": 8,
            "query_pre_attn_scalar": 1,
            "attn_logit_softcapping": 1.0,
            "final_logit_softcapping": 1.5,
        },
        "capped logits",
    ),
    Architecture("Helium", ForwardMode.PACKED, {"head_dim": 8}, "pairs turned side by side"),
    Architecture("Gemma", ForwardMode.PACKED, {"head_dim": 8}),
    Architecture("Gemma3", ForwardMode.SEQUENTIAL, {**MIXED, "head_dim": 8}, "windows"),
    Architecture("GPT2LMHead", ForwardMode.PACKED, {"n_inner": 48}),
    Architecture(
        "OPT", ForwardMode.PACKED, {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0}
    ),
    Architecture(
        "Phi",
        ForwardMode.PACKED,
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        },
        "half turned",
    ),
    Architecture("Bloom", ForwardMode.SEQUENTIAL, {"n_layer": 2, "n_head": 4}, "ALiBi"),
    Architecture("Falcon", ForwardMode.SEQUENTIAL, {"alibi": True}, "ALiBi"),
    Architecture("Mixtral", ForwardMode.PACKED, {**EXPERTS, "sliding_window": None}, "experts"),
    Architecture("GraniteMoe", ForwardMode.PACKED, EXPERTS, "experts"),
    Architecture(
        "Qwen3_5",
        ForwardMode.SEQUENTIAL,
        {
            "head_dim": 8,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
        "linear attention",
    ),
    Architecture(
        "Lfm2", ForwardMode.SEQUENTIAL, {"layer_types": ["conv", "full_attention"]}, "convolutions"
    ),
]
CHANGED_LOGITS = ("Granite", "Cohere", "Cohere2", "Gemma2")
# each of these agrees on the trial of `choose_forward_mode`, and is another model beyond it
MISTAKEN = [
    Architecture("Mistral", ForwardMode.SEQUENTIAL, {"sliding_window": REACH}, "windows"),
    Architecture(
        "Phimoe",
        ForwardMode.SEQUENTIAL,
        {**EXPERTS, "sliding_window": REACH},
        "windows by mask alone",
    ),
    Architecture(
        "Ministral3",
        ForwardMode.PACKED,
        {
            "sliding_window": None,
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 16.0,
                "original_max_position_embeddings": REACH,
                "llama_4_scaling_beta": 0.5,
            },
        },
        "queries scaled by position",
    ),
    Architecture(
        "Llama",
        ForwardMode.SEQUENTIAL,
        {"rope_parameters": {**LONG, **FACTORS}},
        "turns slower when longer",
    ),
]
# each of these agrees in bfloat16 only because the bound is wider there
ROUNDED = [
    Architecture(
        "SmolLM3",
        ForwardMode.PACKED,
        {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "initializer_range": 0.06},
        "no positions in a layer",
    ),
    Architecture(
        "Llama", ForwardMode.PACKED, {"hidden_act": "gelu", "initializer_range": 0.02}, "gelu"
    ),
    Architecture(
        "Lfm2",
        ForwardMode.SEQUENTIAL,
        {"layer_types": ["conv", "full_attention"], "initializer_range": 0.02},
        "convolutions",
    ),
]
DEEPSEEK = Architecture(
    "DeepseekV3",
    ForwardMode.PACKED,
    {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
)


# its positions are counted from the start of the cache, where short prompts have padding
BART = Architecture(
    "Bart",
    ForwardMode.SEQUENTIAL,
    {
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
        "init_std": 0.15,
        "pad_token_id": 0,
        "is_encoder_decoder": False,
        "forced_eos_token_id": None,
    },
)
# with the cache of attention, its states are lost between tokens
MAMBA = Architecture("Mamba", ForwardMode.SEQUENTIAL, {"state_size": 8})


# with the mechanisms of Llama, Bloom and Mixtral
REPEATED = ("Mistral", "Falcon ALiBi", "GraniteMoe experts")


def cases(*kinds: Architecture) -> list[Any]:
    """Return parameters; architectures that repeat the mechanism of another are slow tests."""
    return [
        pytest.param(kind, id=str(kind), marks=[pytest.mark.slow] if str(kind) in REPEATED else [])
        for kind in kinds
    ]


@pytest.fixture
def folder(kind: Architecture, tmp_path: Path) -> Path:
    """Random weights, of norms and biases too, which would be 1 and 0."""
    import transformers

    library: Any = transformers
    build = getattr(library, f"{kind.name}ForCausalLM", None) or getattr(
        library, f"{kind.name}Model"
    )
    torch.manual_seed(0)
    model = build(build.config_class(**{**SIZES, **kind.changed}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.save_pretrained(tmp_path)
    return tmp_path


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{token}": token for token in range(96)}, "w0"))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2")
    tokenizer.save_pretrained(folder)


@pytest.fixture
def batch() -> list[Datum]:
    """Sequences that begin alike, and longer than `REACH`, among others that are neither."""
    rng = np.random.default_rng(4)
    start = rng.integers(3, 96, 50)
    ends = (start, 31), (start[:0], 26), (start, 12), (start[:20], 10)
    tokens = [np.concatenate([shared, rng.integers(3, 96, own)]) for shared, own in ends]
    return weighted_datums(tokens, rng)


def weighted_datums(sequences: Sequence[Any], rng: np.random.Generator) -> list[Datum]:
    return [
        Datum(ids[:-1], {"target_tokens": ids[1:], "weights": rng.normal(size=len(ids) - 1)})
        for ids in sequences
    ]


def plain(folder: Path, adapter: Any) -> Any:
    """transformers' own modules with PEFT's own layers, and the same weights."""
    import peft
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=list(adapter.layers), fan_in_fan_out=adapter.transposed
    )
    model = peft.get_peft_model(base, config).eval()
    assert not peft.set_peft_model_state_dict(model, adapter.tensors()).unexpected_keys
    return model


def plain_step(model: Any, batch: Sequence[Datum]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient, one sequence after the other."""
    total = 0.0
    for datum in batch:
        logits = model(input_ids=torch.from_numpy(datum.tokens)[None], use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits, -1).gather(
            1, torch.from_numpy(datum.targets)[:, None]
        )[:, 0]
        loss = -(logprobs * torch.from_numpy(datum.loss_inputs["weights"])).sum()
        loss.backward()
        total += float(loss)
    return total, {
        name.replace(".default", ""): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def stirred(trainer: Any) -> Any:
    """B is moved off zero, so that A has a gradient too."""
    for layer in trainer.adapter.layers.values():
        torch.nn.init.normal_(
            layer.b, std=0.1, generator=torch.Generator().manual_seed(layer.b.shape[0])
        )
    return trainer.adapter


def compare(opened: Opened, folder: Path, batch: Sequence[Datum]) -> None:
    session = opened(Lora(rank=4, alpha=8.0, seed=1))
    adapter = session.submit(stirred).result()
    loss, expected = plain_step(plain(folder, adapter), batch)
    output = session.forward_backward(batch).result()
    assert output.metrics["loss:sum"] == pytest.approx(loss, rel=BOUND, abs=BOUND * len(batch))
    largest = max(float(gradient.norm()) for gradient in expected.values())
    named = adapter.named_parameters()
    assert named.keys() == expected.keys()
    for name, gradient in expected.items():
        away = float((named[name].grad - gradient).norm())
        assert away < BOUND * max(float(gradient.norm()), 0.05 * largest), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", cases(*KINDS))
def test_architectures_train_as_in_transformers(
    kind: Architecture, folder: Path, opened: Opened, batch: list[Datum]
) -> None:
    assert opened().submit(lambda trainer: trainer).result().base.mode == kind.mode
    expected = dict(preview_model(folder, Lora()))["fast path (expected)"]
    assert expected.startswith("yes: " if kind.mode == ForwardMode.FUSED else "no: ")
    assert kind.mode in expected
    compare(opened, folder, batch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in CHANGED_LOGITS], ids=str)
def test_changed_logits_are_scored_as_they_are_sampled(
    kind: Architecture, folder: Path, opened: Opened, batch: list[Datum]
) -> None:
    """The output layer has LoRA weights too."""
    write_tokenizer(folder)
    session = opened(Lora(rank=4, alpha=8.0, seed=1, train_unembed=True))
    model = plain(folder, session.submit(stirred).result())
    sampler: Any = session.snapshot().result()
    [drawn] = sampler.sample(batch[2].tokens, max_tokens=12, seed=5).result()
    tokens = np.concatenate([batch[2].tokens, drawn.tokens])
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens)[None]).logits[0].double()
    expected = logits.log_softmax(-1)
    scored = expected[np.arange(len(tokens) - 1), tokens[1:]].numpy()
    datum = Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.ones(len(scored))})
    [trained_on] = session.forward([datum]).result().logprobs
    _, top = sampler.top_logprobs(tokens, 3).result()
    np.testing.assert_allclose(trained_on, scored, atol=1e-5)
    np.testing.assert_allclose(sampler.logprobs(tokens).result()[1:], scored, atol=1e-5)
    np.testing.assert_allclose(drawn.logprobs, scored[-len(drawn.tokens) :], atol=1e-5)
    np.testing.assert_allclose(top[1:], expected[:-1].topk(3).values, atol=1e-5)
    sampler.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name == "Qwen3"], ids=str)
def test_a_prefix_of_several_micro_batches_has_normalised_keys(
    kind: Architecture, folder: Path, opened: Opened
) -> None:
    rng = np.random.default_rng(4)
    start = rng.integers(3, 96, MIN_CARRIED + 6)
    sequences = [np.concatenate([start, rng.integers(3, 96, own)]) for own in (9, 20, 14)]
    compare(partial(opened, micro_batch_tokens=80), folder, weighted_datums(sequences, rng))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MISTAKEN, ids=str)
def test_length_dependent_models_train_correctly(
    kind: Architecture, folder: Path, opened: Opened, batch: list[Datum]
) -> None:
    compare(opened, folder, batch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", cases(*KINDS, *MISTAKEN, BART))
def test_batched_sampling_matches_generate(
    kind: Architecture, folder: Path, client: Callable[..., Any]
) -> None:
    """Prompts are shorter and longer than REACH, and completions pass it."""
    from transformers import AutoModelForCausalLM

    write_tokenizer(folder)
    library: Any = AutoModelForCausalLM
    model = library.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [
        np.random.default_rng(length).integers(3, 90, length)
        for length in (5, REACH - 8, REACH + 20, 5)
    ]
    sampler = client(sample_batch=3).sampler("tiny")
    drawn = [sampler.sample(prompt, max_tokens=16, temperature=0.0) for prompt in prompts]
    for prompt, future in zip(prompts, drawn, strict=True):
        ids = model.generate(torch.from_numpy(prompt)[None], max_new_tokens=16, do_sample=False)
        [one] = future.result()
        assert one.tokens.tolist() == ids[0, len(prompt) :].tolist()
    sampler.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [MAMBA], ids=str)
def test_a_model_that_would_be_decoded_wrongly_is_refused(
    kind: Architecture, folder: Path, client: Callable[..., Any]
) -> None:
    write_tokenizer(folder)
    sampler = client().sampler("tiny")
    assert np.isfinite(sampler.logprobs(np.arange(3, 9)).result()[1:]).all()
    with pytest.raises(BackendError, match="a MambaForCausalLM cannot be sampled"):
        sampler.sample(np.arange(3, 9), max_tokens=2).result()
    sampler.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [DEEPSEEK], ids=str)
def test_values_may_be_narrower_than_queries(
    kind: Architecture, opened: Opened, batch: list[Datum]
) -> None:
    session = opened(Lora(rank=4, alpha=8.0, seed=1))
    assert (
        session.submit(lambda trainer: trainer).result().base.mode == kind.mode
    )  # so its logits agreed
    assert np.isfinite(session.forward_backward(batch).result().metrics["loss:sum"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", cases(*KINDS, *ROUNDED))
def test_forward_mode_does_not_depend_on_dtype(kind: Architecture, opened: Opened) -> None:
    assert opened(dtype="bfloat16").submit(lambda trainer: trainer).result().base.mode == kind.mode


class FixedNetwork:
    """A network that gives fixed logits."""

    device, min_shared = torch.device("cpu"), 16

    def __init__(self, logits: torch.Tensor, dtype: torch.dtype) -> None:
        self.hidden, self.head = lambda layout: logits, torch.nn.Identity()
        self.model = torch.nn.Linear(1, 1, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "same", "astray", "by", "agrees"),
    [
        (torch.float32, False, 100, 5e-4, True),
        (torch.float32, False, 1, 2e-3, False),
        (torch.bfloat16, False, 100, 0.08, True),
        (torch.bfloat16, False, 100, 0.12, False),
        (torch.bfloat16, False, 20, 2.0, True),
        (torch.bfloat16, False, 30, 2.0, False),
        (torch.bfloat16, True, 100, 5e-4, True),
        (torch.bfloat16, True, 1, 2e-3, False),
    ],
)
def test_mode_trial_tolerates_rounding_only(
    dtype: torch.dtype, same: bool, astray: int, by: float, agrees: bool
) -> None:
    expected = torch.randn(100, 50, generator=torch.Generator().manual_seed(0))
    changed_logits = expected.clone()
    changed_logits[:astray] += by * expected.std()
    network: Any = FixedNetwork(changed_logits, dtype)
    assert matches_logits(network, [np.arange(100)], [expected], same_operations=same) is agrees


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_packaged_model_is_fused(dtype: str, tmp_path: Path) -> None:
    training = PeftTraining(LocalHub(), LocalBlobs(str(tmp_path)), device="cpu", dtype=dtype)
    session = training.open("packaged:smollm2-135m-instruct", Lora(rank=4))
    assert session.submit(lambda trainer: trainer).result().base.mode == ForwardMode.FUSED
    session.close()
