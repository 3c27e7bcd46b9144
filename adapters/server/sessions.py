"""Sessions of clients, the models they train, and the models that the server offers."""

from __future__ import annotations

import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from adapters.folders import model_config
from adapters.server.exports import Exports, is_encrypted_export, public_base_name
from adapters.server.futures import FutureStore, Gone, RequestOrder
from adapters.server.limits import Limits
from adapters.server.records import (
    ROOT,
    CheckpointRecord,
    Records,
    RunRecord,
    SamplerRecord,
    SessionRecord,
    checkpoint_id,
    sampler_of_snapshot,
)
from kitchen.errors import BackendError, ConfigError, DataError, did_you_mean
from kitchen.ports.hub import HubClient
from kitchen.ports.training import TrainingBackend, TrainingSession
from kitchen.types import Checkpoint

log = structlog.get_logger("kitchen.serve")
# prefix of the names of all weights that the training client stores for this server
PREFIX = f"{ROOT}/"


class NotFound(LookupError):
    """An id or path that never existed on this server."""


@dataclass
class Model:
    """A model under training, and the order of its requests."""

    run: RunRecord
    session: TrainingSession
    order: RequestOrder = field(default_factory=RequestOrder)
    saving: set[str] = field(default_factory=set)  # ids of checkpoints that are being written


@dataclass
class ClientSession:
    """A client's open session, with the models that it trains."""

    record: SessionRecord
    last_seen: float  # seconds on the clock of Sessions
    models: dict[str, Model] = field(default_factory=dict)
    # ids of samplers of snapshots, the most recently used last
    snapshots: OrderedDict[str, None] = field(default_factory=OrderedDict)


@dataclass(frozen=True)
class ServedModel:
    """A base model that the server offers."""

    name: str  # the training client's name for it
    context: int | None = None  # maximum number of tokens, if its configuration gives it
    folder: str = ""  # where AutoTokenizer of transformers finds its tokenizer

    @classmethod
    def fetch(cls, model: str, hub: HubClient) -> ServedModel:
        """Fetch a model, so that no client waits for it later; raises BackendError."""
        if "config.json" not in hub.files(model):  # a stand-in for a model
            return cls(model)
        folder = hub.fetch(model)
        context = model_config(folder).get("max_position_embeddings")
        return cls(model, context, _sdk_path(str(folder)))


@dataclass(frozen=True)
class ServedModels:
    """The base models that the server offers, by the names that clients use."""

    by_name: Mapping[str, ServedModel]

    def get(self, name: str) -> ServedModel:
        """Return a model; raises BackendError if it is not offered."""
        if name not in self.by_name:
            raise BackendError(
                f"the model {name!r} is not served here; {did_you_mean(name, self.public_names)}"
            )
        return self.by_name[name]

    @property
    def public_names(self) -> Sequence[str]:
        """The names of models and aliases, without the models' folders on this machine."""
        return [name for name, model in self.by_name.items() if name != model.folder]

    def public_name(self, base: str) -> str:
        """Return the name of a base model for files that clients download."""
        model = self.by_name.get(base)
        return public_base_name(base, base if model is None else model.name)


class Sessions:
    """All open sessions of a server; to be used in its event loop only."""

    def __init__(
        self,
        training: TrainingBackend,
        records: Records,
        models: ServedModels,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.training = training
        self.records = records
        self.models = models
        self.exports = Exports(training, records)
        self.limits = limits or Limits()
        self.futures = FutureStore(self.limits, clock)
        self.on_end: list[Callable[[str], None]] = []  # called with the id of a session that ends
        self._clock = clock
        self._clients = {
            record.id: ClientSession(record, clock()) for record in records.all(SessionRecord)
        }
        for sampler in records.all(SamplerRecord):
            if sampler.is_only_user and sampler.session in self._clients:
                self._clients[sampler.session].snapshots[sampler.id] = None
        # left by saves that an earlier server did not record before it stopped
        self.delete_unused([*self.training.checkpoints(PREFIX), *self.exports.stored()])

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._clients.values()))

    def open(
        self, metadata: Mapping[str, Any] | None, name: str | None, project: str | None
    ) -> ClientSession:
        record = SessionRecord(
            id=str(uuid.uuid4()), metadata=dict(metadata or {}), name=name, project=project
        )
        self.records.put(record)
        self._clients[record.id] = ClientSession(record, self._clock())
        return self._clients[record.id]

    def client(self, session_id: str) -> ClientSession:
        """Return an open session, and record that its client is active; raises Gone."""
        if session_id not in self._clients:
            raise Gone(
                f"there is no session {session_id!r}: it has ended, or belongs to another server"
            )
        client = self._clients[session_id]
        client.last_seen = self._clock()
        return client

    def set_project(self, record: SessionRecord, project: str) -> None:
        """Move a session and its runs to another project."""
        runs = self.records.all(RunRecord, f"{record.id}:")
        moved: list[SessionRecord | RunRecord] = [record, *map(self.current_run, runs)]
        for each in moved:
            each.project = project
            self.records.put(each)

    def current_run(self, run: RunRecord) -> RunRecord:
        """Return the live record of a run that is under training, else the given one."""
        client = self._clients.get(run.session)
        model = client.models.get(run.id) if client is not None else None
        return run if model is None else model.run

    def note_poll(self, request_id: str) -> None:
        """Record that the client that polls for this request is active."""
        client = self._clients.get(request_id.partition(":")[0])
        if client is not None:
            client.last_seen = self._clock()

    def model(self, model_id: str) -> Model:
        """Return a model under training.

        Raises Gone for one that ended with its session or server, NotFound for an unknown one.
        """
        client = self._clients.get(model_id.partition(":")[0])
        if client is not None and model_id in client.models:
            client.last_seen = self._clock()
            return client.models[model_id]
        if self.records.get(RunRecord, model_id) is not None:
            raise Gone(
                f"the model {model_id!r} is no longer in memory: its session or its server has "
                "ended; load one of its checkpoints"
            )
        raise NotFound(f"there is no model {model_id!r}")

    def checkpoint(self, path: str) -> CheckpointRecord:
        """Return saved weights; raises DataError for a bad path, missing or expired weights."""
        record = self.records.get(CheckpointRecord, checkpoint_id(path))
        if record is None:
            raise DataError(f"there are no weights at {path!r}; check the path")
        if record.is_expired:
            raise DataError(f"the weights at {path!r} have expired")
        return record

    def checkpoint_to_sample(self, path: str) -> CheckpointRecord:
        """Return saved weights that a sampler can open; raises ConfigError for encrypted ones."""
        record = self.checkpoint(path)
        if record.is_encrypted:
            raise ConfigError(
                f"{path!r} is encrypted; sample from tinker://RUN/sampler_weights/NAME"
            )
        return record

    def base_of(self, path: str, saved_base: str, base: str | None) -> str:
        """Return the base model that a request for saved weights names, or that of the weights.

        Raises ConfigError if they are different models, BackendError for one that is not served.
        """
        if base is not None and self.models.get(base) != self.models.get(saved_base):
            raise ConfigError(
                f"base_model is {base!r}, but the weights at {path!r} belong to {saved_base!r}: "
                f"leave base_model out, or give {saved_base!r}"
            )
        return base or saved_base

    def snapshot(self, path: str) -> SamplerRecord | None:
        """Return the sampling session whose snapshot a path names; None for another path."""
        sampler_id = sampler_of_snapshot(path)
        return None if sampler_id is None else self.records.get(SamplerRecord, sampler_id)

    def check_writable(self) -> None:
        """Raise ConfigError for a request that a replica leaves to the server that trains."""
        if self.records.is_replica:
            raise ConfigError(
                "this server is a replica (--replica), which only samples: send this request to "
                "the server that trains"
            )

    def checkpoints(self, prefix: str = "") -> Sequence[CheckpointRecord]:
        records = self.records.all(CheckpointRecord, prefix)
        return [record for record in records if not record.is_expired]

    def add_snapshot(self, record: SamplerRecord) -> None:
        """Record the sampler of a snapshot, and delete the oldest samplers above the limit."""
        self.records.put(record)
        snapshots = self._clients[record.session].snapshots
        snapshots[record.id] = None
        excess = max(len(snapshots) - self.limits.snapshots_per_session, 0)
        for sampler_id in list(snapshots)[:excess]:
            del snapshots[sampler_id]
            sampler = self.records.get(SamplerRecord, sampler_id)
            if sampler is not None:
                self.records.remove(sampler)
                self.delete_unused([sampler.weights])

    def delete_checkpoint(self, record: CheckpointRecord) -> None:
        self.records.remove(record)  # first: a half-deleted checkpoint must not be listed
        self.delete_unused([record.weights])

    def delete_unused(self, checkpoints: Iterable[Checkpoint | None]) -> None:
        """Delete weights that no record references; samplers hold references to theirs."""
        if self.records.is_replica:
            return  # they belong to another server
        samplers = self.records.all(SamplerRecord)
        used = {record.weights.path for record in samplers if record.weights is not None}
        used |= {record.weights.path for record in self.records.all(CheckpointRecord)}
        by_path = {weights.path: weights for weights in checkpoints if weights is not None}
        for path, weights in by_path.items():
            if path not in used:
                store = self.exports if is_encrypted_export(weights) else self.training
                store.delete(weights)

    def sweep(self) -> None:
        """End sessions of silent clients, and drop old results and expired checkpoints."""
        self.futures.sweep()
        for client in self:
            if self._clock() - client.last_seen > self.limits.session_timeout:
                self.end(client)
        if self.records.is_replica:
            return
        for record in self.records.all(CheckpointRecord):
            if record.is_expired:
                self.delete_checkpoint(record)

    def end(self, client: ClientSession) -> None:
        """End a session: close its models, and delete weights that only it could sample from."""
        session_id = client.record.id
        log.info("session ends", session=session_id)
        del self._clients[session_id]
        self.futures.end_session(session_id)
        for callback in self.on_end:
            callback(session_id)
        for model in client.models.values():
            model.session.close()
            self.records.put(model.run)
        self.records.remove(client.record)
        samplers = self.records.all(SamplerRecord, f"{session_id}:")
        for sampler in samplers:
            self.records.remove(sampler)
        # snapshots that were saved after their client had stopped waiting
        unrecorded = self.training.checkpoints(snapshot_name(f"{session_id}:"))
        self.delete_unused([*(sampler.weights for sampler in samplers), *unrecorded])

    def close(self) -> None:
        """Stop the server: release what is in memory; the records stay for the next server."""
        for client in self:
            self.futures.end_session(client.record.id)
            for model in client.models.values():
                model.session.close()
                self.records.put(model.run)


def _sdk_path(folder: str) -> str:
    """Return an equivalent path that the SDK 0.38 leaves unchanged.

    The SDK cuts off the last part of a path with exactly two slashes.
    """
    return f"/{folder}" if folder.count("/") == 2 else folder


def checkpoint_name(record_id: str) -> str:
    """Return a new name, for the training client, of a checkpoint that clients know by name."""
    return f"{PREFIX}kept/{record_id.replace(':', '~')}/{secrets.token_hex(4)}"


def snapshot_name(sampler_id: str) -> str:
    """Return the name, for the training client, of a snapshot that only a sampling session uses."""
    return f"{PREFIX}own/{sampler_id.replace(':', '~')}"
