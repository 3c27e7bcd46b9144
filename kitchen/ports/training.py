"""Ports for training: TrainingClient and TrainingSession, ModelCatalog, CheckpointStore.

An adapter starts with a TrainingClient, which has three methods. It may implement ModelCatalog and
CheckpointStore too: the stages and commands that need them ask for them by type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from kitchen.errors import BackendError
from kitchen.ports.checkpointable import Checkpointable
from kitchen.ports.future import Future
from kitchen.ports.sampling import Sampler, SamplingClient, Tokenizer
from kitchen.types import (
    Adam,
    Checkpoint,
    Datum,
    Facts,
    Lora,
    Loss,
    LossOutput,
    OptimStepResult,
    Trainable,
)


class TrainingSession(Checkpointable, Protocol):
    """One set of weights in training.

    Calls take effect in the order they are made, from any thread. `save` saves weights and
    optimiser state; saving while a gradient waits for its step is an error. After a failed update,
    later calls fail too.
    """

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the model."""

    def facts(self) -> Facts:
        """Return the facts that the session's numbers depend on.

        Among them "model.sha256", "model.dtype", "machine.device", "machine.threads" and versions.
        """

    def forward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Mapping[str, float] | None = None,
    ) -> Future[LossOutput]:
        """Compute the loss alone: gradients stay as they are, and every position is scored."""

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Mapping[str, float] | None = None,
    ) -> Future[LossOutput]:
        """Compute the loss and add its gradient to the accumulated one.

        The future raises, before any gradient is touched, a DataError that names datum and field.
        """

    def optim_step(self, adam: Adam) -> Future[OptimStepResult]:
        """Step along the accumulated gradient and clear it."""

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        """Load the weights of a checkpoint of either kind, with a fresh optimiser."""

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        """Save the weights without the optimiser, in PEFT's format where the backend can."""

    def snapshot(self) -> Future[Sampler]:
        """Return a sampler of the current weights, which does not change as training continues."""

    def close(self) -> None:
        """Free the memory of the session; it cannot be used afterwards."""


class TrainingClient(SamplingClient, Protocol):
    """A training backend: Tinker's service, a local GPU, a fake."""

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        """Open a session with fresh LoRA weights on a model, or with those of an adapter.

        FullWeights needs the capability "full_weights", kinds of LoRA "rslora" and "dora".
        """


class ModelCatalog(Protocol):
    """Facts about models, without loading weights.

    Every method raises BackendError for an unknown model. If checkpoints contain a tokenizer, an
    adapter may have one more method: `checkpoint_tokenizer(checkpoint) -> Tokenizer | None`.
    """

    def find(self, model: str) -> None:
        """Raise BackendError if no session can be opened on `model`; cheap, without a network."""

    def tokenizer(self, model: str) -> Tokenizer:
        """Return the tokenizer of a model."""

    def hidden_size(self, model: str) -> int | None:
        """Return the hidden size of a model, or None where it is not known."""

    def lora(self, model: str) -> Lora | None:
        """Return the rank and alpha of the LoRA weights in an adapter's folder; None for a model.

        A session on that name continues their training, and must have this rank and alpha.
        """

    def notes(self, model: str, trainable: Trainable) -> Sequence[tuple[str, str]]:
        """Return rows of a table: what a user should know before weights of a model are trained."""

    def sha256(self, model: str) -> str | None:
        """Return the digest of a model's weights now; None where a service publishes none."""


class CheckpointStore(Protocol):
    """The checkpoints that sessions of a backend have saved."""

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        """List the checkpoints whose path begins with `prefix`."""

    def delete(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint; deleting one that is gone already is no error."""

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Write weights for other programs into a folder, which appears whole or not at all.

        The folder is PEFT's with the tokenizer, or with `merged` a whole model that plain
        transformers opens. Needs the capability "export", or "export merged". Raises BackendError
        where there is nothing to export, ConfigError for a folder in use.
        """


class TrainingBackend(TrainingClient, ModelCatalog, CheckpointStore, Protocol):
    """An adapter that implements all three ports of training."""


_MISSING = {ModelCatalog: "describes no models", CheckpointStore: "lists no checkpoints"}


def training_ports(adapter: TrainingClient) -> dict[Any, Any]:
    """Return a training adapter under each of the port types that it implements."""
    optional = [port for port in _MISSING if _implements(adapter, port)]
    return dict.fromkeys([TrainingClient, *optional], adapter)


def why_missing(port: Any, adapter: object) -> str:
    """Explain that a training adapter does not implement a port; empty where it does."""
    if port not in _MISSING or _implements(adapter, port):
        return ""
    return (
        f"the training adapter {adapter.__class__.__name__} {_MISSING[port]}: "
        f"implement kitchen.ports.{port.__name__}"
    )


def find_catalog(client: TrainingClient) -> ModelCatalog | None:
    """Return a client as the ModelCatalog that it may be."""
    return cast(ModelCatalog, client) if _implements(client, ModelCatalog) else None


def require_catalog(client: TrainingClient) -> ModelCatalog:
    """Return a client as a ModelCatalog; raises BackendError if it is not one."""
    if problem := why_missing(ModelCatalog, client):
        raise BackendError(problem)
    return cast(ModelCatalog, client)


def require_checkpoints(client: TrainingClient) -> CheckpointStore:
    """Return a client as a CheckpointStore; raises BackendError if it is not one."""
    if problem := why_missing(CheckpointStore, client):
        raise BackendError(problem)
    return cast(CheckpointStore, client)


def _implements(adapter: object, port: Any) -> bool:
    """Return whether an adapter has all methods of a port.

    isinstance would look past the wrapper around a traced adapter, whose methods are dynamic.
    """
    return all(hasattr(adapter, name) for name in vars(port) if not name.startswith("_"))
