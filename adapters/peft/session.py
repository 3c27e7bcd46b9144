"""A training session: one queue, one thread, one set of LoRA weights."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from adapters.peft.checkpoints import (
    OPTIMISER,
    WEIGHTS,
    Kind,
    forget,
    meta,
    read,
    weight_files,
    write,
)
from adapters.peft.device import Machine
from adapters.peft.model.lora import scale
from adapters.peft.runtime.worker import Worker, no_turn_in_a_turn
from adapters.peft.sampler import PeftSampler
from adapters.peft.sampling.requests import SubmittedFuture
from adapters.peft.training.trainer import Trainer
from adapters.tokenizer import FolderTokenizer, load_tokenizer
from kitchen.backend.losses import Options
from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import Failed, Future
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.types import Adam, Checkpoint, Datum, Facts, Lora, Loss, LossOutput, Stepped

T = TypeVar("T")


class PeftSession:
    """One set of LoRA weights under training on this machine; the model loads while the caller goes
    on.
    """

    def __init__(self, machine: Machine, blobs: BlobStore, model: str, lora: Lora) -> None:
        self._machine, self._blobs, self._model, self._lora = machine, blobs, model, lora
        self._worker = Worker(f"training {model}")
        self._folder = self._worker.submit(lambda: machine.hub.fetch(model), alone=False)
        self._trainer: concurrent.futures.Future[Trainer] | Failed = self._worker.submit(
            lambda: Trainer(
                machine.base(model),
                lora,
                machine.high,
                machine.budget,
                machine.lanes,
                checkpointing=machine.settings.checkpointing,
            )
        )
        self._lock, self._failure, self._closed = threading.Lock(), "", False

    def tokenizer(self) -> Tokenizer:
        """Raises BackendError where the hub does not have the model."""
        return self._read

    def facts(self) -> Facts:
        """Waits until the model is loaded."""
        base = self._trainer.result().base
        return Facts(
            {
                "model": base.name,
                "model.sha256": base.sha256,
                "model.parameters": str(base.parameters),
                "model.dtype": str(self._machine.dtype).removeprefix("torch."),
                **self._machine.facts(),
            }
        )

    def forward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        data = tuple(data)
        return self._ask(lambda trainer: trainer.forward(data, loss, options))

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        data = tuple(data)
        return self._ask(lambda trainer: trainer.backward(data, loss, options), update=True)

    def optim_step(self, adam: Adam) -> Future[Stepped]:
        return self._ask(lambda trainer: trainer.step(adam), update=True)

    def save(self, name: str) -> Future[Checkpoint]:
        return self._ask(lambda trainer: self._save(trainer, name))

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        return self._ask(
            lambda trainer: write(
                self._blobs,
                name,
                weight_files(trainer.adapter, self._model),
                self._meta(trainer, "weights"),
                overwrite=overwrite,
            )
        )

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(lambda trainer: self._load(trainer, checkpoint, with_optimiser=True))

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(lambda trainer: self._load(trainer, checkpoint, with_optimiser=False))

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        return self._ask(lambda trainer: forget(self._blobs, checkpoint))

    def snapshot(self) -> Future[Sampler]:
        return self._ask(
            lambda trainer: PeftSampler.of(
                self._machine,
                self._read,
                trainer.base,
                trainer.adapter.lora,
                trainer.adapter.tensors(),
            )
        )

    def close(self) -> None:
        """What is running ends; what waits is cancelled."""
        with self._lock:
            self._closed = True
        self._worker.close()
        # who keeps the session need not keep the weights
        self._trainer = Failed(RunFailed("the session is closed"))

    @cached_property
    def _read(self) -> FolderTokenizer:
        folder: Path = self._folder.result()
        return load_tokenizer(folder)

    def _ask(self, work: Callable[[Trainer], T], *, update: bool = False) -> Future[T]:
        """An update that fails for any reason but refused input ends the session, lest it train on."""

        def job() -> T:
            if self._failure:
                raise RunFailed(
                    f"the session takes no more calls, for an earlier one failed: {self._failure}"
                )
            trainer = self._trainer.result()
            try:
                return work(trainer)
            except BaseException as error:
                if update and not isinstance(error, DataError | ConfigError):
                    self._failure = str(error) or repr(error)
                raise

        if why := no_turn_in_a_turn():
            return Failed(why)
        with self._lock:
            if self._closed:
                return Failed(RunFailed("the session is closed"))
            return SubmittedFuture(self._worker.submit(job))

    def _meta(self, trainer: Trainer, kind: Kind) -> dict[str, Any]:
        return meta(
            kind,
            trainer.optimiser.steps,
            trainer.calls,
            self._model,
            trainer.base.sha256,
            self._lora,
        )

    def _save(self, trainer: Trainer, name: str) -> Checkpoint:
        from safetensors.torch import save

        if trainer.pending:
            raise RunFailed(
                f"save {name!r}: a gradient is not yet stepped along, and cannot be kept; step "
                "first"
            )
        files = {
            **weight_files(trainer.adapter, self._model),
            OPTIMISER: save(trainer.optimiser.tensors()),
        }
        return write(self._blobs, name, files, self._meta(trainer, "training"))

    def _load(self, trainer: Trainer, checkpoint: Checkpoint, *, with_optimiser: bool) -> None:
        saved = read(self._blobs, checkpoint)
        if with_optimiser and OPTIMISER not in saved.files:
            raise ConfigError(
                f"checkpoint {checkpoint.path!r} keeps weights alone, no optimiser: use "
                "load_weights"
            )
        if saved.model_sha256 != trainer.base.sha256:
            raise ConfigError(
                f"checkpoint {checkpoint.path!r} belongs to the model {saved.model!r} with SHA-256 "
                f"{saved.model_sha256[:16]}…, and this session trains {self._model!r} with "
                f"{trainer.base.sha256[:16]}…"
            )
        # else the shapes say what is wrong
        same_rank = saved.lora.rank == trainer.adapter.lora.rank
        if same_rank and (was := scale(saved.lora)) != trainer.adapter.scale:
            raise ConfigError(
                f"checkpoint {checkpoint.path!r} was trained with alpha / rank = {was:g}, and this "
                f"session has {trainer.adapter.scale:g}: its weights would mean something else; "
                "open the "
                "session with the alpha that it had"
            )
        trainer.adapter.load(saved.tensors(WEIGHTS), checkpoint.path)
        trainer.optimiser.load(
            saved.tensors(OPTIMISER) if with_optimiser else {},
            saved.checkpoint.step if with_optimiser else 0,
        )
        trainer.calls, trainer.pending = saved.calls if with_optimiser else 0, False
