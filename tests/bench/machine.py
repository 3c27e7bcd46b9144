"""Facts that results depend on: machine, versions, commit and date."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.support.commit import commit

PACKAGES = ("crucible-kitchen", "torch", "transformers", "peft", "trl", "accelerate", "numpy")
INFO, MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def facts(device: str = "cpu") -> dict[str, str]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _line(INFO, "model name") or platform.processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _line(MEMORY, "MemTotal"),
        **({"device": _cuda()} if device == "cuda" else {}),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{package} {version_of(package)}" for package in PACKAGES),
        "commit": commit(),
    }


def _cuda() -> str:
    """Describe the CUDA device, in a separate process so that this one uses none of its memory."""
    script = (
        "import torch; device = torch.cuda.get_device_properties(0); "
        "print(f'{device.name}, {device.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}')"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    return completed.stdout.strip() or f"none: {completed.stderr.strip().splitlines()[-1]}"


def _line(path: Path, name: str) -> str:
    return next(
        (
            line.partition(":")[2].strip()
            for line in path.read_text().splitlines()
            if line.startswith(name)
        ),
        "",
    )


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
