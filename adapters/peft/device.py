"""The device, its number formats, and the base models that lie on it."""

from __future__ import annotations

import ctypes
import sys
import weakref
from importlib.metadata import version
from types import MappingProxyType

import torch

from adapters.peft.model.base_model import Base, load_base
from adapters.peft.runtime.cpu import described, multiplies_bfloat16
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.threads import usual
from adapters.peft.settings import Settings
from kitchen.errors import BackendError
from kitchen.ports.hub import HubClient

LANES = 2  # at most; each has its share of the threads and of the budget
# on a CPU, more takes memory and no less time
BUDGETS = MappingProxyType({"cpu": 1536, "cuda": 8192})
TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # of <malloc.h>


class Machine:
    """What all sessions of one client share: the device and the frozen base models, each loaded
    once while in use.
    """

    def __init__(self, settings: Settings, hub: HubClient) -> None:
        self.settings, self.hub = settings, hub
        self.device = _device(settings.device)
        self.dtype = _dtype(settings.dtype, self.device)
        self.budget = settings.micro_batch_tokens or BUDGETS[self.device.type]  # tokens
        # of LoRA weights, losses and sums
        self.high = torch.promote_types(self.dtype, torch.float32)
        self.threads = settings.threads or usual()
        self.lanes = Lanes(
            min(LANES, self.threads) if self.device.type == "cpu" else 1, self.threads
        )
        self._bases: weakref.WeakValueDictionary[str, Base] = weakref.WeakValueDictionary()
        _check_quantization(settings, self.device)
        if self.device.type == "cpu":
            _keep_freed_memory()

    def base(self, model: str) -> Base:
        """Only to be called by a worker, for these take turns."""
        found = self._bases.get(model)
        if found is None:
            found = self.lanes.together(
                lambda: load_base(self.hub, model, self.settings, self.device, self.dtype)
            )
            self._bases[model] = found
        return found

    def facts(self) -> dict[str, str]:
        cuda = self.device.type == "cuda"
        return {
            "machine.device": torch.cuda.get_device_name(self.device) if cuda else "cpu",
            **({} if cuda else {"machine.processor": described()}),
            "machine.threads": str(self.threads),
            **{
                f"machine.{package}": version(package)
                for package in ("torch", "transformers", "peft")
            },
        }


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise BackendError(
            f"device={name}: torch sees no CUDA device here; use device=cpu, or a torch built for "
            "CUDA"
        )
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        found: torch.dtype = getattr(torch, name)
        return found
    if device.type != "cuda":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    with torch.cuda.device(device):
        return (
            torch.bfloat16
            if torch.cuda.is_bf16_supported(including_emulation=False)
            else torch.float32
        )


def _check_quantization(settings: Settings, device: torch.device) -> None:
    if settings.quantization == "none":
        return
    from importlib.util import find_spec

    missing = [
        what
        for what, there in (
            ("a CUDA device", device.type == "cuda"),
            (
                "the package bitsandbytes (pip install bitsandbytes)",
                find_spec("bitsandbytes") is not None,
            ),
        )
        if not there
    ]
    if missing:
        raise BackendError(
            f"quantization={settings.quantization} needs {' and '.join(missing)}, which is not "
            "here; "
            "use quantization=none"
        )


def _keep_freed_memory() -> None:
    """Let the process keep freed pages: to fetch them from the system anew takes as long as a small
    model's sums.

    Measured on SmolLM2-135M: up to a fifth of a training step.
    """
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc; others have none
        # older ones: 32 MB
        if mallopt is not None and any(mallopt(MMAP_THRESHOLD, most) for most in (2**30, 2**25)):
            mallopt(TRIM_THRESHOLD, 2**31 - 1)
            mallopt(ARENA_MAX, 1)
