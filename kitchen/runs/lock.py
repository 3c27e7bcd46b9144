"""Who is at a run: claims in the BlobStore, so that no two processes write one run."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore

_UNKNOWN = "unknown"  # when a process was born, where the system does not say


class InUse(ConfigError):
    """Another process may be at the run."""

    option = "take_over"  # goes on all the same


@contextmanager
def lease(blobs: BlobStore, run: str, *, take_over: bool = False) -> Iterator[None]:
    """Hold a run; raises InUse if another process may be at it.

    Each process writes its own claim before it looks at those of others, so of two at the same
    moment at most one goes on. `take_over` disregards claims from other hosts, of which nobody can
    say here whether they are alive.
    """
    mine = f"{run}/lease/{secrets.token_hex(8)}.json"
    claim = {"host": socket.gethostname(), "pid": os.getpid(), "born": _born(os.getpid())}
    blobs.write(mine, json.dumps(claim).encode())
    try:
        for name, other in _claims(blobs, run):
            if name == mine:
                continue
            if _alive(other) and not (take_over and other.get("host") != claim["host"]):
                raise InUse(
                    f"run {run!r} is in use by process {other.get('pid')} on {other.get('host')}; "
                    "wait for "
                    "it or stop it; if that host is gone, take it over (--take-over)"
                )
            blobs.delete(name)
        yield
    finally:
        blobs.delete(mine)


def in_use(blobs: BlobStore, run: str) -> bool:
    """Whether some process may be at the run."""
    return any(_alive(claim) for _, claim in _claims(blobs, run))


def _claims(blobs: BlobStore, run: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    found = [(name, blobs.read(name)) for name in blobs.list(f"{run}/lease/")]
    return [(name, json.loads(data)) for name, data in found if data]


def _alive(claim: Mapping[str, Any]) -> bool:
    """Whether the holder still runs; of another host nothing is known, so it counts as alive."""
    return bool(
        claim.get("host") != socket.gethostname() or _born(int(claim["pid"])) == claim["born"] != ""
    )


def _born(pid: int) -> str:
    """When a process started, in the kernel's clock ticks, so that a number used again is not
    mistaken; "" if dead.
    """
    if Path("/proc/self/stat").exists():
        stat = Path(f"/proc/{pid}/stat")
        return stat.read_text().rsplit(")", 1)[1].split()[19] if stat.exists() else ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:  # it is there, and somebody else's
        return _UNKNOWN
    return _UNKNOWN
