"""A training session on a server."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import structlog
from tinker import types

from adapters.tinker.answers import (
    loss_output,
    tinker_path,
    training_logprobs,
)
from adapters.tinker.batches import Batches, Outcome, is_refusal
from adapters.tinker.checkpoint_index import CheckpointIndex
from adapters.tinker.custom_loss import linear_datum, without_extras
from adapters.tinker.datums import sdk_datum
from adapters.tinker.errors import MISSING_STATUSES, is_not_found, translate_error
from adapters.tinker.futures import new_future, set_error
from adapters.tinker.job_queue import JobQueue, hold_service, resolve_from, run_into
from adapters.tinker.opening import create_model, is_gone, open_from_state, open_replica
from adapters.tinker.queue_state import QueueStateLogger
from adapters.tinker.replicas import Copy, Replica, ReplicatedSampler
from adapters.tinker.sampler import MAX_ID, TinkerSampler, hedged
from adapters.tinker.service import Service
from kitchen.backend.custom_loss import custom_loss_grads
from kitchen.backend.datum_checks import check_data, check_data_of_unlisted_loss
from kitchen.backend.hedging.hedged import Hedging
from kitchen.backend.losses import LOSSES, Options, scored_positions
from kitchen.errors import (
    ApiError,
    BackendError,
    ConfigError,
    CorruptCheckpoint,
    KitchenError,
    RunFailed,
    SessionLost,
)
from kitchen.ports.future import Failed, Future, Pending
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.types import Adam, Checkpoint, Datum, Facts, Lora, Loss, LossOutput, OptimStepResult

T = TypeVar("T")
log = structlog.get_logger("kitchen.tinker")


class TinkerSession:
    """One set of LoRA weights under training; it opens in the background."""

    def __init__(
        self,
        service: Service,
        checkpoints: CheckpointIndex,
        model: str,
        lora: Lora,
        tokenizer: Callable[[], Tokenizer],
        expire_after: int,  # seconds that the server keeps checkpoints; 0: no expiry
        # called with the SDK's ServiceClient and TrainingClient and the model once they are open
        check_features: Callable[[Any, Any, str], None] = lambda *_: None,
        replicas: Sequence[Replica] = (),  # servers that sample, this one first; empty: only this
        hedging: Hedging | None = None,  # of late requests to sample
        # whether the server discards the gradient of a batch of which it has refused a pass
        discards_gradients: bool = False,
    ) -> None:
        self._service = service
        self._replicas = replicas
        self._hedging = hedging
        self._checkpoints = checkpoints
        self._model = model
        self._lora = lora
        self._tokenizer = tokenizer
        self._ttl_seconds = expire_after or None
        self._batches = Batches(service.name, discards=discards_gradients)
        self._queue_states = QueueStateLogger(f"training {model}", on_queued=service.note_queued)
        self._jobs = JobQueue(f"training {model} on a server")
        self._refused_deletions = set[int]()  # statuses of a server that has none; warned of once
        self._release = hold_service(service, self, self._jobs)
        self._saving = set[str]()  # names of checkpoints that are being written
        self._failure: BaseException | None = None
        self._service_client: Any = None  # the SDK's ServiceClient that opened the session
        self._client = new_future()  # the SDK's TrainingClient; a load replaces it

        def create(service_client: Any) -> Any:
            created = create_model(service_client, model, lora).result()
            check_features(service_client, created, model)
            return created

        self._jobs.put(lambda: self._open(create))

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer()

    def facts(self) -> Facts:
        """Wait until the session is open; the server does not report its dtype or device."""
        info = self._put(lambda: self._client.result()).result().get_info()
        return Facts(
            {
                "model": self._model,
                "model.served_as": info.model_data.model_name or info.model_name or "unknown",
                "machine.server": self._service.name,
                "machine.tinker": version("tinker"),
            }
        )

    def forward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        data = tuple(data)
        if isinstance(loss, str):
            return self._submit(
                lambda client: client.forward(
                    _checked(data, loss, options), loss, dict(options or {}) or None
                ),
                lambda result: loss_output(result, data, loss, options, self._service.name),
            )

        def convert(result: Any) -> LossOutput:
            logprobs = training_logprobs(result, data, loss, self._service.name)
            metrics, _ = custom_loss_grads(loss, data, logprobs)
            return LossOutput(logprobs, metrics)

        return self._submit(lambda client: _forward(client, data, loss), convert)

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        data = tuple(data)
        if not isinstance(loss, str):
            return self._custom_forward_backward(data, loss)

        def convert(result: Any) -> LossOutput:
            output = loss_output(result, data, loss, options, self._service.name)
            return _with_scored(output, data, loss)

        return self._submit_pass(
            lambda client: (_checked(data, loss, options), loss, dict(options or {}) or None),
            convert,
        )

    def _custom_forward_backward(self, data: Sequence[Datum], loss: Loss) -> Future[LossOutput]:
        """Compute a custom loss between two passes; requests made meanwhile are sent after both.

        The SDK's forward_backward_custom needs a server that reports the summed loss.
        """
        outputs: list[LossOutput] = []

        def make(client: Any) -> tuple[Sequence[Any], str, None]:
            result = self._wait(_forward(client, data, loss))
            logprobs = training_logprobs(result, data, loss, self._service.name)
            metrics, grads = custom_loss_grads(loss, data, logprobs)
            outputs.append(LossOutput(logprobs, metrics))
            linear = [
                sdk_datum(linear_datum(datum, grad))
                for datum, grad in zip(data, grads, strict=True)
            ]
            return linear, "cross_entropy", None

        return self._submit_pass(make, lambda _: _with_scored(outputs[0], data, loss))

    def _submit_pass(
        self,
        make: Callable[[Any], tuple[Sequence[Any], str, Options | None]],
        convert: Callable[[Any], T],
    ) -> Future[T]:
        """Send a forward_backward with the SDK's datums, the loss and the options of `make`."""
        refusals, requests = self._batches.refusals, list[int]()

        def request(client: Any) -> Any:
            data, loss, options = make(client)
            requests.append(sum(1 for _ in client._chunked_requests_generator(data)))
            return client.forward_backward(data, loss, options)

        return self._submit(
            request,
            convert,
            is_update=True,
            on_refused=self._batches.refuse,
            on_sent=lambda: self._batches.send_pass(refusals, is_one_request=requests == [1]),
        )

    def optim_step(self, adam: Adam) -> Future[OptimStepResult]:
        def request(client: Any) -> Any:
            if self._batches.check_step():
                # the server did not see the refused pass; this one makes it discard the gradient
                client.forward_backward([_invalid_datum()], "cross_entropy")
            return client.optim_step(
                types.AdamParams(
                    learning_rate=adam.learning_rate,
                    beta1=adam.beta1,
                    beta2=adam.beta2,
                    eps=adam.eps,
                    weight_decay=adam.weight_decay,
                    grad_clip_norm=adam.grad_clip_norm,
                )
            )

        return self._submit(
            request,
            lambda result: OptimStepResult(dict(result.metrics or {})),
            is_update=True,
            on_sent=self._batches.send_step,
        )

    def save(self, name: str) -> Future[Checkpoint]:
        """Save the weights with the state of the optimiser."""

        def request(client: Any) -> Any:
            self._checkpoints.check_free(name)
            return client.save_state(_remote_name(name), ttl_seconds=self._ttl_seconds)

        return self._save(request, name, "training")

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        """Save weights for sampling; those they replace are deleted after the save succeeded."""

        def request(client: Any) -> Any:
            if not overwrite:
                self._checkpoints.check_free(name)
            return client.save_weights_for_sampler(
                _remote_name(name), ttl_seconds=self._ttl_seconds
            )

        return self._save(request, name, "weights")

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        return self._load(checkpoint, with_optimiser=True)

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        return self._load(checkpoint, with_optimiser=False)

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        """Delete a checkpoint; if that fails, the run continues with a warning."""
        return self._put(
            lambda: self._try_delete(
                checkpoint.path,
                lambda: delete_checkpoint(self._service, self._checkpoints, checkpoint),
            )
        )

    def _try_delete(self, name: str, delete: Callable[[], None]) -> None:
        try:
            delete()
        except BackendError as error:
            status = error.status if isinstance(error, ApiError) else 0
            if status not in self._refused_deletions:
                log.warning("a checkpoint could not be deleted", checkpoint=name, why=str(error))
            if status in MISSING_STATUSES:
                self._refused_deletions.add(status)

    def snapshot(self) -> Future[Sampler]:
        return self._submit(
            lambda client: client.save_weights_and_get_sampling_client(), self._sampler
        )

    def _sampler(self, sampling: Any) -> Sampler:
        """Return a sampler of a snapshot, which replicas find in the store that they share."""
        own = partial(TinkerSampler, self._service, lambda _: sampling, self._queue_states)
        if not self._replicas:
            return hedged(own(), self._hedging, self._model)
        path = f"tinker://{sampling._sampling_session_id}/sampler_weights/snapshot"

        def open_copy(replica: Replica) -> Sampler:
            service = replica.service
            return TinkerSampler(
                service, lambda client: open_replica(service, client, path, self._service)
            )

        own_replica, *others = self._replicas
        copies = [Copy(other, partial(open_copy, other)) for other in others]
        return ReplicatedSampler([Copy(own_replica, own), *copies], self._hedging, self._model)

    def close(self) -> None:
        """Drop pending requests; the server's session ends with the last user of the service."""
        self._release()

    def _submit(
        self,
        request: Callable[[Any], Any],
        convert: Callable[[Any], T],
        *,
        is_update: bool = False,  # it changes the weights or their gradient
        on_refused: Callable[[], None] = lambda: None,  # its input is invalid, so it is not sent
        on_sent: Callable[[], Outcome] = lambda: lambda error: None,
    ) -> Future[T]:
        """Send a request in the background, and convert the SDK's result when it arrives.

        An update that fails ends the session, so that training cannot continue from an unknown
        state. Input that was refused does not.
        """
        future = new_future()

        def job() -> None:
            try:
                self._check_alive()
                sdk_future = request(self._client.result())
            except BaseException as error:  # noqa: BLE001 it surfaces on the future
                translated = translate_error(error, self._service.name)
                if is_refusal(translated):
                    on_refused()
                self._note_error(translated, fatal=is_update and not is_refusal(translated))
                set_error(future, translated)
                return
            on_answer = self._ending_on_failure(on_sent())
            future.add_done_callback(lambda done: self._note_error(done.exception(), fatal=False))
            resolve_from(sdk_future, convert, future, self._service.name, on_answer)

        if not self._jobs.put(job):
            return Failed(RunFailed("the session is closed"))
        self._service.watch(future)
        return Pending(future)

    def _ending_on_failure(self, outcome: Outcome) -> Outcome:
        """Return a function that ends the session with the error that `outcome` returns."""

        def on_answer(error: BaseException | None) -> BaseException | None:
            failure = outcome(error)
            self._note_error(failure, fatal=True)
            return failure

        return on_answer

    def _wait(self, sdk_future: Any) -> Any:
        """Return the result of a request on the thread of the jobs, unless the server is away."""
        future = new_future()
        resolve_from(sdk_future, lambda result: result, future, self._service.name)
        self._service.watch(future)
        return future.result()

    def _put(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job that is not a request to the SDK's training client."""
        future = new_future()
        if not self._jobs.put(lambda: run_into(future, job, self._service.name)):
            return Failed(RunFailed("the session is closed"))
        return Pending(future)

    def _check_alive(self) -> None:
        if self._failure is not None:
            kind = SessionLost if isinstance(self._failure, SessionLost) else RunFailed
            raise kind(
                f"the session accepts no more calls because an earlier one failed: {self._failure}"
            )

    def _note_error(self, error: BaseException | None, *, fatal: bool) -> None:
        """End the session after a fatal error, and the connection after a lost session."""
        if isinstance(error, SessionLost):
            self._service.discard(self._service_client)
        # a server that runs requests in order may wait for the number of one that it refused
        if (fatal and error is not None) or isinstance(error, SessionLost | ApiError):
            self._failure = self._failure or error

    def _save(self, request: Callable[[Any], Any], name: str, kind: str) -> Future[Checkpoint]:
        step_counts: list[Callable[[], int]] = []  # filled once the request was sent

        def send(client: Any) -> Any:
            if name in self._saving:
                raise ConfigError(f"checkpoint {name!r} is being written; choose another name")
            sdk_future = request(client)
            self._saving.add(name)
            step_counts.append(self._batches.count_steps())
            return sdk_future

        def record(result: Any) -> Checkpoint:
            replaced = self._checkpoints.path_of(name)
            path = tinker_path(result.path, self._service.name)
            saved = self._checkpoints.add(name, path, step=step_counts[0](), kind=kind)
            if replaced is not None:
                self._put(
                    lambda: self._try_delete(name, lambda: delete_path(self._service, replaced))
                )
            return saved

        future = self._submit(send, record)
        if isinstance(future, Pending):
            future.work.add_done_callback(
                lambda _: self._saving.discard(name) if step_counts else None
            )
        return future

    def _load(self, checkpoint: Checkpoint, *, with_optimiser: bool) -> Future[None]:
        def job() -> None:
            path = self._checkpoints.path(checkpoint)
            if with_optimiser and checkpoint.kind != "training":
                raise ConfigError(
                    f"checkpoint {checkpoint.path!r} has weights but no optimiser state: use "
                    "load_weights"
                )
            self._client = new_future()
            self._open(
                lambda service_client: open_from_state(
                    self._service,
                    service_client,
                    path,
                    with_optimizer=with_optimiser,
                    model=self._model,
                    lora=self._lora,
                )
            )
            try:
                self._client.result()
            except KitchenError as error:
                if is_gone(self._service, path):
                    raise CorruptCheckpoint(
                        f"{checkpoint.path}: {self._service.name} no longer has it: {error}"
                    ) from error
                raise
            self._failure = None
            self._batches.clear(checkpoint.step if with_optimiser else 0)

        return self._put(job)

    def _open(self, create_client: Callable[[Any], Any]) -> None:
        def open_client() -> Any:
            self._service_client = self._service.client()
            return self._queue_states.attach(create_client(self._service_client))

        run_into(self._client, open_client, self._service.name)
        self._note_error(self._client.exception(), fatal=False)


def delete_checkpoint(
    service: Service, checkpoints: CheckpointIndex, checkpoint: Checkpoint
) -> None:
    """Delete a checkpoint here and on the server; one that is already gone is not an error."""
    path = checkpoints.path_of(checkpoint.path)
    checkpoints.remove(checkpoint.path)  # first: a half-deleted checkpoint must not be listed
    if path is not None:
        delete_path(service, path)


def delete_path(service: Service, path: str) -> None:
    """Delete weights from the server; raises the translated error if it refuses."""
    try:
        service.rest().delete_checkpoint_from_tinker_path(path).result()
    except Exception as error:
        if not is_not_found(error):
            raise translate_error(error, service.name) from error


def _forward(client: Any, data: Sequence[Datum], loss: Loss) -> Any:
    """Send the forward pass of a custom loss."""
    check_data(data, loss, None, vocabulary=MAX_ID, context=MAX_ID)
    return client.forward([sdk_datum(without_extras(datum)) for datum in data], "cross_entropy")


def _checked(data: Sequence[Datum], loss: str | Loss, options: Options | None) -> list[Any]:
    """Check and convert the data; the server checks the model's limits on ids and lengths.

    A loss without a formula here is sent to the server, which checks its name and its inputs.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        check_data_of_unlisted_loss(data, vocabulary=MAX_ID, context=MAX_ID)
    else:
        check_data(data, loss, options, vocabulary=MAX_ID, context=MAX_ID)
    return [sdk_datum(datum) for datum in data]


def _invalid_datum() -> Any:
    """Return a datum that `kitchen serve` refuses."""
    token, weight = np.array([1]), np.array([np.nan], np.float32)
    return sdk_datum(Datum(token, {"target_tokens": token, "weights": weight}))


def _with_scored(output: LossOutput, data: Sequence[Datum], loss: str | Loss) -> LossOutput:
    """Return the output with its mask of scored tokens; without one for a loss unknown here.

    A server may leave out tokens that can have no gradient.
    """
    if isinstance(loss, str) and loss not in LOSSES:
        return replace(output, scored=())
    return replace(output, scored=tuple(scored_positions(loss, datum) for datum in data))


def _remote_name(name: str) -> str:
    """Return a name that the server accepts and has never seen.

    When a save is attempted twice, either attempt may have arrived.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-100:].strip("-._")
    return f"{clean or 'checkpoint'}-{secrets.token_hex(4)}"
