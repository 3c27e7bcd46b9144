"""The REST requests of the API: runs, checkpoints, sessions, and files to download."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from adapters.server.records import (
    CHECKPOINT_TYPES,
    CheckpointRecord,
    Record,
    RunRecord,
    SamplerRecord,
    SessionRecord,
    checkpoint_id,
    expiry,
)
from adapters.server.sessions import NotFound, Sessions
from kitchen.errors import ConfigError

R = TypeVar("R", bound=Record)
URL_TTL = 3600  # seconds that the URL of a file is valid
_SECRET = secrets.token_bytes(32)  # for the signatures of this process


class RestApi:
    """Reads and changes the records, in the JSON shapes of the API; raises NotFound."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def capabilities(self) -> Mapping[str, Any]:
        models = [
            {
                "model_name": name,
                "max_context_length": model.context,
                "trainable": True,
                "sampleable": True,
            }
            for name, model in self._sessions.models.by_name.items()
        ]
        return {"supported_models": models}

    def runs(self, limit: int, offset: int, project: str | None = None) -> Mapping[str, Any]:
        """Return a page of the runs, newest first: of all, or of those in a project."""
        runs = [
            run
            for run in reversed(self._sessions.records.all(RunRecord))
            if project is None or self._sessions.current_run(run).project == project
        ]
        return {
            "training_runs": [self._run_json(run) for run in runs[offset : offset + limit]],
            "cursor": _cursor(limit, offset, runs),
        }

    def run(self, run_id: str) -> Mapping[str, Any]:
        return self._run_json(self._record(RunRecord, run_id))

    def checkpoints(self, run_id: str) -> Mapping[str, Any]:
        run = self._record(RunRecord, run_id)
        records = self._sessions.checkpoints(f"{run.id}/")
        return {"checkpoints": [_checkpoint_json(record) for record in records]}

    def all_checkpoints(self, limit: int, offset: int) -> Mapping[str, Any]:
        records = list(reversed(self._sessions.checkpoints()))
        page = records[offset : offset + limit]
        return {
            "checkpoints": [_checkpoint_json(record) for record in page],
            "cursor": _cursor(limit, offset, records),
        }

    def delete(self, run_id: str, kind: str, name: str) -> None:
        self._sessions.check_writable()
        self._sessions.delete_checkpoint(self._checkpoint(run_id, kind, name))

    def set_ttl(self, run_id: str, kind: str, name: str, seconds: int | None) -> None:
        """Let a checkpoint expire after this many seconds, or never."""
        self._sessions.check_writable()
        record = self._checkpoint(run_id, kind, name)
        self._sessions.records.put(record.model_copy(update={"expires": expiry(seconds)}))

    def weights_info(self, path: str) -> Mapping[str, Any]:
        record = self._sessions.checkpoint(path)
        lora = record.lora
        return {
            "base_model": record.base,
            "is_lora": True,
            "lora_rank": lora.rank,
            "train_attn": lora.train_attn,
            "train_mlp": lora.train_mlp,
            "train_unembed": lora.train_unembed,
        }

    def sessions(self, limit: int, offset: int) -> Mapping[str, Any]:
        records = self._sessions.records.all(SessionRecord)
        ids = [record.id for record in reversed(records)]
        return {"sessions": ids[offset : offset + limit]}

    def session(self, session_id: str) -> Mapping[str, Any]:
        record = self._record(SessionRecord, session_id)
        runs = self._sessions.records.all(RunRecord, f"{record.id}:")
        samplers = self._sessions.records.all(SamplerRecord, f"{record.id}:")
        return {
            "training_run_ids": [run.id for run in runs],
            "sampler_ids": [sampler.id for sampler in samplers],
            "user_metadata": record.metadata,
            "display_name": record.name,
        }

    def set_project(self, session_id: str, project: str) -> None:
        """Move a session to another project, with its runs."""
        self._sessions.check_writable()
        self._sessions.set_project(self._record(SessionRecord, session_id), project)

    def set_public(self, run_id: str, kind: str, name: str, public: bool) -> None:
        """Publish a checkpoint or withdraw it: a flag, because the server has one user."""
        self._sessions.check_writable()
        record = self._checkpoint(run_id, kind, name)
        self._sessions.records.put(record.model_copy(update={"public": public}))

    def sampler(self, sampler_id: str) -> Mapping[str, Any]:
        record = self._record(SamplerRecord, sampler_id)
        return {"sampler_id": record.id, "base_model": record.base, "model_path": record.path}

    def file_urls(self, run_id: str, kind: str, name: str, base_url: str) -> Mapping[str, Any]:
        """Return URLs of the files of exported weights, valid for an hour and without a key."""
        record = self._checkpoint(run_id, kind, name)
        if record.kind != "external_weights":
            raise ConfigError(
                f"{record.path!r} has no files to download; export it with save_weights_external"
            )
        until = int(time.time()) + URL_TTL
        prefix = f"{base_url}/api/v1/files/{record.id}"
        urls = {
            file: f"{prefix}/{file}?until={until}&signature={_signature(record.id, file, until)}"
            for file in self._sessions.exports.names(record, self._base(record))
        }
        return {"urls": urls, "expires": datetime.fromtimestamp(until, UTC).isoformat()}

    def file(self, checkpoint: str, file: str, until: int, signature: str) -> bytes:
        """Return the file of a signed URL; raises NotFound if it is expired or not signed here."""
        expected = _signature(checkpoint, file, until)
        if until < time.time() or not hmac.compare_digest(signature.encode(), expected.encode()):
            raise NotFound(
                "this URL was not signed by this server, or it has expired: request another"
            )
        record = self._record(CheckpointRecord, checkpoint)
        files = self._sessions.exports.files(record, self._base(record))
        if file not in files:
            raise NotFound(f"{record.path} has no file {file!r}; request its URLs again")
        return files[file]

    def _base(self, record: CheckpointRecord) -> str:
        return self._sessions.models.public_name(record.base)

    def _checkpoint(self, run_id: str, kind: str, name: str) -> CheckpointRecord:
        return self._record(CheckpointRecord, checkpoint_id(f"tinker://{run_id}/{kind}/{name}"))

    def _record(self, kind: type[R], key: str) -> R:
        record = self._sessions.records.get(kind, key)
        if record is None:
            raise NotFound(f"there is no {kind.folder[:-1]} {key!r}")
        return record

    def _run_json(self, run: RunRecord) -> Mapping[str, Any]:
        run = self._sessions.current_run(run)
        records = self._sessions.checkpoints(f"{run.id}/")
        last = {CHECKPOINT_TYPES[record.kind]: _checkpoint_json(record) for record in records}
        metadata = {key: str(value) for key, value in (run.metadata or {}).items()}
        return {
            "training_run_id": run.id,
            "base_model": run.base,
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": run.lora.rank,
            "last_request_time": run.last_request_at.isoformat(),
            "last_checkpoint": last.get("training"),
            "last_sampler_checkpoint": last.get("sampler"),
            "user_metadata": metadata or None,
        }


def _checkpoint_json(record: CheckpointRecord) -> Mapping[str, Any]:
    return {
        "checkpoint_id": f"{record.kind}/{record.name}",
        "checkpoint_type": CHECKPOINT_TYPES[record.kind],
        "time": record.created_at.isoformat(),
        "tinker_path": record.path,
        "size_bytes": record.size_bytes,
        "public": record.public,
        "user_metadata": record.metadata,
        "expires_at": record.expires and record.expires.isoformat(),
    }


def _cursor(limit: int, offset: int, records: Sequence[Any]) -> Mapping[str, int]:
    return {"offset": offset, "limit": limit, "total_count": len(records)}


def _signature(checkpoint: str, file: str, until: int) -> str:
    message = f"{checkpoint}\n{file}\n{until}"
    return hmac.new(_SECRET, message.encode(), hashlib.sha256).hexdigest()
