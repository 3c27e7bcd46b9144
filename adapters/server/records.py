"""What is kept in the blob store, so that it outlives the server: sessions, runs, samplers and
checkpoints.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.types import Checkpoint, Lora

ROOT = "_served"  # which no run can be called
# with optimiser, for sampling, for other programs
Kind = Literal["weights", "sampler_weights", "external_weights"]
# what the API calls them
TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
SHORTEST, LONGEST = 3600, 10 * 366 * 24 * 3600  # seconds that a checkpoint may be given to live
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,127}")
_PATH = re.compile(r"tinker://([\w:-]+)/(weights|sampler_weights|external_weights)/([^/]+)")


def now() -> datetime:
    return datetime.now(UTC)


class Record(BaseModel):
    """Something kept under its id; `folder` is where those of its kind lie."""

    folder: ClassVar[str]
    id: str
    made: datetime = Field(default_factory=now)


class SessionRecord(Record):
    """A client and the time it was there."""

    folder = "sessions"
    metadata: dict[str, Any] | None = None
    name: str | None = None
    project: str | None = None


class RunRecord(Record):
    """A model under training, or that was."""

    folder = "runs"
    session: str
    base: str  # as the client called it
    lora: Lora
    last: datetime = Field(default_factory=now)
    metadata: dict[str, Any] | None = None


class SamplerRecord(Record):
    """What a sampling session draws from: a base model, or weights as they were when it began."""

    folder = "samplers"
    session: str
    base: str
    path: str | None = None  # by which the client knows the weights
    inner: Checkpoint | None = None  # the weights; None is the base model itself
    own: bool = False  # nobody else has them, so they are deleted with it


class CheckpointRecord(Record):
    """Saved weights; the id is RUN/KIND/NAME, as in their path of the API."""

    folder = "checkpoints"
    base: str
    lora: Lora
    inner: Checkpoint  # what the training client calls it
    expires: datetime | None = None
    metadata: dict[str, str] | None = None

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
    def over(self) -> bool:
        return self.expires is not None and self.expires <= now()


R = TypeVar("R", bound=Record)


class Records:
    """Each is written whole or not at all, and read once: nobody else writes here while this server
    has the lease.

    Raises RunFailed for one that cannot be read.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()  # listings are asked for by threads of their own
        kinds: Sequence[type[Record]] = (SessionRecord, RunRecord, SamplerRecord, CheckpointRecord)
        self._read = {
            name: _record(kind, name, blobs)
            for kind in kinds
            for name in blobs.list(_blob(kind.folder, "", ""))
        }

    def put(self, record: Record) -> None:
        name = _blob(record.folder, record.id)
        with self._lock:
            self._blobs.write(name, record.model_dump_json().encode())
            self._read[name] = record

    def get(self, kind: type[R], id: str) -> R | None:
        found = self._read.get(_blob(kind.folder, id))
        return found if isinstance(found, kind) else None

    def all(self, kind: type[R], prefix: str = "") -> Sequence[R]:
        """Those whose id begins so, the oldest first."""
        beginning = _blob(kind.folder, prefix, "")
        with self._lock:
            found = [
                record
                for name, record in self._read.items()
                if isinstance(record, kind) and name.startswith(beginning)
            ]
        return sorted(found, key=lambda record: record.made)

    def remove(self, record: Record) -> None:
        name = _blob(record.folder, record.id)
        with self._lock:
            self._blobs.delete(name)
            self._read.pop(name, None)


def _record(kind: type[Record], name: str, blobs: BlobStore) -> Record:
    try:
        return kind.model_validate_json(blobs.read(name) or b"")
    except ValidationError as error:
        raise RunFailed(
            f"the record {name!r} of the server cannot be read: {error.errors()[0]['msg']}; delete "
            "it, and "
            "what it names is no longer known"
        ) from error


def _blob(folder: str, id: str, end: str = ".json") -> str:
    """Ids of runs have colons, which names of files on some systems cannot."""
    return f"{ROOT}/{folder}/{id.replace(':', '~')}{end}"


def checkpoint_id(path: str) -> str:
    """Of a path of the API; raises DataError."""
    if (match := _PATH.fullmatch(path)) is None:
        raise DataError(
            f"{path!r} is no path of weights: tinker://RUN/weights/NAME and "
            "tinker://RUN/sampler_weights/NAME are"
        )
    return f"{match[1]}/{match[2]}/{match[3]}"


def check_name(name: str | None) -> str:
    """What a client calls a checkpoint, or one made up; raises ConfigError."""
    if name is None:
        return f"unnamed-{secrets.token_hex(4)}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a checkpoint: up to 128 letters, digits and . _ + - "
            "can"
        )
    return name


def expiry(seconds: int | None) -> datetime | None:
    """Raises ConfigError for what is not between an hour and ten years."""
    if seconds is None:
        return None
    if not SHORTEST <= seconds <= LONGEST:
        raise ConfigError(
            f"ttl_seconds is {seconds}, and must be from {SHORTEST} (an hour) to {LONGEST} (ten "
            "years)"
        )
    return now() + timedelta(seconds=seconds)
