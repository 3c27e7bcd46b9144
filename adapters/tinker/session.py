"""A training session on a server."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, TypeVar

import structlog
from tinker import types

from adapters.tinker.datums import loss_output, theirs, without_extras
from adapters.tinker.own import Own
from adapters.tinker.pointers import Pointers
from adapters.tinker.sampler import IDS, TinkerSampler
from adapters.tinker.service import Service
from adapters.tinker.tickets import OVER, Line, explained, follow, settle, using
from adapters.tinker.waiting import Waiting
from adapters.tinker.works import fail, work
from kitchen.backend.custom_loss import own_slopes
from kitchen.backend.datum_checks import check_data
from kitchen.backend.losses import LOSSES, Options, scored
from kitchen.errors import (
    BackendError,
    ConfigError,
    CorruptCheckpoint,
    DataError,
    KitchenError,
    RunFailed,
    SessionLost,
)
from kitchen.ports.future import Failed, Future, Pending
from kitchen.ports.sampling import Sampler, Tokenizer
from kitchen.secrets import mask
from kitchen.types import Adam, Checkpoint, Datum, Facts, Lora, Loss, LossOutput, Stepped

T = TypeVar("T")
log = structlog.get_logger("kitchen.tinker")


class TinkerSession:
    """One set of LoRA weights under training; it opens while the caller goes on."""

    def __init__(
        self,
        service: Service,
        pointers: Pointers,
        model: str,
        lora: Lora,
        tokenizer: Callable[[], Tokenizer],
        expire_after: int,
    ) -> None:
        self._service, self._pointers, self._model, self._tokenizer = (
            service,
            pointers,
            model,
            tokenizer,
        )
        self._expire_after, self._steps = expire_after or None, 0
        self._waiting = Waiting(f"training {model}")
        self._line = Line(f"training {model} on a server")
        self._end = using(service, self, self._line)
        self._saving = set[str]()  # names of checkpoints that are being written
        self._failure: BaseException | None = None
        self._connected: Any = None  # the ServiceClient that the session was opened with
        self._opened = work()  # the SDK's TrainingClient; another after a load
        self._line.put(
            lambda: self._reopen(
                lambda client: client.create_lora_training_client(
                    model,
                    rank=lora.rank,
                    seed=lora.seed,
                    train_attn=lora.train_attn,
                    train_mlp=lora.train_mlp,
                    train_unembed=lora.train_unembed,
                )
            )
        )

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer()

    def facts(self) -> Facts:
        """Waits until the session is open. What the server computes with, it does not say."""
        info = self._put(self._opened_now).result().get_info()
        return Facts(
            {
                "model": self._model,
                "model.served_as": str(info.model_data.model_name),
                "machine.server": mask(self._service.address),
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
            return self._passed(data, loss, options, lambda client: client.forward)

        def ask(client: Any) -> Any:
            check_data(data, loss, None, vocabulary=IDS, context=IDS)
            return client.forward(
                [theirs(without_extras(datum)) for datum in data], "cross_entropy"
            )

        def told(answer: Any) -> LossOutput:
            nats = loss_output(answer, data).logprobs
            return LossOutput(nats, own_slopes(loss, data, nats)[0])

        return self._ask(ask, told)

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Options | None = None,
    ) -> Future[LossOutput]:
        data = tuple(data)
        if isinstance(loss, str):
            return self._passed(
                data, loss, options, lambda client: client.forward_backward, update=True
            )
        own = Own(loss, data)

        return self._ask(
            lambda client: client.forward_backward_custom(_checked(data, loss, None), own),
            lambda answer: replace(_scored(answer, data, loss), metrics=own.metrics),
            update=True,
        )

    def optim_step(self, adam: Adam) -> Future[Stepped]:
        def ask(client: Any) -> Any:
            asked = client.optim_step(
                types.AdamParams(
                    learning_rate=adam.learning_rate,
                    beta1=adam.beta1,
                    beta2=adam.beta2,
                    eps=adam.eps,
                    weight_decay=adam.weight_decay,
                    grad_clip_norm=adam.grad_clip_norm,
                )
            )
            self._steps += 1
            return asked

        return self._ask(ask, lambda answer: Stepped(dict(answer.metrics or {})), update=True)

    def save(self, name: str) -> Future[Checkpoint]:
        """The state with its optimiser."""

        def ask(client: Any) -> Any:
            self._pointers.check_free(name)
            return client.save_state(_remote(name), ttl_seconds=self._expire_after)

        return self._saved(ask, name, "training")

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        """For sampling; what is overwritten is deleted once the new is there."""

        def ask(client: Any) -> Any:
            if not overwrite:
                self._pointers.check_free(name)
            return client.save_weights_for_sampler(_remote(name), ttl_seconds=self._expire_after)

        return self._saved(ask, name, "weights")

    def load(self, checkpoint: Checkpoint) -> Future[None]:
        return self._loaded(checkpoint, with_optimiser=True)

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        return self._loaded(checkpoint, with_optimiser=False)

    def delete(self, checkpoint: Checkpoint) -> Future[None]:
        """One that cannot be deleted now stays, and costs no run."""
        return self._put(
            lambda: self._removed(
                checkpoint.path, lambda: forget(self._service, self._pointers, checkpoint)
            )
        )

    def _removed(self, name: str, remove: Callable[[], None]) -> None:
        try:
            remove()
        except BackendError as error:
            log.warning("a checkpoint could not be deleted", checkpoint=name, why=str(error))

    def snapshot(self) -> Future[Sampler]:
        return self._ask(
            lambda client: client.save_weights_and_get_sampling_client(),
            lambda client: TinkerSampler(self._service, lambda _: client, self._waiting),
        )

    def close(self) -> None:
        """What waits is let go; the server ends the session with the last that uses it."""
        self._end()

    def _passed(
        self,
        data: Sequence[Datum],
        loss: str,
        options: Options | None,
        verb: Callable[[Any], Any],
        *,
        update: bool = False,
    ) -> Future[LossOutput]:
        return self._ask(
            lambda client: verb(client)(
                _checked(data, loss, options), loss, dict(options or {}) or None
            ),
            lambda answer: _scored(answer, data, loss) if update else loss_output(answer, data),
            update=update,
        )

    def _ask(
        self, ask: Callable[[Any], Any], told: Callable[[Any], T], *, update: bool = False
    ) -> Future[T]:
        """An update that fails ends the session, lest it train on; input that was not even sent
        does not.
        """
        answer = work()

        def job() -> None:
            try:
                self._check_alive()
                asked = ask(self._opened.result())
            except BaseException as error:  # noqa: BLE001 it surfaces on the future
                found = explained(error)
                self._look(found, update and not isinstance(found, DataError | ConfigError))
                fail(answer, found)
                return
            answer.add_done_callback(lambda answer: self._look(answer.exception(), update))
            follow(asked, told, answer)

        if not self._line.put(job):
            return Failed(RunFailed("the session is closed"))
        self._service.watch(answer)
        return Pending(answer)

    def _put(self, job: Callable[[], T]) -> Future[T]:
        """Something to be done on the line, that is no request of the SDK's training client."""
        answer = work()
        if not self._line.put(lambda: settle(answer, job)):
            return Failed(RunFailed("the session is closed"))
        return Pending(answer)

    def _check_alive(self) -> None:
        if self._failure is not None:
            kind = SessionLost if isinstance(self._failure, SessionLost) else RunFailed
            raise kind(
                f"the session takes no more calls, for an earlier one failed: {self._failure}"
            )

    def _look(self, error: BaseException | None, fatal: bool) -> None:
        if isinstance(error, SessionLost):
            self._service.lose(self._connected)
        if error is not None and (fatal or isinstance(error, SessionLost)):
            self._failure = self._failure or error

    def _saved(self, ask: Callable[[Any], Any], name: str, kind: str) -> Future[Checkpoint]:
        steps: list[int] = []

        def counted(client: Any) -> Any:
            if name in self._saving:
                raise ConfigError(f"checkpoint {name!r} is being written; choose another name")
            asked = ask(client)
            self._saving.add(name)
            steps.append(self._steps)
            return asked

        def told(answer: Any) -> Checkpoint:
            before = self._pointers.path_of(name)
            found = self._pointers.put(name, answer.path, step=steps[0], kind=kind)
            if before is not None:
                self._put(lambda: self._removed(name, lambda: remove(self._service, before)))
            return found

        future = self._ask(counted, told)
        if isinstance(future, Pending):
            future.work.add_done_callback(lambda _: self._saving.discard(name) if steps else None)
        return future

    def _loaded(self, checkpoint: Checkpoint, *, with_optimiser: bool) -> Future[None]:
        def job() -> None:
            path = self._pointers.path(checkpoint)
            if with_optimiser and checkpoint.kind != "training":
                raise ConfigError(
                    f"checkpoint {checkpoint.path!r} keeps weights alone, no optimiser: use "
                    "load_weights"
                )
            self._opened = work()
            self._reopen(
                lambda client: (
                    client.create_training_client_from_state_with_optimizer
                    if with_optimiser
                    else client.create_training_client_from_state
                )(path)
            )
            try:
                self._opened.result()
            except KitchenError as error:
                if not isinstance(error, SessionLost) and is_gone(self._service, path):
                    raise CorruptCheckpoint(
                        f"{checkpoint.path}: the server does not have it any more: {error}"
                    ) from error
                raise
            self._steps, self._failure = checkpoint.step if with_optimiser else 0, None

        return self._put(job)

    def _reopen(self, opening: Callable[[Any], Any]) -> None:
        def opened() -> Any:
            self._connected = self._service.client()
            return self._waiting.over(opening(self._connected).result())

        settle(self._opened, opened)
        self._look(self._opened.exception(), False)

    def _opened_now(self) -> Any:
        return self._opened.result()


def forget(service: Service, pointers: Pointers, checkpoint: Checkpoint) -> None:
    """Here and on the server; one that is gone already is no error."""
    path = pointers.path_of(checkpoint.path)
    pointers.forget(checkpoint.path)  # first: what is half deleted is no checkpoint
    if path is not None:
        remove(service, path)


def remove(service: Service, path: str) -> None:
    """Delete weights from the server; raises what `explained` makes of its refusal."""
    try:
        service.rest().delete_checkpoint_from_tinker_path(path).result()
    except Exception as error:
        if getattr(error, "status_code", 0) not in OVER:
            raise explained(error) from error


def is_gone(service: Service, path: str) -> bool:
    """Whether the server says that it has no such weights."""
    try:
        service.rest().get_weights_info_by_tinker_path(path).result()
    except Exception as error:  # noqa: BLE001 others do not say so
        return getattr(error, "status_code", 0) in (400, *OVER)
    return False


def _checked(data: Sequence[Datum], loss: str | Loss, options: Options | None) -> list[Any]:
    """Ids and lengths the server knows better."""
    check_data(data, loss, options, vocabulary=IDS, context=IDS)
    return [theirs(datum) for datum in data]


def _scored(answer: Any, data: Sequence[Datum], loss: str | Loss) -> LossOutput:
    """A server may leave out what can have no gradient; of a loss that is not known here, it is not
    known what.
    """
    found = loss_output(answer, data)
    known = not isinstance(loss, str) or loss in LOSSES
    return replace(found, scored=tuple(scored(loss, datum) for datum in data) if known else ())


def _remote(name: str) -> str:
    """A name that the server takes and has never had: of two attempts at one save, either may have
    arrived.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-100:].strip("-._")
    return f"{clean or 'checkpoint'}-{secrets.token_hex(4)}"
