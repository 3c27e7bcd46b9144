"""State of early stopping, which ends training loops and which save points hold."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from kitchen.errors import ConfigError, CorruptCheckpoint
from kitchen.ports import BlobStore, Future
from kitchen.ports.blobs import seal, unseal
from kitchen.ports.future import Done, Failed
from kitchen.types import Checkpoint


@dataclass(frozen=True)
class StopState:
    """The evaluations so far, as far as early stopping depends on them."""

    best: float | None = None  # the best value of the metric; None before the first evaluation
    best_step: int = 0  # steps taken at that evaluation
    without_improvement: int = 0  # evaluations in a row that did not improve the metric
    stopped_at: int = 0  # steps taken when training stopped; 0 while it continues
    reason: str = ""  # why it stopped

    def __str__(self) -> str:
        return f"at step {self.stopped_at}: {self.reason}" if self.stopped_at else ""


_STATE_JSON = TypeAdapter(StopState)


class EarlyStopper:
    """The state of early stopping, which ends loops; save points hold it."""

    def __init__(self, blobs: BlobStore | None = None) -> None:
        self.state = StopState()
        self._blobs = blobs

    def save(self, name: str) -> Future[Checkpoint]:
        blobs, file = self._store(), _file(name)
        if blobs.read(file) is not None:
            return Failed(ConfigError(f"{blobs.locate(file)} exists already"))
        blobs.write(file, seal(_STATE_JSON.dump_json(self.state).decode()))
        return Done(Checkpoint(name, self.state.stopped_at))

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        blobs, file = self._store(), _file(checkpoint.path)
        try:
            self.state = _STATE_JSON.validate_json(unseal(blobs.read(file) or b""))
        except ValueError as error:  # pydantic's ValidationError is one too
            return Failed(CorruptCheckpoint(f"{blobs.locate(file)} is damaged: {error}"))
        return Done(None)

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        self._store().delete(_file(checkpoint.path))
        return Done(None)

    def _store(self) -> BlobStore:
        if self._blobs is None:
            raise ConfigError("save points of early stopping need a BlobStore")
        return self._blobs


def _file(name: str) -> str:
    return f"{name}/early_stopping.json"
