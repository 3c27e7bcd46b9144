"""Clients, the models that they train, and what the server has to offer them."""

from __future__ import annotations

import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from adapters.folders import model_config
from adapters.server.promises import Gone, Promises, Turns
from adapters.server.records import (
    ROOT,
    CheckpointRecord,
    Records,
    RunRecord,
    SamplerRecord,
    SessionRecord,
    checkpoint_id,
)
from kitchen.errors import BackendError, DataError, did_you_mean
from kitchen.ports.hub import HubClient
from kitchen.ports.training import TrainingBackend, TrainingSession
from kitchen.types import Checkpoint

log = structlog.get_logger("kitchen.serve")
# what the names of all weights begin with that the training client keeps for this server
SERVED = f"{ROOT}/"
SNAPSHOTS = 64  # of a session, that are kept for sampling; the one used longest ago goes first
# seconds without a word from a client, after which its session ends; the SDK calls every 10
PATIENCE = 300.0


class Absent(LookupError):
    """Something that there never was."""


@dataclass
class Model:
    """A training session and the order of its requests."""

    run: RunRecord
    session: TrainingSession
    turns: Turns = field(default_factory=Turns)
    saving: set[str] = field(default_factory=set)  # ids of checkpoints that are being written


@dataclass
class Client:
    """A session of the API."""

    record: SessionRecord
    seen: float = field(default_factory=time.monotonic)
    models: dict[str, Model] = field(default_factory=dict)
    # the one used last at the end
    snapshots: OrderedDict[str, None] = field(default_factory=OrderedDict)


@dataclass(frozen=True)
class Dish:
    """A model that is offered."""

    ours: str  # what the training client calls it
    # tokens that it reads at most, as its configuration says, if it has one
    context: int | None = None
    folder: str = ""  # where AutoTokenizer of transformers finds its tokenizer

    @classmethod
    def of(cls, model: str, hub: HubClient) -> Dish:
        """Fetched now, so that no client waits for it; raises BackendError for one that is not
        there.
        """
        if "config.json" not in hub.files(model):  # a stand-in for a model
            return cls(model)
        folder = hub.fetch(model)
        return cls(
            model, model_config(folder).get("max_position_embeddings"), _for_sdk(str(folder))
        )


@dataclass(frozen=True)
class Menu:
    """What is offered, by the names that clients say."""

    dishes: Mapping[str, Dish]

    def dish(self, name: str) -> Dish:
        """Raises BackendError for a model that is not offered."""
        if name not in self.dishes:
            raise BackendError(
                f"the model {name!r} is not served here; {did_you_mean(name, self.dishes)}"
            )
        return self.dishes[name]


class Sessions:
    """All that there is at the moment; only to be touched in the event loop of the server."""

    def __init__(self, training: TrainingBackend, records: Records, menu: Menu) -> None:
        self.training, self.records, self.menu, self.promises = training, records, menu, Promises()
        self.ended: list[Callable[[str], None]] = []  # called with the id of each session that ends
        self._clients = {record.id: Client(record) for record in records.all(SessionRecord)}
        for sampler in records.all(SamplerRecord):
            if sampler.own and sampler.session in self._clients:
                self._clients[sampler.session].snapshots[sampler.id] = None
        # of saves that an earlier server did not live to record
        self.let_go(self.training.checkpoints(SERVED))

    def __iter__(self) -> Any:
        return iter(list(self._clients.values()))

    def open(
        self, metadata: Mapping[str, Any] | None, name: str | None, project: str | None
    ) -> Client:
        record = SessionRecord(
            id=str(uuid.uuid4()), metadata=dict(metadata or {}), name=name, project=project
        )
        self.records.put(record)
        self._clients[record.id] = Client(record)
        return self._clients[record.id]

    def client(self, session_id: str) -> Client:
        """Raises Gone."""
        if session_id not in self._clients:
            raise Gone(f"there is no session {session_id!r}: it has ended, or is another server's")
        found = self._clients[session_id]
        found.seen = time.monotonic()
        return found

    def run(self, run: RunRecord) -> RunRecord:
        """As it is now, if it is under training here."""
        client = self._clients.get(run.session)
        model = client.models.get(run.id) if client is not None else None
        return run if model is None else model.run

    def seen(self, request_id: str) -> None:
        """A client is there that asks for the answer to this."""
        if (found := self._clients.get(request_id.partition(":")[0])) is not None:
            found.seen = time.monotonic()

    def model(self, model_id: str) -> Model:
        """Raises Gone for one that was lost with an earlier server or session, Absent for one that
        never was.
        """
        client = self._clients.get(model_id.partition(":")[0])
        if client is not None and model_id in client.models:
            client.seen = time.monotonic()
            return client.models[model_id]
        if self.records.get(RunRecord, model_id) is not None:
            raise Gone(
                f"the model {model_id!r} is not in memory any more: its session or its server has "
                "ended; go on "
                "from one of its checkpoints"
            )
        raise Absent(f"there is no model {model_id!r}")

    def checkpoint(self, path: str) -> CheckpointRecord:
        """Raises DataError for a path that is none, or of weights that are not there or have
        expired.
        """
        found = self.records.get(CheckpointRecord, checkpoint_id(path))
        if found is None or found.over:
            raise DataError(
                f"there are no weights {path!r}" + (": they have expired" if found else "")
            )
        return found

    def checkpoints(self, prefix: str = "") -> Sequence[CheckpointRecord]:
        return [record for record in self.records.all(CheckpointRecord, prefix) if not record.over]

    def snapshot(self, record: SamplerRecord) -> None:
        """Keep one that a model has made for itself, and no more of them than there may be."""
        self.records.put(record)
        mine = self._clients[record.session].snapshots
        mine[record.id] = None
        for old in list(mine)[: max(len(mine) - SNAPSHOTS, 0)]:
            del mine[old]
            if (sampler := self.records.get(SamplerRecord, old)) is not None:
                self.records.remove(sampler)
                self.let_go([sampler.inner])

    def remove(self, record: CheckpointRecord) -> None:
        self.records.remove(record)  # first: what is half deleted is no checkpoint
        self.let_go([record.inner])

    def let_go(self, inners: Iterable[Checkpoint | None]) -> None:
        """Delete the weights that nothing names any more: a sampler goes on with those it began
        with.
        """
        named = {
            each.inner.path for each in self.records.all(SamplerRecord) if each.inner is not None
        }
        named |= {each.inner.path for each in self.records.all(CheckpointRecord)}
        for path, inner in {each.path: each for each in inners if each is not None}.items():
            if path not in named:
                self.training.delete(inner)

    def sweep(self) -> None:
        """End the sessions of clients that are silent, forget what was fetched, delete what has
        expired.
        """
        self.promises.sweep()
        for client in self:
            if time.monotonic() - client.seen > PATIENCE:
                self.end(client)
        for record in self.records.all(CheckpointRecord):
            if record.over:
                self.remove(record)

    def end(self, client: Client) -> None:
        """Close what it trains, and delete what only it could sample from."""
        log.info("session ends", session=client.record.id)
        del self._clients[client.record.id]
        self.promises.end(client.record.id)
        for forget in self.ended:
            forget(client.record.id)
        for model in client.models.values():
            model.session.close()
            self.records.put(model.run)
        self.records.remove(client.record)
        samplers = self.records.all(SamplerRecord, f"{client.record.id}:")
        for sampler in samplers:
            self.records.remove(sampler)
        # what was saved and nobody waited for
        unawaited = self.training.checkpoints(own(f"{client.record.id}:"))
        self.let_go([*(each.inner for each in samplers), *unawaited])

    def close(self) -> None:
        """The server stops: what is in memory is let go, what is kept stays for the next one."""
        for client in self:
            self.promises.end(client.record.id)
            for model in client.models.values():
                model.session.close()
                self.records.put(model.run)


def _for_sdk(folder: str) -> str:
    """The same folder by a name that the SDK 0.38 leaves alone: of one with two slashes it cuts the
    last part off.
    """
    return f"/{folder}" if folder.count("/") == 2 else folder


def kept(record_id: str) -> str:
    """What the training client calls weights that clients have a name for; each save has a name of
    its own.
    """
    return f"{SERVED}kept/{record_id.replace(':', '~')}/{secrets.token_hex(4)}"


def own(sampler_id: str) -> str:
    """What the training client calls a snapshot that nobody but a sampling session has."""
    return f"{SERVED}own/{sampler_id.replace(':', '~')}"
