"""What is around the kitchen: processors, memory, devices, disks, and a hub that answers or does
not.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kitchen.errors import BackendError
from kitchen.secrets import mask

HUB = "https://huggingface.co"
_TORCH = """
import json, os, torch
cuda = torch.cuda.is_available()
seen = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count() if cuda else 0)]
words = open("/proc/cpuinfo").read().split() if os.path.exists("/proc/cpuinfo") else ()
quick = "amx_bf16" in words or ("avx512_bf16" in words and "GenuineIntel" not in words)
fast = torch.cuda.is_bf16_supported(including_emulation=False) if cuda else quick
print(json.dumps({
    "devices": [f"cuda:{n} {one.name}, {one.total_memory / 1e9:.0f} GB" for n, one in enumerate(seen)] + ["cpu"],
    "dtype": "bfloat16" if fast else "float32", "threads": torch.get_num_threads()}))
"""  # in a process of its own: what is wrong with torch or a driver may end a process


def machine() -> Mapping[str, Any]:
    """What there is without torch."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": platform.platform(),
        "processors": usable,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        **_memory(),
    }


def _memory() -> Mapping[str, int]:
    """In bytes."""
    told = Path("/proc/meminfo")
    if told.exists():
        lines = dict(line.split(":", 1) for line in told.read_text().splitlines())
        return {
            what: int(lines[name].split()[0]) * 1024
            for what, name in (("memory", "MemTotal"), ("free memory", "MemAvailable"))
        }
    return {"memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}


def devices(seconds: float = 120.0) -> Mapping[str, Any]:
    """What torch sees: "devices", the "dtype" that training takes by itself, "threads"; raises
    BackendError.
    """
    # -P: nothing in the folder where one stands is torch
    command = [sys.executable, "-P", "-c", _TORCH]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"torch is installed, but was not imported within {seconds:g} s"
        ) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise BackendError(f"torch is installed, but cannot be imported: {lines[-1]}")
    seen: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def disk(where: str) -> Mapping[str, Any]:
    """How much is free, in bytes, at a folder that need not be there yet."""
    path = Path(where).expanduser().absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return {"where": str(path), "free": shutil.disk_usage(there).free}


class HubAsked:
    """A question to the hub that is under way while other things are done."""

    def __init__(self, seconds: float = 3.0) -> None:
        self._endpoint = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._said = ""
        # daemon: a name server that hangs cannot be told to stop, and must not be waited for at the
        # end either
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def answer(self) -> Mapping[str, Any]:
        """Waits until the seconds are over at most."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        said = self._said or f"no answer within {self._seconds:g} s"
        return {
            "endpoint": mask(self._endpoint),
            "reachable": said.startswith("answers"),
            "said": said,
        }

    def _ask(self) -> None:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            self._said = "not asked: HF_HUB_OFFLINE is set"
            return
        if not self._endpoint.startswith(("http://", "https://")):
            self._said = "HF_ENDPOINT is no address that begins with http:// or https://"
            return
        request = urllib.request.Request(
            self._endpoint, method="HEAD", headers={"User-Agent": "crucible-kitchen"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds):
                self._said = "answers"
        except urllib.error.HTTPError as error:
            self._said = f"answers with status {error.code}"
        except TimeoutError:
            self._said = f"no answer within {self._seconds:g} s"
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._said = mask(f"cannot be reached: {getattr(error, 'reason', error)}")
