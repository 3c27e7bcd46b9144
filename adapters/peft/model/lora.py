"""Low-rank weights beside the frozen linear layers of a model (Hu et al., 2021, arXiv:2106.09685)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from adapters.peft.model.lora_dropout import Dropout
from kitchen.errors import BackendError, ConfigError
from kitchen.types import Lora

ALPHA = 32.0  # at every rank, unless set
PREFIX = "base_model.model."  # what PEFT puts before the name of each layer
ATTENTION, MLP = re.compile(r"attn|attention"), re.compile(r"mlp|ffn|feed_forward|experts|^fc")
ROUTERS = frozenset({"gate", "router"})  # of mixtures of experts: left as they are

Tensors = Mapping[str, torch.Tensor]


class LoraLinear(nn.Module):
    """y = W x + scale · B A x, with W frozen in the dtype of the base, A and B in float32 or
    better.
    """

    def __init__(
        self,
        base: nn.Module,
        weight: torch.Tensor | None,
        rank: int,
        scale: float,
        dtype: torch.dtype,
        sizes: tuple[int, int],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        # (out, in), or None where the base is no plain matrix; a list, for it is not ours
        self.weight = [weight]
        self.a = nn.Parameter(torch.zeros(rank, sizes[0], dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(sizes[1], rank, dtype=dtype, device=device))
        self.dropout: Dropout | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight[0]
        if weight is not None and self.dropout is None:
            apply: Any = _Fused.apply
            fused: torch.Tensor = apply(x, weight, self.base.bias, self.a, self.b, self.scale)
            return fused
        dropped = x if self.dropout is None else self.dropout(x, self)
        low = nn.functional.linear(dropped, self.a.to(x.dtype))
        out: torch.Tensor = self.base(x) + nn.functional.linear(
            low, _scaled(self.b, self.scale, x.dtype)
        )
        return out


class _Fused(torch.autograd.Function):
    """LoraLinear in as few passes over memory as there can be; on a CPU they take as long as the
    products.

    The products with A and B are in the dtype of the base, as in mixed-precision training; their
    gradients are added up in the dtype of A and B.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        low, weight = flat @ a.to(x.dtype).t(), weight.to(x.dtype)
        out = flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
        out.addmm_(low, _scaled(b, scale, x.dtype).t())
        ctx.save_for_backward(flat, weight, a, b, low)
        ctx.scale, ctx.shape = scale, x.shape
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        flat, weight, a, b, low = ctx.saved_tensors
        out = gradients[0].reshape(-1, gradients[0].shape[-1])
        down = out @ _scaled(b, ctx.scale, out.dtype)
        db = (out.t() @ low).to(b.dtype).mul_(ctx.scale)
        da = (down.t() @ flat).to(a.dtype)
        dx = (
            (out @ weight).addmm_(down, a.to(out.dtype)).view(ctx.shape)
            if ctx.needs_input_grad[0]
            else None
        )
        return dx, None, None, da, db, None


class Adapter:
    """All the LoRA layers of one model, put into its tree of modules; raises BackendError where
    nothing is found.
    """

    def __init__(
        self, model: Any, lora: Lora, dtype: torch.dtype, paths: Sequence[str] = ()
    ) -> None:
        """`paths`: the layers; those that the settings mean, unless told."""
        self.lora = lora
        self.scale = scale(lora)
        self.layers: dict[str, LoraLinear] = {}
        linear = [path for path, module in model.named_modules() if _is_linear(module)]
        self.transposed = False
        for path in paths or target_paths(model, lora):
            parent, _, leaf = path.rpartition(".")
            base = model.get_submodule(path)
            weight, sizes = _matrix(base)
            self.layers[path] = LoraLinear(
                base, weight, lora.rank, self.scale, dtype, sizes, base.weight.device
            )
            setattr(model.get_submodule(parent), leaf, self.layers[path])
            self.transposed |= type(base).__name__ == "Conv1D"
        leaves = sorted({path.rpartition(".")[2] for path in self.layers})
        same = {path for path in linear if path.rpartition(".")[2] in leaves} == set(self.layers)
        self.targets = leaves if same else list(self.layers)  # as PEFT names them

    def named(self) -> dict[str, nn.Parameter]:
        """The weights in training, under the names that PEFT gives them."""
        return {
            f"{PREFIX}{path}.lora_{side.upper()}.weight": getattr(layer, side)
            for path, layer in self.layers.items()
            for side in "ab"
        }

    def start(self) -> None:
        """A uniform within ±1/√inputs, B zero, as PEFT does; from the seed alone, on any device."""
        generator = torch.Generator().manual_seed(self.lora.seed)
        with torch.no_grad():
            for layer in self.layers.values():
                drawn = (
                    torch.rand(layer.a.shape, generator=generator, dtype=torch.float64)
                    .mul_(2)
                    .sub_(1)
                )
                layer.a.copy_(drawn / layer.a.shape[1] ** 0.5)
                layer.b.zero_()

    def freeze(self, tensors: Tensors, dtype: torch.dtype, source: str) -> None:
        """Take these weights for good, in the dtype of the base, which saves casting them at each
        token.
        """
        self.load(tensors, source)
        for layer in self.layers.values():
            layer.b = nn.Parameter((layer.b.detach() * layer.scale).to(dtype), requires_grad=False)
            layer.a, layer.scale = (
                nn.Parameter(layer.a.detach().to(dtype), requires_grad=False),
                1.0,
            )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies on the CPU."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.named().items()}

    def load(self, tensors: Tensors, source: str) -> None:
        """Raises ConfigError where the layers or their shapes are others than ours."""
        named = self.named()
        ours = {name: tuple(tensor.shape) for name, tensor in named.items()}
        theirs = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise ConfigError(
                    f"{source}: {name} has shape {theirs.get(name)} there and {ours.get(name)} "
                    "here; "
                    "open the session with the model, rank and layers that were saved"
                )
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(tensors[name])


def scale(lora: Lora) -> float:
    """What B A x is multiplied by: alpha / rank."""
    return (ALPHA if lora.alpha is None else lora.alpha) / lora.rank


def adapted_paths(tensors: Tensors) -> list[str]:
    """The layers that some weights under PEFT's names belong to."""
    end = ".lora_A.weight"
    return [name.removeprefix(PREFIX).removesuffix(end) for name in tensors if name.endswith(end)]


def target_paths(model: Any, lora: Lora) -> list[str]:
    """Paths of the layers that the LoRA settings mean, by what architectures call their parts."""
    head = model.get_output_embeddings()
    found = [
        path
        for path, module in model.named_modules()
        if module is not head and _is_linear(module) and _meant(path.split("."), lora)
    ]
    if lora.train_unembed:
        found += [path for path, module in model.named_modules() if module is head]
    if not found:
        raise BackendError(
            f"{type(model).__name__}: no linear layer of attention or MLP was found to train; set "
            "train_attn, train_mlp or train_unembed, or choose another architecture"
        )
    return found


def _meant(parts: list[str], lora: Lora) -> bool:
    if parts[-1] in ROUTERS:
        return False
    if any(ATTENTION.search(part) for part in parts):
        return lora.train_attn
    return lora.train_mlp and any(MLP.search(part) for part in parts)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _matrix(module: nn.Module) -> tuple[torch.Tensor | None, tuple[int, int]]:
    """(out, in) and (inputs, outputs)."""
    weight: Any = module.weight
    if type(module) is nn.Linear:
        return weight, (module.in_features, module.out_features)
    if type(module).__name__ == "Conv1D":  # GPT-2 keeps (in, out)
        return weight.t(), (weight.shape[0], weight.shape[1])
    packed: Any = module  # quantised: its weight is no matrix
    return None, (packed.in_features, packed.out_features)


def _scaled(b: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    return (b if scale == 1 else b * scale).to(dtype)
