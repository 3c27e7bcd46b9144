"""The machine that a run would use: processors, memory, devices, disks, and access to the hub."""

from __future__ import annotations

import contextlib
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

from kitchen.config.adapters import adapter_class
from kitchen.config.machine import available_cores, memory
from kitchen.errors import BackendError, KitchenError
from kitchen.secrets import mask

DEFAULT_ENDPOINT = "https://huggingface.co"
# run in a separate process: a broken torch or driver may end the process that imports it
_TORCH_PROGRAM = """
import json, os, torch
cuda = torch.cuda.is_available()
count = torch.cuda.device_count() if cuda else 0
properties = [torch.cuda.get_device_properties(index) for index in range(count)]
flags = open("/proc/cpuinfo").read().split() if os.path.exists("/proc/cpuinfo") else ()
fast_cpu = "amx_bf16" in flags or ("avx512_bf16" in flags and "GenuineIntel" not in flags)
bf16 = torch.cuda.is_bf16_supported(including_emulation=False) if cuda else fast_cpu
print(json.dumps({
    "devices": [
        f"cuda:{index} {device.name}, {device.total_memory / 1e9:.0f} GB"
        for index, device in enumerate(properties)
    ] + (["mps"] if torch.backends.mps.is_available() else []) + ["cpu"],
    "dtype": "bfloat16" if bf16 else "float32",
    "threads": torch.get_num_threads(),
}))
"""


def machine() -> Mapping[str, Any]:
    """Return what is known of the machine without torch; memory in bytes."""
    return {
        "system": platform.platform(),
        "processors": available_cores(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        **memory(),
    }


def devices(timeout: float = 120.0) -> Mapping[str, Any]:
    """Return the "devices" that torch sees, the default "dtype" of training, and "threads".

    Raises BackendError if torch cannot be imported within `timeout` seconds.
    """
    # -P: nothing in the current folder is mistaken for torch
    command = [sys.executable, "-P", "-c", _TORCH_PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            f"torch is installed, but was not imported within {timeout:g} s"
        ) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise BackendError(f"torch is installed, but cannot be imported: {lines[-1]}")
    seen: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def disk(folder: str) -> Mapping[str, Any]:
    """Return the free bytes at a folder, which need not exist yet."""
    path = Path(folder).expanduser().absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return {"where": str(path), "free": shutil.disk_usage(existing).free}


class HubProbe:
    """A request to the hub that is under way while other things are done."""

    def __init__(self, timeout: float = 3.0) -> None:
        self._endpoint = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self._timeout = timeout  # seconds, for the whole answer
        self._deadline = time.monotonic() + timeout
        self._status = ""
        # a daemon: a name server that hangs cannot be interrupted, and must not delay the exit
        self._thread = threading.Thread(target=self._request, daemon=True)
        self._thread.start()

    def answer(self) -> Mapping[str, Any]:
        """Return "endpoint", "reachable" and "status", before the timeout is over."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        status = self._status or self._no_answer()
        return {
            "endpoint": mask(self._endpoint),
            "reachable": status.startswith("answers"),
            "status": status,
        }

    def _request(self) -> None:
        self._status = self._ask()

    def _ask(self) -> str:
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
            return "not checked: HF_HUB_OFFLINE is set"
        if not self._endpoint.startswith(("http://", "https://")):
            return "HF_ENDPOINT is not an address that starts with http:// or https://"
        request = urllib.request.Request(
            self._endpoint, method="HEAD", headers={"User-Agent": "crucible-kitchen"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout):
                return "answers"
        except urllib.error.HTTPError as error:
            return f"answers with status {error.code}"
        except TimeoutError:
            return self._no_answer()
        except (OSError, ValueError, http.client.HTTPException) as error:
            return mask(f"cannot be reached: {getattr(error, 'reason', error)}")

    def _no_answer(self) -> str:
        return f"no answer within {self._timeout:g} s"


class ServerProbe:
    """Requests to the server of a training adapter, under way while other things are done."""

    def __init__(self, adapter: str, online: bool, url: str = "", timeout: float = 3.0) -> None:
        """Start the requests; without `online`, only to a server that the user named."""
        self._url = url
        self._timeout = timeout  # seconds, for the whole answer
        self._deadline = time.monotonic() + timeout
        self._found: Mapping[str, Any] | None = None
        self._ask: Any = None
        with contextlib.suppress(KitchenError):  # `kitchen list` shows why it cannot be loaded
            self._ask = getattr(adapter_class("training", adapter), "server_status", None)
        self._online = online
        # a daemon, as for the hub
        self._thread = threading.Thread(target=self._request, daemon=True)
        self._thread.start()

    def answer(self) -> Mapping[str, Any]:
        """Return what the adapter found, before the timeout is over; empty without a server."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._found is not None:
            return self._found
        return {
            "address": mask(self._url or os.environ.get("TINKER_BASE_URL") or "the hosted service"),
            "reachable": False,
            "status": f"no answer within {self._timeout:g} s",
        }

    def _request(self) -> None:
        self._found = (
            self._ask(online=self._online, timeout=self._timeout, url=self._url)
            if self._ask
            else {}
        )
