"""PEFT adapter folders: which configurations are supported, and checks that refuse the others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from adapters.folders import (
    CONFIG,
    is_adapter,
    model_config,
    read_config,
    require_base_model,
)
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient
from kitchen.types import Lora

if TYPE_CHECKING:
    import torch

WEIGHTS = "adapter_model.safetensors"
# fields that do not change what saved LoRA weights compute; `target_modules` and the other choices
# of layers are compared with the saved weights
_NEUTRAL_FIELDS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "eva_config",  # of the initialisation only
        "exclude_modules",
        "fan_in_fan_out",  # peft corrects it by the type of each layer
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",  # of training only
        "megatron_core",  # without megatron_config
        "peft_version",
        "qalora_group_size",  # without use_qalora
        "revision",
        "runtime_config",
        "target_modules",
    }
)
_SUPPORTED_VALUES: Mapping[str, Sequence[Any]] = MappingProxyType(
    {
        "peft_type": ("LORA",),
        "task_type": (None, "CAUSAL_LM"),
        "bias": ("none",),
        "use_rslora": (None, True, False),
        "use_dora": (None, True, False),
        # these leave the base weights as they are
        "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    }
)
_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "alora_invocation_tokens": "aLoRA takes effect only after its invocation tokens",
        "alpha_pattern": "some layers have an alpha of their own",
        "bias": "the adapter has trained biases",
        "init_lora_weights": "this initialisation may have changed the base weights",
        "layer_replication": "the adapter is for a model with copied layers",
        "lora_bias": "the LoRA weights have biases",
        "modules_to_save": "whole modules were trained besides the LoRA weights",
        "peft_type": "the adapter is not LoRA",
        "rank_pattern": "some layers have a rank of their own",
        "target_parameters": "parameters that are not linear layers, such as experts, are adapted",
        "task_type": "the adapter is not for a causal language model",
        "trainable_token_indices": "token embeddings were trained",
    }
)
_UNKNOWN = "its effect is not known"
_MERGE = (
    "only plain LoRA, rsLoRA and DoRA are supported; if peft can merge the adapter into its base "
    "model (merge_and_unload), do that, and give the folder of the result"
)
CHECK_BASE = (
    f"check that base_model_name_or_path in {CONFIG} is the model that the adapter was trained on"
)
Shapes = Mapping[str, tuple[int, ...]]
_TENSOR = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<matrix>[AB])\.weight")
_MAGNITUDE = re.compile(r"(?P<layer>base_model\.model\..+)\.lora_magnitude_vector")


@dataclass(frozen=True)
class AdapterFolder:
    """A PEFT adapter whose configuration and shapes of weights were checked."""

    name: str  # of the weights
    folder: Path
    config: Mapping[str, Any]
    lora: Lora
    base: str  # name of the base model

    def tensors(self) -> dict[str, torch.Tensor]:
        """Load the LoRA weights; raises BackendError for one that is not a finite number."""
        from safetensors.torch import load_file

        tensors = load_file(self.folder / WEIGHTS)
        for key, tensor in tensors.items():
            if not tensor.float().isfinite().all():
                raise BackendError(
                    f"{self.name}: {self.folder / WEIGHTS}: {key} has values that are not finite "
                    "numbers: the file is damaged, or training diverged; fetch or export the "
                    "adapter again, or use an earlier one"
                )
        return tensors


def read_adapter(hub: HubClient, name: str) -> AdapterFolder | None:
    """Fetch an adapter and check its configuration, shapes and base; None for a whole model.

    Raises BackendError, which names the field or tensor, for an adapter that is not supported. The
    base model is found, but not fetched.
    """
    folder = hub.fetch(name)
    if not is_adapter(folder):
        return None
    config = read_config(folder)
    lora = _supported_lora(config, f"{name}: {CONFIG}")
    shapes = _adapter_shapes(name, folder)
    _check_shapes(shapes, lora, f"{name}: {WEIGHTS}")
    base = require_base_model(name, folder)
    _find_base(hub, base, name)
    if base.startswith("path:"):
        _check_base(hub.fetch(base), shapes, name)
    return AdapterFolder(name, folder, config, lora, base)


def _find_base(hub: HubClient, base: str, name: str) -> None:
    """Raise BackendError, without a network, if the base model of an adapter cannot be found."""
    field = f"its base model (base_model_name_or_path in {CONFIG})"
    try:
        hub.find(base)
        is_nested = base.startswith("path:") and is_adapter(hub.fetch(base))
    except BackendError as error:
        hint = ""
        if base.startswith("path:") and not Path(base.removeprefix("path:")).is_absolute():
            hint = "; or put that folder beside the adapter's"
        raise BackendError(f"{name}: {field} cannot be found: {error}{hint}") from error
    if is_nested:
        raise BackendError(
            f"{name}: {field} is {base!r}, which is an adapter itself; merge that one first "
            "(kitchen export --merged), and name the folder of the result there"
        )


def _supported_lora(config: Mapping[str, Any], source: str) -> Lora:
    """Return the kind, rank and alpha; raises BackendError for an unsupported configuration."""
    problems = list(_unsupported_fields(config))
    if problems:
        texts = [
            f"{name} is {json.dumps(config.get(name))} ({_REASONS.get(name, _UNKNOWN)})"
            for name in problems
        ]
        raise BackendError(f"{source}: {'; '.join(texts)}; {_MERGE}")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise BackendError(f"{source}: r is {json.dumps(rank)}, but must be a number above 0")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise BackendError(f"{source}: lora_alpha is {json.dumps(alpha)}, but must be a number")
    if alpha == 0:
        raise BackendError(
            f"{source}: lora_alpha is 0, so the adapter has no effect on its base model; correct "
            "it, or use the base model"
        )
    rank_stabilised = bool(config.get("use_rslora"))
    if config.get("use_dora"):  # with both, the alpha that scales by the same number
        return Lora(rank, alpha=alpha * (rank**0.5 if rank_stabilised else 1.0), kind="dora")
    return Lora(rank, alpha=float(alpha), kind="rslora" if rank_stabilised else "lora")


def _unsupported_fields(config: Mapping[str, Any]) -> Iterator[str]:
    if "peft_type" not in config:
        yield "peft_type"
    for name, value in config.items():
        if name in _SUPPORTED_VALUES:
            if value not in _SUPPORTED_VALUES[name]:
                yield name
        elif name not in _NEUTRAL_FIELDS | {"r", "lora_alpha"} and value:
            yield name


def _adapter_shapes(name: str, folder: Path) -> Shapes:
    if not (folder / WEIGHTS).is_file():
        raise BackendError(
            f"{name}: the adapter's folder has no {WEIGHTS}; save it again with "
            "safe_serialization=True (pickled weights are not opened)"
        )
    return _read_shapes(folder / WEIGHTS, f"{name}: {WEIGHTS}", "fetch or export the adapter again")


def _read_shapes(file: Path, source: str, advice: str) -> Shapes:
    """Return the shape of each tensor without reading the numbers; raises BackendError."""
    import safetensors

    try:
        with safetensors.safe_open(file, "numpy") as opened:
            names = list(opened.keys())
            return {key: tuple(opened.get_slice(key).get_shape()) for key in names}
    except Exception as error:
        raise BackendError(f"{source} is damaged ({error}); {advice}") from error


def _check_shapes(shapes: Shapes, lora: Lora, source: str) -> None:
    """Raise BackendError unless the tensors are pairs of A (r, in) and B (out, r)."""
    again = "fetch or export the adapter again"
    if not shapes:
        raise BackendError(f"{source} has no weights; {again}")
    if lora.kind == "dora":
        shapes = _without_magnitudes(shapes, source)
    for name, shape in sorted(shapes.items()):
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise BackendError(
                f"{source} has the tensor {name}, which is not a LoRA weight of a linear layer; "
                + _MERGE
            )
        is_a = match["matrix"] == "A"
        if len(shape) != 2 or shape[0 if is_a else 1] != lora.rank:
            expected = f"({lora.rank}, inputs)" if is_a else f"(outputs, {lora.rank})"
            raise BackendError(
                f"{source}: {name} has shape {shape}, but r={lora.rank} in {CONFIG} needs "
                f"{expected}; {again}"
            )
        partner = name.replace(*(("lora_A", "lora_B") if is_a else ("lora_B", "lora_A")))
        if partner not in shapes:
            raise BackendError(f"{source} has {name} but not {partner}; {again}")


def _without_magnitudes(shapes: Shapes, source: str) -> Shapes:
    """Return the shapes of A and B; raises BackendError unless each layer has magnitudes (out,)."""
    matches = {name: match for name in shapes if (match := _MAGNITUDE.fullmatch(name))}
    layers = {name.removesuffix(".lora_B.weight") for name in shapes if ".lora_B." in name}
    for layer in sorted(layers | {match["layer"] for match in matches.values()}):
        magnitude, b = (
            shapes.get(f"{layer}.lora_magnitude_vector"),
            shapes.get(f"{layer}.lora_B.weight"),
        )
        if magnitude is None or b is None or magnitude != b[:1]:
            raise BackendError(
                f"{source}: {layer}.lora_magnitude_vector has shape {magnitude}, but use_dora in "
                f"{CONFIG} needs a number for each row of lora_B, which has shape {b}; fetch or "
                "export the adapter again"
            )
    return {name: shape for name, shape in shapes.items() if name not in matches}


def _check_base(folder: Path, shapes: Shapes, name: str) -> None:
    """Raise BackendError if the files of a base model show that an adapter does not fit it.

    A layer may have another name there than in the model, so `check_fit` has the last word.
    """
    config = model_config(folder)
    if "quantization_config" in config:  # the weights are packed
        return
    base_shapes = dict[str, tuple[int, ...]]()
    for file in folder.glob("*.safetensors"):
        base_shapes |= _read_shapes(file, f"{name}: {file}", "fetch or copy the base model again")
    depth = config.get("num_hidden_layers")
    for layer in (match["layer"] for match in map(_TENSOR.fullmatch, shapes) if match):
        a, b = (shapes[f"base_model.model.{layer}.lora_{matrix}.weight"] for matrix in "AB")
        _check_sizes(name, layer, (a[1], b[0]), base_shapes.get(f"{layer}.weight", (b[0], a[1])))
        index = re.search(r"\blayers\.(\d+)\.", layer)
        if index and isinstance(depth, int) and int(index[1]) >= depth:
            raise BackendError(
                f"{name}: the adapter has LoRA weights of {layer}, but the base model has only "
                f"{depth} layers; {CHECK_BASE}"
            )


def _check_sizes(name: str, layer: str, sizes: tuple[int, int], weight: Sequence[int]) -> None:
    """Raise BackendError unless LoRA weights of these inputs and outputs fit a weight."""
    if sorted(sizes) != sorted(weight):  # GPT-2 stores (in, out), others (out, in)
        raise BackendError(
            f"{name}: the LoRA weights of {layer} are for a layer of {sizes[0]} inputs and "
            f"{sizes[1]} outputs, but the weight of the base model has the shape {tuple(weight)}; "
            + CHECK_BASE
        )
