"""DoRA: the numbers of peft, in training and in every path of sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from torch import nn

from adapters.fake.blobs import FakeBlobs
from adapters.local.hub import LocalHub
from adapters.peft.client import PeftTraining
from adapters.peft.model.dora import DoraLinear
from adapters.peft.model.linear import FusedLinear
from adapters.peft.model.lora_dropout import Dropout
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.model.network import ForwardMode
from adapters.peft.model.packed_lora import PackedLoraLinear
from adapters.peft.sampling.frozen_linear import FrozenLinear
from adapters.peft.sampling.paged.graphs import SideStream
from adapters.peft.sampling.paged.weights import PagedLinear
from kitchen.types import Array, Datum, Lora
from tests.support.tiny_gpt2 import tiny_gpt2
from tests.support.tiny_model import tiny_model

CPU = torch.device("cpu")
DORA = Lora(rank=4, alpha=8.0, seed=1, kind="dora")
TOKENS = np.random.default_rng(7).integers(3, 250, 40)
DATUM = Datum(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": np.ones(len(TOKENS) - 1)})


def biased_llama(folder: Path) -> Path:
    """A Llama whose linear layers have biases."""
    import transformers

    tiny_model(folder)
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    config.attention_bias = config.mlp_bias = True
    torch.manual_seed(3)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "llama with biases": biased_llama,
    "gpt2": tiny_gpt2,
    "llama with unembed": tiny_model,
}


@pytest.fixture
def training(tmp_path: Path) -> PeftTraining:
    hub = LocalHub(cache=str(tmp_path / "cache"))
    return PeftTraining(hub, FakeBlobs(), device="cpu", dtype="float32", threads=1)


def moved(trainer: Any) -> Any:
    """Move B and the magnitudes away from where they start."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in trainer.adapter.layers.values():
            nn.init.normal_(layer.b, std=0.1, generator=generator)
            layer.magnitude.mul_(1 + 0.2 * torch.randn(layer.magnitude.shape, generator=generator))
    return trainer


def reference(folder: Path, adapter: Any) -> Any:
    """The modules of peft with the same weights."""
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = peft.LoraConfig(
        r=4,
        lora_alpha=8,
        use_dora=True,
        target_modules=list(adapter.layers),
        fan_in_fan_out=adapter.transposed,
    )
    model = peft.get_peft_model(base, config).eval()
    tensors = adapter.tensors()
    found = peft.set_peft_model_state_dict(model, tensors)
    assert not found.unexpected_keys
    assert not [name for name in found.missing_keys if "lora" in name]
    return model


def scores(model: Any) -> torch.Tensor:
    """(T - 1,) nats."""
    ids = torch.from_numpy(TOKENS)[None]
    logits = model(input_ids=ids).logits[0, :-1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]


def sampled(training: PeftTraining, weights: Any) -> Array:
    with closing(training.sampler(weights)) as sampler:
        return sampler.logprobs(TOKENS).result()[1:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", BUILDERS)
def test_dora_equals_that_of_peft(kind: str, training: PeftTraining, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = BUILDERS[kind](tmp_path / "base")
    lora = Lora(rank=4, alpha=8.0, seed=1, kind="dora", train_unembed="unembed" in kind)
    session: Any = training.open(f"path:{folder}", lora)
    trainer = session.submit(moved).result()
    theirs = reference(folder, trainer.adapter)
    expected = scores(theirs)
    (-expected.sum()).backward()
    numbers = expected.detach().numpy()
    output = session.forward_backward([DATUM]).result()
    np.testing.assert_allclose(output.logprobs[0], numbers, atol=1e-5)
    gradients = {
        name.replace(".default", "").replace("vector.weight", "vector"): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    ours = trainer.adapter.named_parameters()
    assert gradients.keys() == ours.keys()
    for name, gradient in gradients.items():
        bound = 1e-5 * float(gradient.abs().max())
        np.testing.assert_allclose(ours[name].grad, gradient, atol=bound, rtol=1e-5, err_msg=name)
    trainer.discard_gradient()
    saved = session.save_weights("moved").result()
    session.close()
    training.export(saved, tmp_path / "adapter")
    training.export(saved, tmp_path / "merged", merged=True)
    opened: Any = peft.AutoPeftModelForCausalLM
    for read in (
        sampled(training, saved),
        sampled(training, f"path:{tmp_path / 'adapter'}"),
        sampled(training, f"path:{tmp_path / 'merged'}"),
        scores(opened.from_pretrained(str(tmp_path / "adapter"))).detach().numpy(),
        scores(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")).detach().numpy(),
    ):
        np.testing.assert_allclose(read, numbers, atol=2e-5)


def test_llamas_train_dora_by_their_modules(training: PeftTraining, tmp_path: Path) -> None:
    """The fused layers are of plain LoRA; sampling has them for DoRA too."""
    name = f"path:{tiny_model(tmp_path / 'base')}"
    session: Any = training.open(name, DORA)
    trainer = session.submit(lambda trainer: trainer).result()
    assert trainer.network.mode == ForwardMode.PACKED
    with closing(session.snapshot().result()) as sampler:
        assert sampler.model.result().network.mode == ForwardMode.FUSED
        untrained = sampler.logprobs(TOKENS).result()[1:]
    np.testing.assert_allclose(untrained, sampled(training, name), atol=1e-5)
    session.close()


def layer_of(size: int, dtype: torch.dtype, *, bias: bool = True, seed: int = 0) -> DoraLinear:
    """A DoRA layer of 48 inputs whose magnitudes differ slightly from the norms."""
    generator = torch.Generator().manual_seed(seed)
    base = nn.Linear(48, size, bias, dtype=dtype).requires_grad_(False)
    for parameter in base.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    layer = DoraLinear(base, base.weight, 4, 0.5, torch.float32, (48, size), CPU)
    nn.init.normal_(layer.a, std=0.3, generator=generator)
    nn.init.normal_(layer.b, std=0.3, generator=generator)
    with torch.no_grad():
        layer.magnitude.copy_(layer.row_norms())
        layer.magnitude.mul_(1 + 0.1 * torch.randn(size, generator=generator))
    return layer


def exact(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """y in float64, by the formula of the paper."""
    base = layer.base if isinstance(layer, LoraLinear) else layer
    weight, bias = base.weight.double(), 0 if base.bias is None else base.bias.double()
    if isinstance(layer, LoraLinear):
        weight = weight + layer.scale * layer.b.double() @ layer.a.double()
    if isinstance(layer, DoraLinear):
        weight = layer.magnitude.double()[:, None] * weight / weight.norm(dim=1, keepdim=True)
    return x.double() @ weight.t() + bias


@pytest.fixture(params=["", "amx_bf16", "AuthenticAMD avx2"])
def flags(request: pytest.FixtureRequest) -> Iterator[None]:
    from adapters.peft.runtime.cpu import assume_cpu_flags

    with assume_cpu_flags(*request.param.split()):
        yield


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_frozen_dora_in_all_linear_layers(dtype: torch.dtype, biased: bool, rows: int) -> None:
    first, last = (layer_of(size, dtype, bias=biased, seed=size) for size in (16, 24))
    plain = nn.Linear(48, 8, biased, dtype=dtype).requires_grad_(False)
    parts: list[Any] = [first, plain, last]
    x, residual = torch.randn(rows, 48).to(dtype), torch.randn(rows, 48).to(dtype)
    with torch.inference_mode():
        expected = torch.cat([exact(layer, x) for layer in parts], 1)
        for layer in (first, last):
            layer.freeze(dtype)
        fused = FusedLinear(parts)
        products = {
            "modules": lambda _: torch.cat([layer(x) for layer in parts], 1),
            "fused": lambda added: fused.forward(x, added)[0],
            "packed": lambda added: PackedLoraLinear(parts).forward(x, added)[0],
            "frozen": lambda added: FrozenLinear(fused).forward(x, added)[0],
        }
        tolerance = 1e-5 if dtype == torch.float32 else 0.03
        for name, product in products.items():
            for added in (None,) if name == "modules" else (None, residual):
                away = product(None if added is None else added.clone()).double() - expected
                away -= 0 if added is None else added
                assert away.abs().max() < tolerance * expected.abs().max(), name
        paged = PagedLinear(fused, (16, 8, 24)).forward(x, SideStream(CPU))
        out = paged.out.double()
        assert paged.low_rank is not None
        assert paged.b is not None
        for part, columns in enumerate((slice(0, 16), slice(16, 24), slice(24, 48))):
            low_rank = paged.low_rank[:, part * paged.rank : (part + 1) * paged.rank]
            out[:, columns] += low_rank.double() @ paged.b[:, columns].double()
        assert (out - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frozen_dora_shares_the_weights_of_its_base(dtype: torch.dtype) -> None:
    """Beside them there is only the packed copy."""
    layer = layer_of(16, dtype)
    layer.freeze(dtype)
    fused = FusedLinear([layer])
    assert FrozenLinear(fused).weight.data_ptr() == fused.weight.data_ptr()


def test_dora_in_training_is_never_computed_as_lora() -> None:
    with pytest.raises(TypeError, match="DoRA in training"):
        FusedLinear([layer_of(16, torch.float32)])


def test_small_magnitude_updates_survive_bfloat16() -> None:
    """Norms and magnitudes are float32, and multiply what was computed in bfloat16."""
    layer = layer_of(16, torch.bfloat16, bias=False)
    x = torch.randn(400, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    outputs = []
    for factor in (1.0, 1.001):  # bfloat16 has no number between 1 and 1.0078
        with torch.no_grad():
            layer.magnitude.copy_(layer.row_norms() * factor)
            outputs.append(layer(x).float())
    ratio = float((outputs[1] * outputs[0]).sum() / outputs[0].square().sum())
    assert ratio == pytest.approx(1.001, abs=2e-4)


def test_dropout_applies_to_the_whole_update() -> None:
    layer = layer_of(16, torch.float32)
    dropout, x = Dropout(0.5, 3, [layer]), torch.randn(1, 9, 48)
    with dropout.active(0, [(0, 9)]), torch.no_grad():
        got, dropped = layer(x), dropout(x, layer)
    bias: Any = layer.base.bias
    weight: Any = layer.base.weight
    update = exact(layer, dropped) - bias.double()
    expected = x.double() @ weight.double().t() + bias + update
    expected = expected - dropped.double() @ weight.double().t()
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


def test_rows_of_zeros_stay_finite() -> None:
    """As in the output layers of models whose vocabulary is padded."""
    layer = layer_of(16, torch.float32)
    with torch.no_grad():
        layer.b.zero_()
        weight: Any = layer.base.weight
        weight[3].zero_()
        layer.magnitude.copy_(layer.row_norms())
    out = layer(torch.randn(2, 48))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (layer.a, layer.magnitude))
