"""The newest report about each server that was probed, in this user's cache folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from kitchen.backend.atomic_folder import write_atomically
from kitchen.backend.cache_folder import cache_folder
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.errors import BackendError
from kitchen.safe_text import read_json


def store_report(report: ProbeReport, address: str, kind: str) -> None:
    """Store a report in place of an earlier one about this server; raises OSError."""
    content = json.dumps({**asdict(report), "kind": kind}, indent=2)
    write_atomically(_path(address, kind), content.encode())


def stored_report(address: str, kind: str) -> ProbeReport | None:
    """Return the newest report about a server; raises BackendError if its file is damaged."""
    path = _path(address, kind)
    if not path.is_file():
        return None
    try:
        content = read_json(path.read_bytes())
        findings = [Finding(**finding) for finding in content["findings"]]
        names = ("address", "model", "date", "seconds")
        return ProbeReport(**{name: content[name] for name in names}, findings=findings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BackendError(
            f"{path}: the report about the server {address} cannot be read ({error}); delete the "
            "file, and run `kitchen check --online` again"
        ) from error


def _path(address: str, kind: str) -> Path:
    # the server is another one for us if the SDK reaches it in another way
    name = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:16]
    return cache_folder() / "servers" / f"{name}.json"
