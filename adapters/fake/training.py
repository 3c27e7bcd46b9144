"""A training client that learns without a graphics card: a bigram model over bytes, in numpy."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import TypeVar

import numpy as np

from adapters.fake.bigram import AdamW, Adapter, Bigram, Table, base, digest
from adapters.fake.blobs import FakeBlobs
from adapters.fake.checkpoints import Arrays, forget, keep, kept, listed
from adapters.fake.exporting import logits, read_folder, write_folder
from adapters.fake.sampling import CONTEXT, FakeSampler
from adapters.fake.tokenizer import VOCABULARY, Bytes
from kitchen.backend.atomic_folder import check_free
from kitchen.backend.custom_loss import check_finite, own_slopes
from kitchen.backend.datum_checks import check_data
from kitchen.backend.losses import LOSSES, Options, value_and_grad
from kitchen.errors import BackendError, ConfigError, DataError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import Done, Failed, Future
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.ports.training import TrainingSession
from kitchen.types import Adam, Array, Checkpoint, Datum, Facts, Lora, Loss, LossOutput, Stepped

T = TypeVar("T")
NAME = re.compile(r"path:\S.*|[A-Za-z0-9]([\w.:/@+-]*\w)?")


class FakeTraining:
    """Stands in for every model; checkpoints go through the blob store."""

    capabilities = frozenset(
        {
            *(f"loss {name}" for name in LOSSES),
            "custom loss",
            "top_logprobs",
            "export",
            "export merged",
        }
    )

    def __init__(self, blobs: BlobStore | None = None) -> None:
        self._blobs = blobs if blobs is not None else FakeBlobs()

    def find(self, model: str) -> None:
        """Raises BackendError for what cannot be a model's name."""
        _model(model)

    def tokenizer(self, model: str) -> Tokenizer:
        _model(model)
        return Bytes()

    def hidden_size(self, model: str) -> int | None:
        """None: it stands in for models of all sizes."""
        _model(model)
        return None

    def sha256(self, model: str) -> str:
        """Of its name, which is all that there is of it, or of what lies in a folder that was
        exported.
        """
        exported = _exported(_model(model))
        return (digest(model) if exported is None else sha256(exported.tobytes()).digest()).hex()

    def open(self, model: str, lora: Lora) -> TrainingSession:
        """Raises BackendError for what cannot be a model's name."""
        return FakeSession(_model(model), lora, self._blobs)

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Raises BackendError for what cannot be a model's name, CorruptCheckpoint for a damaged
        checkpoint.
        """
        if isinstance(weights, Checkpoint):
            return FakeSampler(Bigram(logits(kept(self._blobs, weights, "weights.npz"))))
        exported = _exported(_model(weights))
        return FakeSampler(Bigram(base(weights) if exported is None else exported))

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Of a checkpoint; raises BackendError for a model, which was never trained."""
        if isinstance(weights, str):
            raise BackendError(
                f"{_model(weights)!r} is a model as it came, so there is nothing to export"
            )
        check_free(folder)
        write_folder(kept(self._blobs, weights, "weights.npz"), folder, merged=merged)

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]:
        return listed(self._blobs, prefix)

    def delete(self, checkpoint: Checkpoint) -> None:
        forget(self._blobs, checkpoint)


class FakeSession:
    """One adapter under training; every call is answered before it returns."""

    def __init__(self, model: str, lora: Lora, blobs: BlobStore) -> None:
        self._name, self._blobs, self._lock = model, blobs, RLock()
        self._base: Table = base(model)
        self._adapter, self._optimiser = Adapter(lora.seed), AdamW()
        self._model = self._adapter.over(self._base)
        self._gradient: Table | None = None  # with respect to B; None where none was asked for
        self._failure: Exception | None = None

    def tokenizer(self) -> Tokenizer:
        return Bytes()

    def facts(self) -> Facts:
        return Facts(
            {
                "model": self._name,
                "model.sha256": digest(self._name).hex(),
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
        return self._ask(lambda: self._loss(data, loss, options)[0])

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        return self._ask(lambda: self._backward(data, loss, options), update=True)

    def optim_step(self, adam: Adam) -> Future[Stepped]:
        return self._ask(lambda: self._step(adam), update=True)

    def save(self, name: str) -> Future[Checkpoint]:
        return self._ask(lambda: self._save(name))

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(lambda: self._load(checkpoint, with_optimiser=True))

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(lambda: self._load(checkpoint, with_optimiser=False))

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        return self._ask(
            lambda: keep(
                self._blobs,
                name,
                {"weights.npz": self._weights()},
                step=self._optimiser.steps,
                kind="weights",
                overwrite=overwrite,
            )
        )

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(lambda: forget(self._blobs, checkpoint))

    def snapshot(self) -> Future[Sampler]:
        return self._ask(lambda: FakeSampler(self._model))

    def close(self) -> None:
        with self._lock:
            self._failure = self._failure or RunFailed("the session is closed")

    def _ask(self, work: Callable[[], T], *, update: bool = False) -> Future[T]:
        """An update that fails for any reason but refused input ends the session, lest it train on."""
        with self._lock:
            if self._failure is not None:
                return Failed(RunFailed(f"the session takes no more calls: {self._failure}"))
            try:
                return Done(work())
            except Exception as error:  # noqa: BLE001 errors surface on the future
                if update and not isinstance(error, DataError | ConfigError):
                    self._failure = error
                return Failed(error)

    def _loss(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> tuple[LossOutput, Sequence[Array]]:
        """The output, and dloss/dlogprob of each datum."""
        check_data(data, loss, options, vocabulary=VOCABULARY, context=CONTEXT)
        exact = [self._model.score(d.tokens, d.targets) for d in data]
        rounded = tuple(lp.astype(np.float32) for lp in exact)
        if isinstance(loss, str):
            pairs = [
                value_and_grad(loss, options, d, lp) for d, lp in zip(data, exact, strict=True)
            ]
            for index, pair in enumerate(pairs):
                check_finite(index, len(data), *pair)
            totals: Mapping[str, float] = {
                "loss:sum": float(sum(value.sum() for value, _ in pairs))
            }
            slopes: Sequence[Array] = [slope for _, slope in pairs]
        else:
            totals, slopes = own_slopes(loss, data, rounded)
        return LossOutput(rounded, totals), slopes

    def _backward(
        self, data: Sequence[Datum], loss: str | Loss, options: Options | None
    ) -> LossOutput:
        output, slopes = self._loss(data, loss, options)
        gradient = self._adapter.a * self._model.gradient(data, slopes)
        self._gradient = gradient if self._gradient is None else self._gradient + gradient
        return output

    def _step(self, adam: Adam) -> Stepped:
        if self._gradient is None:
            raise RunFailed("optim_step has no gradient to step along: call forward_backward first")
        self._adapter.b, norm = self._optimiser.step(self._adapter.b, self._gradient, adam)
        self._gradient, self._model = None, self._adapter.over(self._base)
        return Stepped({"grad_norm": norm})

    def _weights(self) -> Arrays:
        return {"base": self._base, "a": self._adapter.a, "b": self._adapter.b}

    def _save(self, name: str) -> Checkpoint:
        if self._gradient is not None:
            raise RunFailed(
                f"save {name!r}: a gradient is not yet stepped along, and cannot be kept; step "
                "first"
            )
        moments = {"first": self._optimiser.first, "second": self._optimiser.second}
        files = {
            "weights.npz": self._weights(),
            "optimiser.npz": {**moments, "steps": np.array(self._optimiser.steps)},
        }
        return keep(self._blobs, name, files, step=self._optimiser.steps, kind="training")

    def _load(self, checkpoint: Checkpoint, *, with_optimiser: bool) -> None:
        weights, optimiser = kept(self._blobs, checkpoint, "weights.npz"), AdamW()
        if with_optimiser:
            state = kept(self._blobs, checkpoint, "optimiser.npz")
            optimiser.first, optimiser.second, optimiser.steps = (
                state["first"],
                state["second"],
                int(state["steps"]),
            )
        self._base, self._adapter.a, self._adapter.b = weights["base"], weights["a"], weights["b"]
        self._optimiser, self._gradient, self._model = (
            optimiser,
            None,
            self._adapter.over(self._base),
        )


def _exported(model: str) -> Table | None:
    """The logits in a folder; None for another kind of name, and for a folder of other weights."""
    kind, _, folder = model.partition(":")
    return read_folder(Path(folder).expanduser()) if kind == "path" else None


def _model(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BackendError(
            f"{name!r} cannot be the name of a model; NAME, NAME@revision and path:FOLDER can"
        )
    return name
