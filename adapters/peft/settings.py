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
    # devices that share each batch, a number or all: CUDA devices, or processes on a CPU
    devices: int | str = 1

    def check_device(self) -> None:
        """Raise BackendError for a GPU, or a package for it, that is not here.

        PyTorch is imported only if the settings need a GPU.
        """
        if self.quantization != "none":
            self._check_quantization()
        if self.device == "mps":
            _check_mps()
        named = str(self.device).startswith("cuda")
        if not named and self.devices == 1:
            return
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if named and not count:
            raise BackendError(
                f"training.device={self.device}: torch finds no CUDA device here; "
                "set training.device=cpu, or install a torch built for CUDA"
            )
        if named and int(self.device.partition(":")[2] or 0) >= count:
            raise BackendError(
                f"training.device={self.device}: the CUDA devices of this machine are cuda:0 to "
                f"cuda:{count - 1}; choose one of them"
            )
        if self.devices != 1:
            self._check_devices(0 if self.device == "cpu" else count)

    def device_count(self) -> int:
        """Return the number of devices that share each batch; `all` means one CPU."""
        if self.devices != "all":
            return int(self.devices)
        import torch

        has_cuda = self.device != "cpu" and torch.cuda.is_available()
        return torch.cuda.device_count() if has_cuda else 1

    def _check_devices(self, cuda: int) -> None:
        """Raise BackendError for more devices than there are: CUDA devices, or cores of a CPU."""
        import torch

        wanted = self.device_count()
        most = cuda or self.threads or torch.get_num_threads()
        if wanted <= most:
            return
        kind = "CUDA devices" if cuda else "CPU threads"
        owner = "this machine has" if cuda else "this run uses"
        fix = "training.devices=all" if cuda else f"training.threads={wanted}"
        raise BackendError(
            f"training.devices={wanted} needs {wanted} {kind}, but {owner} {most}; "
            f"set {fix}, or training.devices={most}"
        )

    def _check_quantization(self) -> None:
        if self.device == "mps":
            raise BackendError(
                f"training.quantization={self.quantization} is not supported on Apple GPUs; "
                "set training.device=cpu"
            )
        missing = [name for name in QUANTIZATION_PACKAGES if find_spec(name) is None]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise BackendError(
                f"training.quantization={self.quantization} needs {' and '.join(missing)}, "
                f"which {verb} not installed: pip install 'crucible-kitchen[4bit]', or set "
                "training.quantization=none"
            )

    def __post_init__(self) -> None:
        if self.device == "mps" and self.dtype == "float64":
            raise ConfigError("dtype is 'float64', which Apple GPUs (mps) lack; use float32")
        if self.quantization != "none" and self.dtype == "float64":
            raise ConfigError(
                f"dtype is 'float64', which training.quantization={self.quantization} does not "
                "support; use float32"
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
        self._check_number_of_devices()
        if not isinstance(self.checkpointing, bool):
            raise ConfigError(f"checkpointing is {self.checkpointing!r}, but must be true or false")

    def _check_number_of_devices(self) -> None:
        count = self.devices
        if count != "all" and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(
                f"devices is {count!r}, but must be a whole number of at least 1, or 'all'"
            )
        if count != 1 and (self.device == "mps" or ":" in str(self.device)):
            raise ConfigError(
                f"devices is {count!r}, but device is {self.device!r}, which names one device; set "
                "device to auto, cuda or cpu, or devices to 1"
            )


def _check_mps() -> None:
    import torch

    if not torch.backends.mps.is_available():
        raise BackendError(
            "training.device=mps: torch finds no Apple GPU here; set training.device=cpu"
        )
