"""Leases on runs: claims in the blob store, so that no two processes write to one run."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.safe_text import read_json

_UNKNOWN_HOST = "an unknown host (its claim is damaged)"
_UNKNOWN = "unknown"  # start time of a process, where the system does not report it
_DEAD = ("Z", "X", "x")  # states of a process that has ended


class InUse(ConfigError):
    """Another process may be using the run."""

    option = "take_over"  # to resume the run nevertheless

    def __init__(self, message: str, holder: str = "") -> None:
        super().__init__(message)
        self.holder = holder  # such as "process 7 on box"


@contextmanager
def lease(blobs: BlobStore, run: str, *, take_over: bool = False) -> Iterator[None]:
    """Hold a run; raises InUse if another process may be using it.

    Each process writes its own claim before it looks for others, so that at most one of two
    simultaneous processes proceeds. `take_over` disregards claims of other hosts, whose processes
    cannot be checked from here.
    """
    name = f"{run}/lease/{secrets.token_hex(8)}.json"
    claim = {"host": socket.gethostname(), "pid": os.getpid(), "born": _start_time(os.getpid())}
    blobs.write(name, json.dumps(claim).encode())
    try:
        for other_name, other in _claims(blobs, run):
            if other_name == name:
                continue
            disregarded = take_over and other["host"] != claim["host"]
            if _may_be_alive(other) and not disregarded:
                raise InUse(
                    f"run {run!r} is in use by process {other['pid']} on {other['host']}; "
                    "wait for it or stop it; if that host is gone, take it over (--take-over)",
                    _name(other),
                )
            blobs.delete(other_name)
        yield
    finally:
        blobs.delete(name)


def in_use(blobs: BlobStore, run: str) -> bool:
    """Return whether a process may be using the run."""
    return any(_may_be_alive(claim) for _, claim in _claims(blobs, run))


def holders(blobs: BlobStore, run: str) -> Mapping[str, str]:
    """Return the processes that may be using a run, such as "process 7 on box", by their claim."""
    return {name: _name(claim) for name, claim in _claims(blobs, run) if _may_be_alive(claim)}


def discard_claims(
    blobs: BlobStore, run: str, *, keep: Collection[str] = (), of_other_hosts: bool = False
) -> None:
    """Delete the claims of processes that are known to be dead, all but those to keep."""
    for name, claim in _claims(blobs, run):
        is_here = claim["host"] == socket.gethostname()
        if name not in keep and not (of_other_hosts and is_here):
            blobs.delete(name)


def stop_holders(blobs: BlobStore, run: str) -> int:
    """Ask the processes on this host that use the run to save and end; return their number."""
    asked = 0
    for _, claim in _claims(blobs, run):
        if claim["host"] == socket.gethostname() and _may_be_alive(claim):
            os.kill(claim["pid"], signal.SIGTERM)
            asked += 1
    return asked


def _name(claim: Mapping[str, Any]) -> str:
    return f"process {claim['pid']} on {claim['host']}"


def _claims(blobs: BlobStore, run: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return the claims on a run with the names of their blobs."""
    claims = [(name, blobs.read(name)) for name in blobs.list(f"{run}/lease/")]
    return [(name, _parse_claim(data)) for name, data in claims if data is not None]


def _parse_claim(data: bytes) -> Mapping[str, Any]:
    """Return a claim; a damaged one counts as that of an unknown process on an unknown host."""
    try:
        claim = read_json(data)
        return {"host": claim["host"], "pid": int(claim["pid"]), "born": str(claim["born"])}
    except (ValueError, KeyError, TypeError, OverflowError):
        return {"host": _UNKNOWN_HOST, "pid": "?", "born": ""}


def _may_be_alive(claim: Mapping[str, Any]) -> bool:
    """Return whether the holder still runs; on another host it counts as alive."""
    if claim["host"] != socket.gethostname():
        return True
    return bool(_start_time(claim["pid"]) == claim["born"] != "")


def _start_time(pid: int) -> str:
    """Return the start time of a process in kernel clock ticks; "" if it is dead.

    It distinguishes a process from a later one with the same pid. A killed process whose parent has
    not read its status yet, as in containers without an init process, is dead.
    """
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # dead, perhaps since a moment ago
            return ""
        return "" if fields[0] in _DEAD else fields[19]
    if os.name == "nt":  # where os.kill would end the process
        return _UNKNOWN
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:  # it exists, and belongs to another user
        return _UNKNOWN
    return _UNKNOWN
