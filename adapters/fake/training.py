"""A training backend that learns without a GPU: a bigram model over bytes, in numpy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import TypeVar

import numpy as np

from adapters.fake.bigram import (
    AdamW,
    Adapter,
    Bigram,
    Table,
    all_weights,
    base_logits,
    name_digest,
)
from adapters.fake.blobs import FakeBlobs
from adapters.fake.checkpoints import (
    Arrays,
    delete_checkpoint,
    list_checkpoints,
    load_arrays,
    save_checkpoint,
)
from adapters.fake.exporting import logits_of, read_folder, write_folder
from adapters.fake.sampling import FakeSampler
from adapters.fake.tokenizer import CONTEXT, VOCABULARY, ByteTokenizer
from kitchen.backend.atomic_folder import check_folder_unused
from kitchen.backend.custom_loss import custom_loss_grads
from kitchen.backend.datum_checks import check_data
from kitchen.backend.losses import LOSSES, Options, named_loss_grads
from kitchen.backend.refused_passes import RefusedPasses
from kitchen.errors import BackendError, ConfigError, DataError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import Done, Failed, Future
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.ports.training import TrainingSession
from kitchen.types import (
    Adam,
    Array,
    Checkpoint,
    Datum,
    Facts,
    FullWeights,
    Lora,
    Loss,
    LossOutput,
    OptimStepResult,
    Trainable,
)

T = TypeVar("T")
NAME = re.compile(r"path:\S.*|[A-Za-z0-9]([\w.:/@+-]*\w)?")
_WEIGHTS = "weights.npz"
_OPTIMISER = "optimiser.npz"


class FakeTraining:
    """Stands in for every model; checkpoints go through the blob store."""

    capabilities = frozenset(
        {
            *(f"loss {name}" for name in LOSSES),
            "custom loss",
            "dora",
            "grad_clip_norm",
            "policy_lag",
            "prompt_logprobs",
            "full_weights",
            "rslora",
            "top_logprobs",
            "topk_targets",
            "export",
            "export merged",
        }
    )

    def __init__(self, blobs: BlobStore | None = None) -> None:
        self._blobs = blobs if blobs is not None else FakeBlobs()

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        """Open a session; raises BackendError for an invalid model name."""
        return FakeSession(_check_name(model), trainable, self._blobs)

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Return a sampler of a model or checkpoint.

        Raises BackendError for an invalid model name, CorruptCheckpoint for a damaged checkpoint.
        """
        if isinstance(weights, Checkpoint):
            return FakeSampler(Bigram(logits_of(load_arrays(self._blobs, weights, _WEIGHTS))))
        exported = _exported_weights(_check_name(weights))
        logits = base_logits(weights) if exported is None else logits_of(exported)
        return FakeSampler(Bigram(logits))

    def find(self, model: str) -> None:
        """Raise BackendError for an invalid model name."""
        _check_name(model)

    def tokenizer(self, model: str) -> Tokenizer:
        _check_name(model)
        return ByteTokenizer()

    def hidden_size(self, model: str) -> int | None:
        """Return None: the fake stands in for models of all sizes."""
        _check_name(model)
        return None

    def lora(self, model: str) -> Lora | None:
        """Return None: bigram weights have neither rank nor alpha."""
        _check_name(model)
        return None

    def notes(self, model: str, trainable: Trainable) -> Sequence[tuple[str, str]]:
        """Return nothing: the fake trains all of its weights."""
        _check_name(model)
        return ()

    def sha256(self, model: str) -> str:
        """Return the digest of a model's name, or of the logits in an exported folder."""
        return _digest(_check_name(model), _exported_weights(model))

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        return list_checkpoints(self._blobs, prefix)

    def delete(self, checkpoint: Checkpoint) -> None:
        delete_checkpoint(self._blobs, checkpoint)

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Export a checkpoint; raises BackendError for a model, which was never trained."""
        if isinstance(weights, str):
            raise BackendError(
                f"{_check_name(weights)!r} is an untrained model, so there is nothing to export"
            )
        check_folder_unused(folder)
        write_folder(load_arrays(self._blobs, weights, _WEIGHTS), folder, merged=merged)


class FakeSession:
    """One adapter in training; every call has finished when it returns."""

    def __init__(self, model: str, trainable: Trainable, blobs: BlobStore) -> None:
        self._name, self._blobs, self._lock = model, blobs, RLock()
        exported = _exported_weights(model)
        self._sha256 = _digest(model, exported)
        self.base: Table = base_logits(model)
        self.adapter = Adapter(trainable.seed if isinstance(trainable, Lora) else 0)
        if exported is not None and "logits" in exported:
            self.base = logits_of(exported)
        elif exported is not None:
            self.base = exported["base"]
            self.adapter.a, self.adapter.b = exported["a"], exported["b"]
        if isinstance(trainable, FullWeights):
            self.base, self.adapter = np.zeros_like(self.base), all_weights(self.base, self.adapter)
        self.model = self.adapter.apply(self.base)
        self.gradient: Table | None = None  # with respect to B; None if none is pending
        self._optimiser = AdamW()
        self._failure: Exception | None = None
        self._refused = RefusedPasses()

    def tokenizer(self) -> Tokenizer:
        return ByteTokenizer()

    def facts(self) -> Facts:
        return Facts(
            {
                "model": self._name,
                "model.sha256": self._sha256,
                "model.dtype": "float64",
                "machine.device": "none",
                "machine.numpy": np.__version__,
            }
        )

    def forward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        return self._submit(lambda: self._loss(data, loss, options)[0])

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        return self._submit(lambda: self._backward(data, loss, options), is_update=True)

    def optim_step(self, adam: Adam) -> Future[OptimStepResult]:
        return self._submit(lambda: self._step(adam), is_update=True)

    def save(self, name: str) -> Future[Checkpoint]:
        return self._submit(lambda: self._save(name))

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        return self._submit(lambda: self._load(checkpoint, with_optimiser=True))

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        return self._submit(lambda: self._load(checkpoint, with_optimiser=False))

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        return self._submit(
            lambda: save_checkpoint(
                self._blobs,
                name,
                {_WEIGHTS: self._weights()},
                step=self._optimiser.steps,
                kind="weights",
                overwrite=overwrite,
            )
        )

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        return self._submit(lambda: delete_checkpoint(self._blobs, checkpoint))

    def snapshot(self) -> Future[Sampler]:
        return self._submit(lambda: FakeSampler(self.model))

    def close(self) -> None:
        with self._lock:
            self._failure = self._failure or RunFailed("the session is closed")

    def _submit(self, work: Callable[[], T], *, is_update: bool = False) -> Future[T]:
        """Do the work now; a failed update ends the session, unless its input was invalid."""
        with self._lock:
            if self._failure is not None:
                return Failed(RunFailed(f"the session accepts no more calls: {self._failure}"))
            try:
                return Done(work())
            except Exception as error:  # noqa: BLE001 errors surface on the future
                if is_update and not isinstance(error, DataError | ConfigError):
                    self._failure = error
                return Failed(error)

    def _loss(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> tuple[LossOutput, Sequence[Array]]:
        """Return the output, and dloss/dlogprob of each datum."""
        check_data(data, loss, options, vocabulary=VOCABULARY, context=CONTEXT)
        exact = [self.model.score(datum.tokens, datum.targets) for datum in data]
        rounded = tuple(lp.astype(np.float32) for lp in exact)
        if isinstance(loss, str):
            metrics, grads = named_loss_grads(loss, options, data, exact)
        else:
            metrics, grads = custom_loss_grads(loss, data, rounded)
        return LossOutput(rounded, metrics), grads

    def _backward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        try:
            output, logprob_grads = self._loss(data, loss, options)
        except (DataError, ConfigError):
            self._refused.refuse(has_gradient=self.gradient is not None)
            self.gradient = None
            raise
        gradient = self.adapter.a * self.model.gradient(data, logprob_grads)
        self.gradient = gradient if self.gradient is None else self.gradient + gradient
        return output

    def _step(self, adam: Adam) -> OptimStepResult:
        gradient, self.gradient = self.gradient, None
        self._refused.check_step(has_gradient=gradient is not None)
        assert gradient is not None
        self.adapter.b, norm = self._optimiser.step(self.adapter.b, gradient, adam)
        self.model = self.adapter.apply(self.base)
        return OptimStepResult({"grad_norm": norm})

    def _weights(self) -> Arrays:
        return {"base": self.base, "a": self.adapter.a, "b": self.adapter.b}

    def _save(self, name: str) -> Checkpoint:
        if self.gradient is not None:
            raise RunFailed(
                f"save {name!r}: a gradient has not been applied yet, and checkpoints hold no "
                "gradient; call optim_step first"
            )
        optimiser = {
            "first": self._optimiser.first,
            "second": self._optimiser.second,
            "steps": np.array(self._optimiser.steps),
        }
        files = {_WEIGHTS: self._weights(), _OPTIMISER: optimiser}
        return save_checkpoint(
            self._blobs, name, files, step=self._optimiser.steps, kind="training"
        )

    def _load(self, checkpoint: Checkpoint, *, with_optimiser: bool) -> None:
        weights = load_arrays(self._blobs, checkpoint, _WEIGHTS)
        optimiser = AdamW()
        if with_optimiser:
            state = load_arrays(self._blobs, checkpoint, _OPTIMISER)
            optimiser.first = state["first"]
            optimiser.second = state["second"]
            optimiser.steps = int(state["steps"])
        self.base = weights["base"]
        self.adapter.a = weights["a"]
        self.adapter.b = weights["b"]
        self.model = self.adapter.apply(self.base)
        self.gradient = None
        self._refused.clear()
        self._optimiser = optimiser


def _exported_weights(model: str) -> Arrays | None:
    """Return the weights in an exported folder; None for any other name or folder."""
    kind, _, folder = model.partition(":")
    return read_folder(Path(folder).expanduser()) if kind == "path" else None


def _digest(model: str, exported: Arrays | None) -> str:
    """Return the digest of a model's name, or of exported logits."""
    if exported is None:
        return name_digest(model).hex()
    return sha256(logits_of(exported).tobytes()).hexdigest()


def _check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BackendError(
            f"{name!r} is not the name of a model; give NAME, NAME@revision or path:FOLDER"
        )
    return name
