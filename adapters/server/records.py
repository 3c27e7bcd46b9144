"""Sessions, runs, samplers and checkpoints in the blob store, which outlive the server."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, TypeVar

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.types import Checkpoint, Lora

log = structlog.get_logger("kitchen.serve")
ROOT = "_served"  # no run can have this name
# with optimiser state, for sampling, and for other programs, respectively
Kind = Literal["weights", "sampler_weights", "external_weights"]
# the API's names of the kinds
CHECKPOINT_TYPES = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
SAMPLER = ":sample:"  # in the ids of sampling sessions, and so in those of their requests
SNAPSHOT = "snapshot"  # the name in the path of a snapshot
MIN_TTL = 3600  # minimum lifetime of a checkpoint, in seconds
MAX_TTL = 10 * 366 * 24 * 3600  # seconds
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,127}")
_PATH = re.compile(r"tinker://([\w:-]+)/(weights|sampler_weights|external_weights)/([^/]+)")


def now() -> datetime:
    return datetime.now(UTC)


class Record(BaseModel):
    """A record stored under its id in the folder of its kind."""

    model_config = ConfigDict(populate_by_name=True)
    folder: ClassVar[str]
    id: str
    created_at: datetime = Field(default_factory=now, alias="made")


class SessionRecord(Record):
    """A client's session."""

    folder = "sessions"
    metadata: dict[str, Any] | None = None
    name: str | None = None
    project: str | None = None


class RunRecord(Record):
    """A model that is or was in training."""

    folder = "runs"
    session: str
    base: str  # the base model, as the client named it
    lora: Lora
    last_request_at: datetime = Field(default_factory=now, alias="last")
    metadata: dict[str, Any] | None = None
    project: str | None = None  # of its session


class SamplerRecord(Record):
    """A sampling session of a base model, or of weights as they were when it began."""

    folder = "samplers"
    session: str
    base: str
    path: str | None = None  # the client's path of the weights
    weights: Checkpoint | None = Field(default=None, alias="inner")  # None is the base model itself
    is_only_user: bool = Field(default=False, alias="own")  # the weights are deleted with it


class CheckpointRecord(Record):
    """Saved weights; the id is RUN/KIND/NAME, as in their path in the API."""

    folder = "checkpoints"
    base: str
    lora: Lora
    weights: Checkpoint = Field(alias="inner")  # the training client's checkpoint
    expires: datetime | None = None
    metadata: dict[str, str] | None = None
    size_bytes: int | None = None  # of its files; None if an earlier version of the server saved it
    public: bool = False
    is_encrypted: bool = False  # `weights` is then a folder of files that this server encrypted

    @property
    def kind(self) -> str:
        return self.id.split("/")[1]

    @property
    def name(self) -> str:
        return self.id.split("/")[2]

    @property
    def path(self) -> str:
        return f"tinker://{self.id}"

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and self.expires <= now()


R = TypeVar("R", bound=Record)


class Records:
    """All records of a server, each written whole or not at all.

    They are read once, because no other process writes here while this server holds the lease.
    Raises RunFailed for a record that cannot be read.
    """

    is_replica = False

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self._lock = threading.Lock()  # listings run on other threads
        kinds: Sequence[type[Record]] = (SessionRecord, RunRecord, SamplerRecord, CheckpointRecord)
        self._records: dict[str, Record] = {}
        for kind in kinds:
            for name in blobs.list(_blob_name(kind.folder, "", "")):
                self._records[name] = _read(kind, name, blobs)

    def put(self, record: Record) -> None:
        name = _blob_name(record.folder, record.id)
        with self._lock:
            self.blobs.write(name, record.model_dump_json(by_alias=True).encode())
            self._records[name] = record

    def get(self, kind: type[R], id: str) -> R | None:
        record = self._records.get(_blob_name(kind.folder, id))
        return record if isinstance(record, kind) else None

    def all(self, kind: type[R], prefix: str = "") -> Sequence[R]:
        """Return the records whose id starts with the prefix, oldest first."""
        blob_prefix = _blob_name(kind.folder, prefix, "")
        with self._lock:
            records = [
                record
                for name, record in self._records.items()
                if isinstance(record, kind) and name.startswith(blob_prefix)
            ]
        return sorted(records, key=lambda record: record.created_at)

    def size_bytes(self, weights: Checkpoint) -> int:
        """Return the size of all files of saved weights; reads them."""
        files = self.blobs.list(f"{weights.path}/")
        return sum(len(self.blobs.read(file) or b"") for file in files)

    def remove(self, record: Record) -> None:
        name = _blob_name(record.folder, record.id)
        with self._lock:
            self.blobs.delete(name)
            self._records.pop(name, None)


class ReplicaRecords(Records):
    """The records that a replica sees: those of the server that trains, and its own sessions.

    The records of the other server are read whenever they are needed, and never written. A damaged
    one is left out of lists.
    """

    is_replica = True

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self._lock = threading.Lock()
        self._records = {}  # of this replica's own clients
        self._damaged = set[str]()  # names of records that were reported

    def put(self, record: Record) -> None:
        with self._lock:
            self._records[_blob_name(record.folder, record.id)] = record

    def get(self, kind: type[R], id: str) -> R | None:
        if (own := super().get(kind, id)) is not None:
            return own
        return self._stored(kind, _blob_name(kind.folder, id))

    def all(self, kind: type[R], prefix: str = "") -> Sequence[R]:
        """Return the records whose id starts with the prefix; only its own of sessions."""
        own = super().all(kind, prefix)
        if kind in (SessionRecord, SamplerRecord):
            return own
        names = self.blobs.list(_blob_name(kind.folder, prefix, ""))
        stored = (self._listed(kind, name) for name in names)
        records = [*own, *(record for record in stored if record is not None)]
        return sorted(records, key=lambda record: record.created_at)

    def remove(self, record: Record) -> None:
        with self._lock:
            self._records.pop(_blob_name(record.folder, record.id), None)

    def _listed(self, kind: type[R], name: str) -> R | None:
        """Return a record; None for a damaged one, which is reported once."""
        try:
            return self._stored(kind, name)
        except RunFailed as error:
            with self._lock:
                is_new = name not in self._damaged
                self._damaged.add(name)
            if is_new:
                log.warning("a record of the other server is left out of lists", reason=str(error))
            return None

    def _stored(self, kind: type[R], name: str) -> R | None:
        data = self.blobs.read(name)
        return None if data is None else _parse(kind, name, data)


def _read(kind: type[R], name: str, blobs: BlobStore) -> R:
    return _parse(kind, name, blobs.read(name) or b"")


def _parse(kind: type[R], name: str, data: bytes) -> R:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise RunFailed(
            f"the server's record {name!r} cannot be read: {error.errors()[0]['msg']}; delete it "
            "to start without what it describes"
        ) from error


def _blob_name(folder: str, id: str, suffix: str = ".json") -> str:
    """Return the blob name of an id; colons, which some file systems forbid, become tildes."""
    return f"{ROOT}/{folder}/{id.replace(':', '~')}{suffix}"


def snapshot_path(sampler_id: str) -> str:
    """Return the path by which replicas open the snapshot of a sampling session."""
    return f"tinker://{sampler_id}/sampler_weights/{SNAPSHOT}"


def sampler_of_snapshot(path: str) -> str | None:
    """Return the id of the sampling session in the path of a snapshot, else None."""
    match = _PATH.fullmatch(path)
    is_snapshot = match is not None and SAMPLER in match[1] and match[3] == SNAPSHOT
    return match[1] if match is not None and is_snapshot else None


def checkpoint_id(path: str) -> str:
    """Return the record id of an API path; raises DataError."""
    if (match := _PATH.fullmatch(path)) is None:
        raise DataError(
            f"{path!r} is not a path of weights; give tinker://RUN/weights/NAME or "
            "tinker://RUN/sampler_weights/NAME"
        )
    return f"{match[1]}/{match[2]}/{match[3]}"


def check_name(name: str | None) -> str:
    """Return the client's name for a checkpoint, or a generated one; raises ConfigError."""
    if name is None:
        return f"unnamed-{secrets.token_hex(4)}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a checkpoint; use up to 128 letters, digits and "
            "._+-, with a letter or digit first"
        )
    return name


def check_number(field: str, number: int | None) -> int:
    """Return the client's number of a model or sampler; raises ConfigError for a bad one."""
    if number is None or not 0 <= number < 2**63:
        raise ConfigError(f"{field} is {number}, and must be a number of at least 0, below 2^63")
    return number


def expiry(seconds: int | None) -> datetime | None:
    """Return when a checkpoint expires; raises ConfigError outside an hour to ten years."""
    if seconds is None:
        return None
    if not MIN_TTL <= seconds <= MAX_TTL:
        raise ConfigError(
            f"ttl_seconds is {seconds}, and must be from {MIN_TTL} (an hour) to {MAX_TTL} (ten "
            "years)"
        )
    return now() + timedelta(seconds=seconds)
