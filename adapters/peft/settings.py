"""Settings of the local training adapter, checked before torch is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec

from kitchen.errors import BackendError, ConfigError, did_you_mean

DEVICES = ("auto", "cpu", "cuda", "cuda:0", "mps")
DTYPES = ("auto", "float32", "bfloat16", "float64")
QUANTIZATIONS = ("none", "4bit", "4bit-double")
QUANTIZATION_PACKAGES = ("bitsandbytes", "accelerate")  # transformers loads 4-bit models with both


@dataclass(frozen=True)
class Settings:
    """Settings of the device, memory and batches; raises ConfigError for an invalid value."""

    device: str = "auto"  # auto, cpu, cuda, cuda:N or mps; auto: a CUDA device, else the CPU
    # of the base model; auto: bfloat16 if the hardware has fast bfloat16 matmuls, else float32
    dtype: str = "auto"
    threads: int = 0  # torch threads; 0: torch's default
    micro_batch_tokens: int = 0  # tokens that go through the model at once; 0: by device
    # gradient checkpointing: saves activation memory, takes about a third more time
    checkpointing: bool = False
    # of the base model: none, 4bit (NF4), or 4bit-double, which also quantises NF4's scales
    quantization: str = "none"
    sample_batch: int = 128  # maximum number of completions generated concurrently

    def check_device(self) -> None:
        """Raise BackendError for a GPU, or a package for it, that is not here.

        PyTorch is imported only if the settings need a GPU.
        """
        if self.quantization != "none":
            self._check_quantization()
        if self.device == "mps":
            _check_mps()
        if not str(self.device).startswith("cuda"):
            return
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise BackendError(
                f"training.device={self.device}: torch finds no CUDA device here; "
                "set training.device=cpu, or install a torch built for CUDA"
            )
        if int(self.device.partition(":")[2] or 0) >= count:
            raise BackendError(
                f"training.device={self.device}: the CUDA devices of this machine are cuda:0 to "
                f"cuda:{count - 1}; choose one of them"
            )

    def _check_quantization(self) -> None:
        if self.device == "mps":
            raise BackendError(
                f"training.quantization={self.quantization} is not supported on Apple GPUs; "
                "set training.device=cpu"
            )
        missing = [name for name in QUANTIZATION_PACKAGES if find_spec(name) is None]
        if missing:
            raise BackendError(
                f"training.quantization={self.quantization} needs {' and '.join(missing)}, "
                "which is not installed: pip install 'crucible-kitchen[4bit]', or set "
                "training.quantization=none"
            )

    def __post_init__(self) -> None:
        if self.device == "mps" and self.dtype == "float64":
            raise ConfigError("dtype is 'float64', which Apple GPUs (mps) lack; use float32")
        if self.quantization != "none" and self.dtype == "float64":
            raise ConfigError(
                f"dtype is 'float64', which quantization={self.quantization} does not support; "
                "use float32"
            )
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", str(self.device)):
            raise ConfigError(
                f"device is {self.device!r}; {did_you_mean(str(self.device), DEVICES)}"
            )
        for field, known in (("dtype", DTYPES), ("quantization", QUANTIZATIONS)):
            value = getattr(self, field)
            if value not in known:
                raise ConfigError(f"{field} is {value!r}; {did_you_mean(str(value), known)}")
        for field, least in (("threads", 0), ("micro_batch_tokens", 0), ("sample_batch", 1)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{field} is {value!r}, but must be a whole number of at least {least}"
                )
        if not isinstance(self.checkpointing, bool):
            raise ConfigError(f"checkpointing is {self.checkpointing!r}, but must be true or false")


def _check_mps() -> None:
    import torch

    if not torch.backends.mps.is_available():
        raise BackendError(
            "training.device=mps: torch finds no Apple GPU here; set training.device=cpu"
        )
