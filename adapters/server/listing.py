"""What people and tools look at: runs, checkpoints, sessions, and files to download."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from adapters.server.records import (
    TYPES,
    CheckpointRecord,
    Record,
    RunRecord,
    SamplerRecord,
    SessionRecord,
    checkpoint_id,
    expiry,
)
from adapters.server.sessions import Absent, Sessions
from kitchen.errors import ConfigError

R = TypeVar("R", bound=Record)
SIGNED = 3600  # seconds that a URL of a file is good for
_SECRET = secrets.token_bytes(32)  # of this process


class Listing:
    """Reads of what is kept, in the shapes of the API; raises Absent."""

    def __init__(self, sessions: Sessions) -> None:
        self._all = sessions

    def capabilities(self) -> Mapping[str, Any]:
        return {
            "supported_models": [
                {
                    "model_name": name,
                    "max_context_length": dish.context,
                    "trainable": True,
                    "sampleable": True,
                }
                for name, dish in self._all.menu.dishes.items()
            ]
        }

    def runs(self, limit: int, offset: int) -> Mapping[str, Any]:
        found = list(reversed(self._all.records.all(RunRecord)))
        return {
            "training_runs": [self._run(run) for run in found[offset : offset + limit]],
            "cursor": _cursor(limit, offset, found),
        }

    def run(self, run_id: str) -> Mapping[str, Any]:
        return self._run(self._there(RunRecord, run_id))

    def checkpoints(self, run_id: str) -> Mapping[str, Any]:
        run = self._there(RunRecord, run_id)
        return {"checkpoints": [_checkpoint(each) for each in self._all.checkpoints(f"{run.id}/")]}

    def all_checkpoints(self, limit: int, offset: int) -> Mapping[str, Any]:
        found = list(reversed(self._all.checkpoints()))
        return {
            "checkpoints": [_checkpoint(each) for each in found[offset : offset + limit]],
            "cursor": _cursor(limit, offset, found),
        }

    def delete(self, run_id: str, kind: str, name: str) -> None:
        self._all.remove(self._checkpoint(run_id, kind, name))

    def live(self, run_id: str, kind: str, name: str, seconds: int | None) -> None:
        """Let a checkpoint expire after so many seconds, or never."""
        record = self._checkpoint(run_id, kind, name)
        self._all.records.put(record.model_copy(update={"expires": expiry(seconds)}))

    def weights_info(self, path: str) -> Mapping[str, Any]:
        found = self._all.checkpoint(path)
        lora = found.lora
        return {
            "base_model": found.base,
            "is_lora": True,
            "lora_rank": lora.rank,
            "train_attn": lora.train_attn,
            "train_mlp": lora.train_mlp,
            "train_unembed": lora.train_unembed,
        }

    def sessions(self, limit: int, offset: int) -> Mapping[str, Any]:
        found = [record.id for record in reversed(self._all.records.all(SessionRecord))]
        return {"sessions": found[offset : offset + limit]}

    def session(self, session_id: str) -> Mapping[str, Any]:
        record = self._there(SessionRecord, session_id)
        return {
            "training_run_ids": [
                run.id for run in self._all.records.all(RunRecord, f"{record.id}:")
            ],
            "sampler_ids": [
                each.id for each in self._all.records.all(SamplerRecord, f"{record.id}:")
            ],
            "user_metadata": record.metadata,
            "display_name": record.name,
        }

    def sampler(self, sampler_id: str) -> Mapping[str, Any]:
        record = self._there(SamplerRecord, sampler_id)
        return {"sampler_id": record.id, "base_model": record.base, "model_path": record.path}

    def files(self, run_id: str, kind: str, name: str, url: str) -> Mapping[str, Any]:
        """URLs of the files of weights for other programs; each is good for an hour, and needs no
        key.
        """
        record = self._checkpoint(run_id, kind, name)
        if record.kind != "external_weights":
            raise ConfigError(
                f"{record.path!r} has no files to download; save_weights_external makes some"
            )
        until = int(time.time()) + SIGNED
        return {
            "urls": {
                file: f"{url}/api/v1/files/{record.id}/{file}?until={until}&signature="
                f"{_signature(record.id, file, until)}"
                for file in self._exported(record)
            },
            "expires": datetime.fromtimestamp(until, UTC).isoformat(),
        }

    def file(self, key: str, file: str, until: int, signature: str) -> bytes:
        """The bytes behind such a URL; raises Absent for one that was not signed here, or is too
        old.
        """
        if until < time.time() or not hmac.compare_digest(
            signature.encode(), _signature(key, file, until).encode()
        ):
            raise Absent("this URL was not signed by this server, or is too old: ask for another")
        found = self._exported(self._there(CheckpointRecord, key))
        return found[file]

    def _exported(self, record: CheckpointRecord) -> Mapping[str, bytes]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "weights"
            self._all.training.export(record.inner, folder)
            return {
                str(path.relative_to(folder)): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }

    def _checkpoint(self, run_id: str, kind: str, name: str) -> CheckpointRecord:
        return self._there(CheckpointRecord, checkpoint_id(f"tinker://{run_id}/{kind}/{name}"))

    def _there(self, kind: type[R], key: str) -> R:
        found = self._all.records.get(kind, key)
        if found is None:
            raise Absent(f"there is no {kind.folder[:-1]} {key!r}")
        return found

    def _run(self, run: RunRecord) -> Mapping[str, Any]:
        run = self._all.run(run)
        kept = self._all.checkpoints(f"{run.id}/")
        last = {TYPES[each.kind]: _checkpoint(each) for each in kept}
        return {
            "training_run_id": run.id,
            "base_model": run.base,
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": run.lora.rank,
            "last_request_time": run.last.isoformat(),
            "last_checkpoint": last.get("training"),
            "last_sampler_checkpoint": last.get("sampler"),
            "user_metadata": {key: str(value) for key, value in (run.metadata or {}).items()}
            or None,
        }


def _checkpoint(record: CheckpointRecord) -> Mapping[str, Any]:
    return {
        "checkpoint_id": f"{record.kind}/{record.name}",
        "checkpoint_type": TYPES[record.kind],
        "time": record.made.isoformat(),
        "tinker_path": record.path,
        "public": False,
        "user_metadata": record.metadata,
        "expires_at": record.expires and record.expires.isoformat(),
    }


def _cursor(limit: int, offset: int, found: Sequence[Any]) -> Mapping[str, int]:
    return {"offset": offset, "limit": limit, "total_count": len(found)}


def _signature(key: str, file: str, until: int) -> str:
    return hmac.new(_SECRET, f"{key}\n{file}\n{until}".encode(), hashlib.sha256).hexdigest()
