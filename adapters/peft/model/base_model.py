"""Frozen base models, shared by all sessions and samplers that use them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from adapters.folders import base_model_name, is_adapter, why_not_opened
from adapters.peft.model.config_checks import check_config
from adapters.peft.model.decoder import fused_obstacle, make_weights_contiguous
from adapters.peft.model.hf_attention import use_tiled_attention
from adapters.peft.model.network import ForwardMode, choose_forward_mode
from adapters.peft.settings import Settings
from adapters.progress_bars import progress_bars_disabled
from kitchen.backend.work import reporting
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient

# nothing is fetched, and no code of the folder is run
_OFFLINE = {"local_files_only": True, "trust_remote_code": False}
# a configuration may name others, such as kernels of the hub, which are code
_IMPLEMENTATIONS = {
    "_attn_implementation": ("sdpa", "eager"),
    "_experts_implementation": ("eager", "grouped_mm", "batched_mm"),
}


@dataclass(frozen=True, eq=False)
class BaseModel:
    """The weights of a base model, shared by all sessions and samplers that use it.

    A session that trains all weights has a separate one.
    """

    name: str
    folder: Path
    sha256: str
    model: Any  # of transformers, frozen
    mode: ForwardMode

    @property
    def parameters(self) -> int:
        """The number of parameters; those in 4 bits count as what they were before."""
        return sum(_size(parameter) for parameter in self.model.parameters())

    def copy(self) -> BaseModel:
        """Copy the modules and the weights, which are frozen in the copy."""
        model = copy.deepcopy(self.model).requires_grad_(False)
        if fused_obstacle(model) is None:
            make_weights_contiguous(model)
        return replace(self, model=model)

    def copy_modules(self) -> Any:
        """Copy the modules, but not the weights, so that LoRA layers can be inserted."""
        return copy.deepcopy(self.model, {id(shared): shared for shared in self.model.parameters()})


def load_base(
    hub: HubClient, name: str, settings: Settings, device: torch.device, dtype: torch.dtype
) -> BaseModel:
    """Load a base model.

    Raises BackendError for an unknown name, for an adapter's folder and for an architecture that is
    not supported.
    """
    folder = hub.fetch(name)
    if is_adapter(folder):
        raise BackendError(
            f"{name} is a LoRA adapter, not a whole model: sample from it as it is, or open its "
            f"base model {base_model_name(folder)!r} for training"
        )
    return open_base(name, folder, hub.sha256(name), settings, device, dtype)


def open_base(
    name: str,
    folder: Path,
    sha256: str,
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
) -> BaseModel:
    """Open the folder of a whole model; raises BackendError."""
    with reporting(f"Loading {_short_name(name)} (reading {_megabytes(folder)})"):
        model = _open(folder, settings, device, dtype)
    model.requires_grad_(False).eval()
    if settings.quantization == "none":
        model.to(device)
    else:
        keep_weights_as_stored(model)
    if settings.quantization == "none" and fused_obstacle(model) is None:
        make_weights_contiguous(model)
    if model.config._attn_implementation == "sdpa":
        use_tiled_attention(model)
    return BaseModel(name, folder, sha256, model, choose_forward_mode(name, model))


def keep_weights_as_stored(model: Any) -> None:
    """Turn off the layout of 4-bit weights in which CPUs with bfloat16 instructions only infer.

    bitsandbytes would move weights to it in the first pass without a gradient, in place, and would
    then compute later passes, those with a gradient included, without their backward pass.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _size(parameter: Any) -> int:
    """Return the number of weights, of which a byte of a 4-bit parameter holds two."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())


def _short_name(name: str) -> str:
    """Return the name of a model without its owner or folder."""
    return Path(name.rpartition(":")[2]).name or name


def _megabytes(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return f"{size / 1e6:,.0f} MB"


def _open(folder: Path, settings: Settings, device: torch.device, dtype: torch.dtype) -> Any:
    import transformers

    library: Any = transformers  # much of it is untyped
    options = dict[str, Any]()
    if settings.quantization != "none":
        options["quantization_config"] = library.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=dtype,
            bnb_4bit_use_double_quant=settings.quantization == "4bit-double",
        )
        options["device_map"] = {"": device}
    check_config(folder)
    with _explained(folder), progress_bars_disabled():
        return library.AutoModelForCausalLM.from_pretrained(
            folder, config=_read_config(folder), dtype=dtype, **_OFFLINE, **options
        )


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a whole model, on the CPU, under the names of its modules.

    They have the precision in which they were saved, or the highest one if there are several.
    """
    model = _open(folder, Settings(), torch.device("cpu"), _highest_precision(folder))
    return dict(model.named_parameters())


def _highest_precision(folder: Path) -> torch.dtype:
    from safetensors import safe_open

    highest = None
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 it is no mapping
                dtype = tensors.get_tensor(name).dtype
                highest = dtype if highest is None else torch.promote_types(highest, dtype)
    return torch.float32 if highest is None else highest


def read_architecture(folder: Path) -> Any:
    """Build the modules of a model on torch's current device, without reading its weights."""
    import transformers

    library: Any = transformers
    check_config(folder)
    with _explained(folder):
        return library.AutoModelForCausalLM.from_config(
            _read_config(folder), trust_remote_code=False
        )


def _read_config(folder: Path) -> Any:
    import transformers

    library: Any = transformers
    config = library.AutoConfig.from_pretrained(folder, **_OFFLINE)
    for name, known in _IMPLEMENTATIONS.items():
        if getattr(config, name, None) not in known:
            setattr(config, name, None)  # the choice of transformers
    if getattr(config.get_text_config(), "attn_logit_softcapping", None):
        config._attn_implementation = "eager"  # the others ignore the cap
    return config


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Translate errors of transformers into BackendError, which names the folder."""
    try:
        yield
    except Exception as error:
        reason = why_not_opened(folder, error)
        raise BackendError(f"the model cannot be opened: {reason}") from error
