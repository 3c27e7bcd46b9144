"""The local training session: one queue, one thread, one set of weights."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar, cast

from adapters.folders import model_folder
from adapters.peft.adapter_folder import WEIGHTS, AdapterFolder, read_adapter
from adapters.peft.checkpoints import (
    MASTERS,
    OPTIMISER,
    Kind,
    SavedCheckpoint,
    checkpoint_metadata,
    delete_checkpoint,
    read_checkpoint,
    training_files,
    weight_files,
    write_checkpoint,
)
from adapters.peft.device import Machine
from adapters.peft.model.base_model import read_weights
from adapters.peft.model.full_weights import FullModel
from adapters.peft.model.lora import LoraAdapter, lora_alpha, lora_scale
from adapters.peft.runtime.worker import Worker, nested_call_error
from adapters.peft.sampler import PeftSampler, new_device_samplers
from adapters.peft.sampling.requests import SubmittedFuture
from adapters.peft.training.trainer import Trainer
from adapters.tokenizer import FolderTokenizer, fetch_tokenizer
from kitchen.backend.losses import Options
from kitchen.backend.refused_passes import RefusedPasses
from kitchen.errors import ConfigError, DataError, RunFailed, SessionLost
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import Failed, Future
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.types import (
    Adam,
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

if TYPE_CHECKING:
    from adapters.peft.sampling.on_devices import TrainerOnDevices

T = TypeVar("T")


class PeftSession:
    """One set of weights in training on this machine; the model loads in the background."""

    def __init__(
        self, machine: Machine, blobs: BlobStore, model: str, trainable: Trainable
    ) -> None:
        self._machine, self._blobs, self._model = machine, blobs, model
        self._trainable = trainable
        self._worker = Worker(f"training {model}")
        self._fetched = self._worker.submit(
            lambda: model_folder(machine.hub, model), exclusive=False
        )
        self._trainer: concurrent.futures.Future[Trainer] | Failed = self._worker.submit(
            lambda: _open_on_devices(machine, model, trainable)
        )
        self._lock, self._failure, self._closed = threading.Lock(), "", False
        self._is_lost = False  # with a device; a run can resume from its last save point
        self._refused = RefusedPasses()

    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer; raises BackendError if the hub has no such model."""
        return self._tokenizer

    def facts(self) -> Facts:
        """Describe the model and the machine; waits until the model is loaded."""
        trainer = self._trainer.result()
        base = trainer.base
        origin = ""
        if base.name.startswith("packaged:"):  # others would be looked up on the network
            origin = self._machine.hub.info(base.name).origin
        return Facts(
            {
                "model": self._model,
                **({"model.weights": origin} if origin else {}),
                "model.sha256": base.sha256,
                "model.parameters": str(base.parameters),
                "model.dtype": str(self._machine.dtype).removeprefix("torch."),
                # a resumed run must have the same, because sums are rounded by micro-batch
                "machine.micro_batch_tokens": str(trainer.budget),
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
        return self.submit(lambda trainer: trainer.forward(data, loss, options))

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        data, refusals = tuple(data), self._refused.count
        return self.submit(
            lambda trainer: self._forward_backward(trainer, refusals, data, loss, options),
            is_update=True,
        )

    def optim_step(self, adam: Adam) -> Future[OptimStepResult]:
        return self.submit(lambda trainer: self._step(trainer, adam), is_update=True)

    def save(self, name: str) -> Future[Checkpoint]:
        return self.submit(lambda trainer: self._save(trainer, name))

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        return self.submit(
            lambda trainer: write_checkpoint(
                self._blobs,
                name,
                weight_files(trainer.weights, trainer.base),
                self._metadata(trainer, "weights"),
                overwrite=overwrite,
            )
        )

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        return self.submit(lambda trainer: self._load(trainer, checkpoint, with_optimiser=True))

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        return self.submit(lambda trainer: self._load(trainer, checkpoint, with_optimiser=False))

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        return self.submit(lambda trainer: delete_checkpoint(self._blobs, checkpoint))

    def snapshot(self) -> Future[Sampler]:
        return self.submit(self._snapshot)

    def close(self) -> None:
        """Close the session: the running call ends, and waiting calls are cancelled."""
        with self._lock:
            self._closed = True
        self._worker.close()
        # a reference to the closed session must not keep the weights in memory
        self._trainer = Failed(RunFailed("the session is closed"))

    @cached_property
    def _tokenizer(self) -> FolderTokenizer:
        self._fetched.result()
        return fetch_tokenizer(self._machine.hub, self._model)

    def submit(self, work: Callable[[Trainer], T], *, is_update: bool = False) -> Future[T]:
        """Queue work on the trainer, after all earlier calls.

        If an update fails for any reason but invalid input, the session accepts no more calls, so
        that training cannot continue without that update.
        """

        def job() -> T:
            if self._failure:
                error = SessionLost if self._is_lost else RunFailed
                raise error(
                    "the session accepts no more calls because an earlier one failed: "
                    f"{self._failure}"
                )
            trainer = self._trainer.result()
            try:
                return work(trainer)
            except BaseException as error:
                if is_update and not isinstance(error, DataError | ConfigError):
                    self._failure = str(error) or repr(error)
                    self._is_lost = isinstance(error, SessionLost)
                raise

        if error := nested_call_error():
            return Failed(error)
        with self._lock:
            if self._closed:
                return Failed(RunFailed("the session is closed"))
            return SubmittedFuture(self._worker.submit(job))

    def _forward_backward(
        self,
        trainer: Trainer,
        refusals: int,  # known when the call was made
        data: Sequence[Datum],
        loss: str | Loss,
        options: Options | None,
    ) -> LossOutput:
        try:
            output = trainer.forward_backward(data, loss, options)
        except (DataError, ConfigError):
            self._refused.refuse(has_gradient=trainer.pending)
            trainer.discard_gradient()
            raise
        self._refused.accept(refusals)
        return output

    def _step(self, trainer: Trainer, adam: Adam) -> OptimStepResult:
        try:
            self._refused.check_step(has_gradient=trainer.pending)
        except DataError:
            trainer.discard_gradient()
            raise
        return trainer.step(adam)

    def _snapshot(self, trainer: Trainer) -> Sampler:
        weights, tokenizer = trainer.weights, self._tokenizer
        devices = new_device_samplers(self._machine)
        if devices is not None:
            devices.copy_trainer(cast("TrainerOnDevices", trainer), self._model)
        if isinstance(weights, FullModel):
            return PeftSampler.from_model(self._machine, tokenizer, trainer.base.copy(), devices)
        return PeftSampler.from_adapter(
            self._machine, tokenizer, trainer.base, weights.lora, weights.tensors(), devices
        )

    def _metadata(self, trainer: Trainer, kind: Kind) -> dict[str, Any]:
        steps, sha256 = trainer.optimiser.steps, trainer.base.sha256
        return checkpoint_metadata(kind, steps, trainer.calls, self._model, sha256, self._trainable)

    def _save(self, trainer: Trainer, name: str) -> Checkpoint:
        if trainer.pending:
            raise RunFailed(
                f"save {name!r}: a gradient has not been applied yet, and checkpoints hold no "
                "gradient; call optim_step first"
            )
        files = chain(
            weight_files(trainer.weights, trainer.base),
            training_files(trainer.weights, trainer.optimiser.state()),
        )
        return write_checkpoint(self._blobs, name, files, self._metadata(trainer, "training"))

    def _load(self, trainer: Trainer, checkpoint: Checkpoint, *, with_optimiser: bool) -> None:
        saved = read_checkpoint(self._blobs, checkpoint, weights_only=not with_optimiser)
        if with_optimiser and not saved.has(OPTIMISER):
            raise ConfigError(
                f"checkpoint {checkpoint.path!r} has weights but no optimiser state: use "
                "load_weights"
            )
        self._check_compatible(trainer, saved)
        self._load_tensors(trainer.weights, saved, with_masters=with_optimiser)
        if with_optimiser:
            trainer.optimiser.load(saved.tensors(OPTIMISER), saved.checkpoint.step)
            trainer.calls = saved.calls
        else:
            trainer.optimiser.load({}, 0)
            trainer.calls = 0
        trainer.pending = False
        trainer.synchronise()
        self._refused.clear()

    def _load_tensors(
        self, weights: LoraAdapter | FullModel, saved: SavedCheckpoint, *, with_masters: bool
    ) -> None:
        path = saved.checkpoint.path
        if isinstance(weights, LoraAdapter):
            weights.load(saved.tensors(WEIGHTS), path)
            return
        # none if the session that saved them had no copies
        tensors = saved.tensors(MASTERS) if with_masters else {}
        if weights.named_parameters().keys() - tensors.keys():
            with saved.model_folder() as folder:
                tensors = read_weights(folder) | tensors
        weights.load(tensors, path)

    def _check_compatible(self, trainer: Trainer, saved: SavedCheckpoint) -> None:
        """Raise ConfigError for a checkpoint of another base model, LoRA kind or scale."""
        path = saved.checkpoint.path
        if saved.model_sha256 != trainer.base.sha256:
            raise ConfigError(
                f"checkpoint {path!r} belongs to the model {saved.model!r} with SHA-256 "
                f"{saved.model_sha256[:16]}…, but this session trains {self._model!r} with "
                f"{trainer.base.sha256[:16]}…"
            )
        weights, has_lora = trainer.weights, saved.lora is not None
        if has_lora != isinstance(weights, LoraAdapter):
            saved_kind, kind = ("LoRA weights", "all weights")[:: 1 if has_lora else -1]
            raise ConfigError(
                f"checkpoint {path!r} has {saved_kind}, but this session trains {kind}; open the "
                f"session with {saved_kind}, or export the checkpoint as a whole model and start "
                "from its folder"
            )
        if saved.lora is not None and isinstance(weights, LoraAdapter):
            _check_same_lora(saved.lora, weights, path)


def _check_same_lora(saved: Lora, weights: LoraAdapter, path: str) -> None:
    if saved.kind != weights.lora.kind:
        raise ConfigError(
            f"checkpoint {path!r} has weights of the kind {saved.kind!r}, but this "
            f"session trains {weights.lora.kind!r}: set lora_kind={saved.kind}"
        )
    if saved.rank != weights.lora.rank:
        return  # loading reports the shapes
    if (scale := lora_scale(saved)) != weights.scale:
        raise ConfigError(
            f"checkpoint {path!r} was trained with a LoRA scale of {scale:g}, but this session "
            f"has {weights.scale:g}, which would change the effect of its weights; "
            "open the session with the alpha of the checkpoint"
        )


def _open_on_devices(machine: Machine, model: str, trainable: Trainable) -> Trainer:
    """Open a trainer on each device; returns that of the first."""
    if (group := machine.group()) is None:
        return _open_trainer(machine, model, trainable)
    from adapters.peft.training.data_parallel import open_on_devices

    return open_on_devices(group, _open_trainer, machine, model, trainable)


def _open_trainer(
    machine: Machine, model: str, trainable: Trainable, kind: type[Trainer] = Trainer
) -> Trainer:
    """Open a trainer of LoRA weights, new ones or those of an adapter's folder, or of a model."""
    adapter = read_adapter(machine.hub, model)
    if isinstance(trainable, FullWeights):
        if adapter is not None:
            raise ConfigError(
                f"{model} is a LoRA adapter, and all weights can be trained only of a whole model: "
                "merge it first (kitchen export --merged), and open the folder of the result"
            )
        base = machine.own_base(model)
    else:
        if adapter is not None:
            _check_lora(adapter, trainable)
        base = machine.base(model if adapter is None else adapter.base)
    return kind(
        base,
        trainable,
        machine.accum_dtype,
        machine.training_budget(base, trainable),
        machine.lanes,
        checkpointing=machine.settings.checkpointing,
        initial=adapter,
    )


def _check_lora(adapter: AdapterFolder, lora: Lora) -> None:
    """Raise ConfigError unless a session has the kind, rank and scale of its adapter."""
    if lora.kind != adapter.lora.kind:
        raise ConfigError(
            f"{adapter.name}: its LoRA weights are of the kind {adapter.lora.kind!r}, but this "
            f"session would train {lora.kind!r}: set lora_kind={adapter.lora.kind}"
        )
    if lora.rank != adapter.lora.rank:
        raise ConfigError(
            f"{adapter.name}: its LoRA weights have rank {adapter.lora.rank}, but this session "
            f"would have rank {lora.rank}; open it with the rank of the adapter"
        )
    if lora_scale(lora) != lora_scale(adapter.lora):
        raise ConfigError(
            f"{adapter.name}: its LoRA weights have alpha {adapter.lora.alpha:g}, but this session "
            f"would have alpha {lora_alpha(lora):g}, which would change their effect; "
            "open it with the alpha of the adapter"
        )
