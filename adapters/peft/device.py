"""The compute device, its number formats, and the base models loaded on it."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from adapters.peft.model.base_model import BaseModel, load_base, open_base
from adapters.peft.model.network import ForwardMode
from adapters.peft.runtime.cpu import describe_cpu, has_fast_bfloat16
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.memory import ModelShape, micro_batch_tokens
from adapters.peft.runtime.threads import default_threads
from adapters.peft.settings import Settings
from kitchen.ports.hub import HubClient
from kitchen.types import Lora, Trainable

if TYPE_CHECKING:
    from adapters.peft.runtime.devices.group import DeviceGroup
    from adapters.peft.runtime.devices.process import DeviceWorker

MAX_LANES = 2  # each has its share of the threads and of the token budget
# tokens by type of device; on a CPU more would take more memory and no less time
TOKEN_BUDGETS = MappingProxyType({"cpu": 1536, "cuda": 8192, "mps": 8192})
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of <malloc.h>
REPORTED_PACKAGES = ("torch", "transformers", "peft")


class Machine:
    """The device and the frozen base models, shared by all sessions of a client.

    Each base model is loaded once while it is in use.
    """

    def __init__(self, settings: Settings, hub: HubClient) -> None:
        settings.check_device()
        self.settings, self.hub = settings, hub
        self.devices = settings.device_count()
        self.device = choose_device(settings.device, self.devices)
        self.dtype = choose_dtype(settings.dtype, self.device)
        # tokens that go through a model at once; in training, `training_budget`
        self.budget = settings.micro_batch_tokens or TOKEN_BUDGETS[self.device.type]
        # of LoRA weights, losses and sums
        self.accum_dtype = torch.promote_types(self.dtype, torch.float32)
        self.threads = settings.threads or default_threads()
        on_cpu = self.device.type == "cpu"
        if on_cpu and self.devices > 1:
            self.threads = max(self.threads // self.devices, 1)  # of each process
        lanes = min(MAX_LANES, self.threads) if on_cpu else 1
        self.lanes = Lanes(lanes, self.threads, self.device)
        self._bases: weakref.WeakValueDictionary[str, BaseModel] = weakref.WeakValueDictionary()
        if on_cpu:
            _retain_freed_memory()
        self._group = self._start_group() if self.devices > 1 else None

    def training_budget(self, base: BaseModel, trainable: Trainable) -> int:
        """Return the tokens of a micro-batch in training: on CUDA, by the device's memory."""
        settings = self.settings
        if settings.micro_batch_tokens or self.device.type != "cuda":
            return self.budget
        lora = trainable if isinstance(trainable, Lora) else None
        # transformers computes dropout, DoRA and the training of all weights
        plain = lora is not None and not lora.dropout and lora.kind != "dora"
        return micro_batch_tokens(
            torch.cuda.mem_get_info(self.device)[1],
            ModelShape.of(base.model),
            lora.rank if lora else None,
            self.dtype.itemsize,
            quantization=settings.quantization,
            checkpointing=settings.checkpointing,
            fused=plain and base.mode == ForwardMode.FUSED,
        )

    def group(self) -> DeviceGroup | None:
        """Return all devices; None if there is only one. Only for workers, which take turns."""
        if self._group is not None and self._group.is_lost:
            self._group = self._start_group()
        return self._group

    def base(self, model: str) -> BaseModel:
        """Return a base model, loaded if it is not in use; only for workers, which take turns."""
        return self._shared(model, lambda: self._load(model))

    def own_base(self, model: str) -> BaseModel:
        """Return a base model whose weights nobody else uses, so that they can be trained."""
        shared = self._bases.get(model)
        return self._load(model) if shared is None else self.lanes.run(shared.copy)

    def base_from_folder(self, name: str, folder: Path, sha256: str) -> BaseModel:
        """Open the folder of a checkpoint that is a whole model, unless it is in use already."""
        settings = self.settings, self.device, self.dtype
        return self._shared(
            f"{name} {sha256}", lambda: self._on_lane(open_base, name, folder, sha256, *settings)
        )

    def _load(self, model: str) -> BaseModel:
        settings = self.settings, self.device, self.dtype
        return self._on_lane(load_base, self.hub, model, *settings)

    def _on_lane(self, load: Callable[..., BaseModel], *args: object) -> BaseModel:
        context = copy_context()  # for the progress of loading
        return self.lanes.run(lambda: context.run(load, *args))

    def _shared(self, key: str, load: Callable[[], BaseModel]) -> BaseModel:
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = load()
        return base

    def facts(self) -> dict[str, str]:
        """Describe the machine and the packages that compute on it."""
        facts = {}
        if self.device.type == "cuda":
            facts["machine.device"] = torch.cuda.get_device_name(self.device)
            if find_spec("triton") is not None:  # it compiles kernels for decoding
                facts["machine.triton"] = version("triton")
        else:
            facts["machine.device"] = "Apple GPU (MPS)" if self.device.type == "mps" else "cpu"
            facts["machine.processor"] = describe_cpu()
        facts["machine.devices"] = str(self.devices)
        facts["machine.threads"] = str(self.threads)
        facts |= {f"machine.{package}": version(package) for package in REPORTED_PACKAGES}
        return facts

    def _start_group(self) -> DeviceGroup:
        from adapters.peft.runtime.devices.group import DeviceGroup
        from adapters.peft.runtime.devices.process import served

        kind = self.device.type
        names = [f"cuda:{rank}" if kind == "cuda" else kind for rank in range(self.devices)]

        # each process sees only its own CUDA device, as the first one
        device = "cuda:0" if kind == "cuda" else kind
        settings = replace(self.settings, device=device, threads=self.threads, devices=1)
        return DeviceGroup(names, open_machine, lambda rank: (settings,), {"hub": served(self.hub)})


def open_machine(worker: DeviceWorker, settings: Settings) -> None:
    """Set up a further device, whose hub is that of the process of device 0."""
    from adapters.peft.runtime.devices.process import Remote

    hub: Any = Remote(worker, "hub")  # models are fetched once for all devices
    worker.objects["machine"] = Machine(settings, hub)


def choose_device(name: str, devices: int) -> torch.device:
    """Return the (first) device of a setting; `auto` is a CUDA device if there is one."""
    has_cuda = name != "cpu" and torch.cuda.is_available()
    if devices > 1 and has_cuda:
        return torch.device("cuda:0")
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the number format of base models on a device."""
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type == "mps":
        return torch.float32
    if device.type != "cuda":
        return torch.bfloat16 if has_fast_bfloat16() else torch.float32
    with torch.cuda.device(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float32


def _retain_freed_memory() -> None:
    """Let malloc retain freed pages: page faults take as long as a small model's products.

    Measured on SmolLM2-135M: up to a fifth of a training step.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, other libraries do not
    if mallopt is None:
        return
    # older versions of glibc accept at most 32 MB
    if any(mallopt(M_MMAP_THRESHOLD, size) for size in (2**30, 2**25)):
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_ARENA_MAX, 1)
