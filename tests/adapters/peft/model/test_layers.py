"""Hand-written layers in float64, against autograd through transformers with W + scale · B A."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adapters.peft.batching.packed_layout import PackedLayout, build_layout
from adapters.peft.model.decoder import Decoder, fused_obstacle, make_weights_contiguous
from adapters.peft.model.elementwise import Elementwise, RMSNorm, TorchElementwise
from adapters.peft.model.layer_kernels import LayerKernels
from adapters.peft.model.linear import FusedLinear, make_contiguous
from adapters.peft.model.lora import LoraAdapter
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.model.packed_lora import PackedLoraLinear
from adapters.peft.model.varlen_attention import VarlenAttention
from kitchen.types import Array, Lora
from tests.support.torch_kernels import TorchKernel

RNG = np.random.default_rng(2)
START = RNG.integers(0, 90, 30)
SEQUENCES = [
    np.concatenate([START, RNG.integers(0, 90, 17)]),
    np.concatenate([START, RNG.integers(0, 90, 6)]),
    RNG.integers(0, 90, 9),
    RNG.integers(0, 90, 150),
    START[:1],
]
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


def llama(kind: str = "Llama", **changed: Any) -> Any:
    """Two layers in float64, every number of them random, norms and biases too."""
    import transformers

    library: Any = transformers
    config = getattr(library, f"{kind}Config")(
        **{
            "vocab_size": 90,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "attn_implementation": "sdpa",
            **changed,
        }
    )
    build = getattr(library, f"{kind}ForCausalLM")
    model = build(config).double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(drawn * 0.2 + (parameter.ndim == 1))
    assert fused_obstacle(model) is None
    make_weights_contiguous(model)
    return model


def plain_states(
    model: Any, adapter: LoraAdapter, sequences: Sequence[Array]
) -> list[torch.Tensor]:
    """Return the (T, H) states of each sequence, computed one by one."""
    plain, merged = (
        of_float64(model),
        {
            f"{path}.weight": layer.base.weight + layer.scale * layer.b @ layer.a
            for path, layer in adapter.layers.items()
        },
    )
    return [
        torch.func.functional_call(
            plain,
            merged,
            kwargs={"input_ids": torch.from_numpy(tokens)[None], "output_hidden_states": True},
        ).hidden_states[-1][0]
        for tokens in sequences
    ]


def of_float64(model: Any) -> Any:
    """The same model with torch's norms: those of transformers always compute in float32."""
    plain = copy.deepcopy(model)
    for path, module in model.named_modules():
        if hasattr(module, "variance_epsilon"):
            norm = nn.RMSNorm(len(module.weight), eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            plain.set_submodule(path, norm)
    return plain


def adapted(model: Any, lora: Lora, leaves: Sequence[str]) -> tuple[Any, LoraAdapter]:
    """A copy of the modules with low-rank weights, B away from zero, in the layers called so."""
    tree = copy.deepcopy(model, {id(shared): shared for shared in model.parameters()})
    paths = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and any(path.endswith(leaf) for leaf in leaves)
    ]
    adapter = LoraAdapter(tree, lora, torch.float64, paths)
    adapter.initialise()
    for layer in adapter.layers.values():
        nn.init.normal_(layer.b, std=0.3, generator=torch.Generator().manual_seed(len(paths)))
    return tree, adapter


def no_stop() -> None:
    pass


def gpu_kernels(elementwise: Elementwise) -> LayerKernels:
    """The kernels of a GPU, with attention by plain operations."""
    return LayerKernels(
        PackedLoraLinear,
        elementwise,
        lambda kv_heads, scale: VarlenAttention(TorchKernel(), kv_heads, scale),
    )


def compare(
    model: Any,
    leaves: Sequence[str],
    alpha: float = 8.0,
    *,
    checkpointing: bool = False,
    kernels: LayerKernels | None = None,
) -> None:
    tree, adapter = adapted(model, Lora(rank=4, alpha=alpha), leaves)
    lies: PackedLayout = build_layout(SEQUENCES, torch.device("cpu"))
    assert lies.shared_lengths[1] == len(START)
    decoder = Decoder(tree, checkpointing=checkpointing, kernels=kernels)
    got = decoder.hidden(lies, no_stop)
    expected = plain_states(model, adapter, SEQUENCES)
    gradients = [random(len(tokens), model.config.hidden_size) for tokens in SEQUENCES]
    for places, states in zip(lies.slots, expected, strict=True):
        torch.testing.assert_close(got[places], states, **EXACT)
    weights = list(adapter.named_parameters().values())
    theirs = torch.autograd.grad(
        sum((s * g).sum() for s, g in zip(expected, gradients, strict=True)), weights
    )
    ours = torch.autograd.grad(
        sum((got[p] * g).sum() for p, g in zip(lies.slots, gradients, strict=True)), weights
    )
    for name, mine, other in zip(adapter.named_parameters(), ours, theirs, strict=True):
        assert float(other.abs().max()) > 1e-3, name
        torch.testing.assert_close(
            mine, other, rtol=1e-8, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("alpha", [4.0, 10.0])  # over a rank of 4: times 1, and times 2.5
@pytest.mark.parametrize("biases", [False, True])
def test_layers_match_autograd_with_all_projections(
    biases: bool, alpha: float, checkpointing: bool
) -> None:
    compare(llama(attention_bias=biases, mlp_bias=biases), ALL, alpha, checkpointing=checkpointing)


@pytest.mark.parametrize(
    "leaves",
    [
        ("q_proj",),
        ("k_proj",),
        ("v_proj", "up_proj"),
        ("o_proj",),
        ("gate_proj", "q_proj", "v_proj"),
        ("down_proj",),
        ("1.self_attn.k_proj", "1.mlp.up_proj"),
        ("0.mlp.down_proj",),
    ],
)
def test_layers_match_autograd_with_some_projections(leaves: tuple[str, ...]) -> None:
    compare(llama(), leaves)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 8},
        {"head_dim": 2, "num_attention_heads": 6},
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 5000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
        {"rms_norm_eps": 0.5},
        {"num_hidden_layers": 1},
    ],
    ids=str,
)
def test_layers_match_autograd_in_other_shapes(changed: dict[str, Any]) -> None:
    compare(llama(**changed), ALL)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_layers_match_autograd_with_kernels_of_gpus(biases: bool, checkpointing: bool) -> None:
    model = llama(attention_bias=biases, mlp_bias=biases)
    compare(model, ALL, checkpointing=checkpointing, kernels=gpu_kernels(TorchElementwise()))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kernels", [None, gpu_kernels(TorchElementwise())])
def test_layers_match_autograd_with_norms_of_queries_and_keys(
    kernels: LayerKernels | None, checkpointing: bool
) -> None:
    model = llama("Qwen3", head_dim=8)
    compare(model, ALL, checkpointing=checkpointing, kernels=kernels)


@pytest.mark.parametrize(
    "leaves", [("q_proj",), ("v_proj", "up_proj"), ("1.mlp.down_proj",), ("0.self_attn.o_proj",)]
)
def test_some_projections_match_autograd_with_kernels_of_gpus(leaves: tuple[str, ...]) -> None:
    compare(llama(), leaves, kernels=gpu_kernels(TorchElementwise()))


def test_states_without_lora_need_no_gradient() -> None:
    model = llama()
    lies = build_layout(SEQUENCES, torch.device("cpu"))
    states = Decoder(model).hidden(lies, no_stop)
    assert not states.requires_grad
    ids_batch = torch.from_numpy(SEQUENCES[1])[None]
    expected = of_float64(model)(input_ids=ids_batch, output_hidden_states=True).hidden_states[-1][
        0
    ]
    torch.testing.assert_close(states[lies.slots[1]], expected, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_matches_transformers(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    inner: Any = LlamaRMSNorm(64, eps=0.01)
    nn.init.normal_(inner.weight)
    x, gradient = random(7, 64).to(dtype).requires_grad_(), random(7, 64).to(dtype)
    expected = inner.to(dtype)(x)
    norm, near = (
        RMSNorm(inner),
        {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5},
    )
    out, spread = norm.forward(x.detach())
    torch.testing.assert_close(out, expected.detach(), **near)
    [expected_gradient] = torch.autograd.grad(expected, x, gradient)
    torch.testing.assert_close(
        norm.backward(gradient.clone(), x.detach(), spread), expected_gradient, **near
    )


def test_rope_matches_transformers_and_its_transpose() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    angles = random(9, 3)
    cos, sin = angles.cos(), angles.sin()
    whole, x, y = random(9, 5, 6), random(9, 5, 6), random(9, 4, 6)
    expected, _ = apply_rotary_pos_emb(
        x.transpose(0, 1)[None],
        x.transpose(0, 1)[None],
        torch.cat([cos, cos], -1)[None],
        torch.cat([sin, sin], -1)[None],
    )
    part = whole[:, :4]  # as the layers do: a view of queries and keys beside values
    part.copy_(x[:, :4])
    last = whole[:, 4].clone()
    rope = cos[:, None], sin[:, None]
    TorchElementwise().rotate(part, rope)
    torch.testing.assert_close(part, expected[0].transpose(0, 1)[:, :4], **EXACT)
    torch.testing.assert_close(whole[:, 4], last, rtol=0, atol=0)
    back = y.clone()
    TorchElementwise().rotate(back, rope, back=True)
    torch.testing.assert_close((part * y).sum(), (x[:, :4] * back).sum(), **EXACT)


def linears(biases: bool, *sizes: int) -> list[nn.Linear]:
    torch.manual_seed(len(sizes))
    return [
        nn.Linear(6, size, bias=biases, dtype=torch.float64).requires_grad_(False) for size in sizes
    ]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("trained", [(), (1,), (0, 2), (0, 1, 2)])
def test_a_fused_linear_equals_its_layers(
    trained: tuple[int, ...], biases: bool, together: bool
) -> None:
    layers: list[Any] = linears(biases, 4, 3, 5)
    if together:
        make_contiguous(layers)
    for place in trained:
        base = layers[place]
        layers[place] = LoraLinear(
            base, base.weight, 2 + place, 0.5, torch.float64, (6, base.out_features), CPU
        )
        nn.init.normal_(layers[place].a)
        nn.init.normal_(layers[place].b)
    product = FusedLinear(layers)
    first = layers[0].base if 0 in trained else layers[0]
    assert (product.weight.data_ptr() == first.weight.data_ptr()) == together
    x, gradient, onto = random(8, 6).requires_grad_(), random(8, 12), random(8, 12)
    expected = torch.cat([plain(layer, x) for layer in layers], -1)
    expected_gradients = torch.autograd.grad(expected, [x, *product.trainable], gradient)
    with torch.no_grad():
        out, down = product.forward(x)
        torch.testing.assert_close(out, expected, **EXACT)
        torch.testing.assert_close(product.forward(x, onto)[0], expected + onto, **EXACT)
        dx, gradients = product.backward(gradient, x, down)
    assert len(product.trainable) == len(gradients) == 2 * len(trained)
    for got, expected_gradient in zip([dx, *gradients], expected_gradients, strict=True):
        torch.testing.assert_close(got, expected_gradient, **EXACT)


CPU = torch.device("cpu")


def plain(layer: Any, x: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, LoraLinear):
        return plain(layer.base, x) + layer.scale * x @ layer.a.T @ layer.b.T
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def test_make_contiguous_keeps_weights_as_views() -> None:
    layers = linears(True, 4, 3)
    before = [layer.weight.clone() for layer in layers]
    make_contiguous(layers)
    assert all(torch.equal(layer.weight, was) for layer, was in zip(layers, before, strict=True))
    product = FusedLinear(layers)
    product.weight.mul_(2)
    assert product.bias is not None
    product.bias.zero_()
    assert all(
        torch.equal(layer.weight, 2 * was) for layer, was in zip(layers, before, strict=True)
    )
    assert not any(layer.bias.any() for layer in layers)


def saved_numbers(checkpointing: bool) -> int:
    """Return the count of numbers that a forward pass saves for the backward pass."""
    sizes = list[int]()

    def record(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.numel())
        return x

    tree, _ = adapted(llama(), Lora(rank=4), ALL)
    layout = build_layout(SEQUENCES, torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        Decoder(tree, checkpointing=checkpointing).hidden(layout, no_stop)
    return sum(sizes)


def test_checkpointing_saves_fewer_activations() -> None:
    assert saved_numbers(checkpointing=True) < 0.25 * saved_numbers(checkpointing=False)
