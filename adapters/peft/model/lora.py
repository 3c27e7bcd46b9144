"""LoRA: low-rank weights beside frozen linear layers (Hu et al., 2021, arXiv:2106.09685)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import nn

from adapters.peft.adapter_folder import CHECK_BASE
from adapters.peft.model.dora import DoraLinear
from adapters.peft.model.lora_linear import LoraLinear
from adapters.peft.model.trained_weights import TrainedWeights
from kitchen.errors import BackendError
from kitchen.types import DEFAULT_ALPHA, Lora

PREFIX = "base_model.model."  # PEFT puts this before the name of each layer
ATTENTION, MLP = re.compile(r"attn|attention"), re.compile(r"mlp|ffn|feed_forward|experts|^fc")
ROUTERS = frozenset({"gate", "router"})  # of mixtures of experts: never trained

Tensors = Mapping[str, torch.Tensor]


class LoraAdapter(TrainedWeights):
    """All LoRA layers of a model, inserted into its modules."""

    needed_to_load = "the model, rank and layers that were saved"

    def __init__(
        self, model: Any, lora: Lora, dtype: torch.dtype, paths: Sequence[str] = ()
    ) -> None:
        """`paths`: the layers to adapt; by default those that the settings select.

        Raises BackendError if there are none.
        """
        self.lora = lora
        self.scale = lora_scale(lora)
        self.layers: dict[str, LoraLinear] = {}
        linear_paths = [path for path, module in model.named_modules() if _is_linear(module)]
        build = DoraLinear if lora.kind == "dora" else LoraLinear
        self.transposed = False  # some weights are stored as (in, out)
        for path in paths or target_paths(model, lora):
            parent, _, leaf = path.rpartition(".")
            base = model.get_submodule(path)
            weight, sizes = _weight_and_sizes(base)
            self.layers[path] = build(
                base, weight, lora.rank, self.scale, dtype, sizes, base.weight.device
            )
            setattr(model.get_submodule(parent), leaf, self.layers[path])
            self.transposed |= type(base).__name__ == "Conv1D"
        leaves = sorted({path.rpartition(".")[2] for path in self.layers})
        with_leaves = {path for path in linear_paths if path.rpartition(".")[2] in leaves}
        # PEFT's target_modules: names of modules, or whole paths where names match others too
        self.targets = leaves if with_leaves == set(self.layers) else list(self.layers)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the weights in training, under the names that PEFT gives them."""
        parameters = {}
        for path, layer in self.layers.items():
            for name, parameter in layer.named_weights().items():
                parameters[f"{PREFIX}{path}.{name}"] = parameter
        return parameters

    def initialise(self) -> None:
        """Draw A uniformly within ±1/√inputs and set B to zero, as PEFT does.

        The magnitudes of DoRA are those of the base. The draws depend only on the seed, not on the
        device.
        """
        generator = torch.Generator().manual_seed(self.lora.seed)
        with torch.no_grad():
            for layer in self.layers.values():
                uniform = torch.rand(layer.a.shape, generator=generator, dtype=torch.float64)
                uniform.mul_(2).sub_(1)
                layer.a.copy_((uniform / layer.a.shape[1] ** 0.5).to(layer.a.dtype))
                layer.b.zero_()
                if isinstance(layer, DoraLinear):
                    layer.magnitude.copy_(layer.row_norms())

    def freeze(self, tensors: Tensors, dtype: torch.dtype, source: str) -> None:
        """Load weights that stay fixed, in the base's dtype to save a cast at each token."""
        self.load(tensors, source)
        for layer in self.layers.values():
            layer.freeze(dtype)


def lora_scale(lora: Lora) -> float:
    """Return alpha / rank, by which B A x is multiplied; alpha / √rank for rsLoRA.

    Kalajdzievski, 2023, arXiv:2312.03732.
    """
    return lora_alpha(lora) / (sqrt(lora.rank) if lora.kind == "rslora" else lora.rank)


def lora_alpha(lora: Lora) -> float:
    """Return the alpha of LoRA weights."""
    return DEFAULT_ALPHA if lora.alpha is None else lora.alpha


def adapted_paths(tensors: Tensors, model: Any = None) -> list[str]:
    """Return the paths of the layers that weights under PEFT's names belong to.

    With a model, they are in its order, which is that of new LoRA weights.
    """
    end = ".lora_A.weight"
    paths = [name.removeprefix(PREFIX).removesuffix(end) for name in tensors if name.endswith(end)]
    return paths if model is None else [path for path, _ in model.named_modules() if path in paths]


def check_fit(model: Any, config: Mapping[str, Any], tensors: Tensors, source: str) -> None:
    """Raise BackendError unless a PEFT adapter's weights are those of its layers of the model."""
    _check_layers(model, tensors, source)
    _check_targets(model, config, tensors, source)


def _check_layers(model: Any, tensors: Tensors, source: str) -> None:
    """Raise BackendError unless each LoRA weight has a linear layer of the model that it fits."""
    modules = dict(model.named_modules())
    for path in adapted_paths(tensors):
        if path not in modules or not _is_linear(modules[path]):
            raise BackendError(
                f"{source}: the adapter has LoRA weights of {path}, but the base model "
                f"({type(model).__name__}) has no such linear layer; {CHECK_BASE}"
            )
        _, sizes = _weight_and_sizes(modules[path])
        a, b = (tensors[f"{PREFIX}{path}.lora_{matrix}.weight"] for matrix in "AB")
        if (a.shape[1], b.shape[0]) != sizes:
            raise BackendError(
                f"{source}: the LoRA weights of {path} are for a layer of {a.shape[1]} inputs and "
                f"{b.shape[0]} outputs, but that of the base model has {sizes[0]} and {sizes[1]}; "
                + CHECK_BASE
            )


def _check_targets(model: Any, config: Mapping[str, Any], tensors: Tensors, source: str) -> None:
    """Raise BackendError unless the weights are those of the layers that PEFT would adapt.

    PEFT ignores other weights, and adapts a layer without weights by nothing.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    names = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
    choice: Any = {name: config[name] for name in names if config.get(name) is not None}
    if choice.get("target_modules") in (None, "all-linear"):
        return
    paths = [path for path, module in model.named_modules() if _is_linear(module)]
    try:
        peft_config = LoraConfig(**choice)
        targets = {path for path in paths if check_target_module_exists(peft_config, path)}
    except (ValueError, TypeError, re.error) as error:
        raise BackendError(f"{source}: the layers in adapter_config.json: {error}") from error
    saved = set(adapted_paths(tensors))
    for path in sorted(targets ^ saved):
        has, lacks = ("targets", "weights") if path in targets else ("weights", "targets")
        raise BackendError(
            f"{source}: {path} is among the {has} of the adapter but not among its {lacks}; fetch "
            "or export the adapter again, or correct target_modules in adapter_config.json"
        )


def target_paths(model: Any, lora: Lora) -> list[str]:
    """Return the paths of the layers that the LoRA settings select, by the usual module names."""
    head = model.get_output_embeddings()
    paths = [
        path
        for path, module in model.named_modules()
        if module is not head and _is_linear(module) and _is_selected(path.split("."), lora)
    ]
    if lora.train_unembed:
        paths += [path for path, module in model.named_modules() if module is head]
    if not paths:
        raise BackendError(
            f"{type(model).__name__}: no linear layer of attention or MLP was found to train; set "
            "train_attn, train_mlp or train_unembed, or choose another architecture"
        )
    return paths


def report_untrained(model: Any, lora: Lora, paths: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence if a setting selects layers that LoRA does not reach."""
    name = type(model).__name__
    trained = ", ".join(dict.fromkeys(path.rpartition(".")[2] for path in paths))
    in_mlp = [path for path in paths if not any(map(ATTENTION.search, path.split(".")))]
    has_experts = any(
        parameter.dim() == 3 and "expert" in path for path, parameter in model.named_parameters()
    )
    if lora.train_mlp and has_experts:
        return (
            f"the experts of {name} are not trained: they are not linear layers, and have no LoRA "
            f"weights; only {trained} are trained",
        )
    if lora.train_mlp and not in_mlp:
        return (f"train_mlp found no layer of {name}: only {trained} are trained",)
    if lora.train_attn and len(in_mlp) == len(paths):
        return (f"train_attn found no layer of {name}: only {trained} are trained",)
    return ()


def _is_selected(parts: list[str], lora: Lora) -> bool:
    if parts[-1] in ROUTERS:
        return False
    if any(ATTENTION.search(part) for part in parts):
        return lora.train_attn
    return lora.train_mlp and any(MLP.search(part) for part in parts)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _weight_and_sizes(module: nn.Module) -> tuple[torch.Tensor | None, tuple[int, int]]:
    """Return the (out, in) matrix, None if quantised, and the numbers of inputs and outputs."""
    weight: Any = module.weight
    if type(module) is nn.Linear:
        return weight, (module.in_features, module.out_features)
    if type(module).__name__ == "Conv1D":  # GPT-2 stores (in, out)
        return weight.t(), (weight.shape[0], weight.shape[1])
    packed: Any = module  # quantised: its weight is not a matrix
    return None, (packed.in_features, packed.out_features)
