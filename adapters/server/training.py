"""The requests that train."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from tinker import types

from adapters.server.promises import Answer
from adapters.server.records import (
    CheckpointRecord,
    Kind,
    RunRecord,
    SamplerRecord,
    check_name,
    expiry,
    now,
)
from adapters.server.sessions import Client, Model, Sessions, kept, own
from adapters.server.wire import Passing, loss_output
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.future import Done, Failed, Future, start
from kitchen.types import Adam, Checkpoint, Lora, LossOutput, Stepped

T = TypeVar("T")
MOST_RANK = 1024
MOST_MODELS = 64  # of one session, under training at once


class TrainingApi:
    """Each verb returns the id of the request, whose answer is fetched later; asked again, it is
    not done again.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._all = sessions

    def create_model(self, asked: types.CreateModelRequest) -> str:
        client = self._all.client(asked.session_id)
        lora = _lora(asked.lora_config or types.LoraConfig(rank=32))

        def made() -> Future[Any]:
            _check_optimizer(asked.optimizer_config)
            model = self._opened(
                client, asked.model_seq_id, asked.base_model, lora, asked.user_metadata
            )
            return start(self._loaded(client, model, Done(None)))

        model_id = _model_id(client, asked.model_seq_id)
        return self._at_once(
            f"{model_id}:0", client, made, lambda _: {"model_id": model_id, "type": "create_model"}
        )

    def load_weights(self, asked: types.LoadWeightsRequest) -> str:
        """As the first request of a new model, or of one that there is."""
        told = {"path": asked.path, "type": "load_weights"}
        if asked.session_id is None:
            model = self._all.model(str(asked.model_id))
            return self._in_turn(
                model,
                asked.seq_id,
                lambda: _load(model, self._all.checkpoint(asked.path), asked.optimizer),
                lambda _: {**told, "model_id": model.run.id},
            )
        client = self._all.client(asked.session_id)
        model_id = _model_id(client, asked.model_seq_id)

        def made() -> Future[Any]:
            _check_optimizer(asked.optimizer_config)
            saved = self._all.checkpoint(asked.path)
            model = self._opened(
                client,
                asked.model_seq_id,
                asked.base_model or saved.base,
                saved.lora,
                asked.user_metadata,
            )
            return start(self._loaded(client, model, _load(model, saved, asked.optimizer)))

        return self._at_once(
            f"{model_id}:0", client, made, lambda _: {**told, "model_id": model_id}
        )

    def forward_backward(self, asked: Passing) -> str:
        model = self._all.model(asked.model)

        def begun() -> Future[LossOutput]:
            verb = model.session.forward if asked.forward_only else model.session.forward_backward
            return verb(asked.data(), asked.loss, asked.options())

        return self._in_turn(
            model,
            asked.number,
            begun,
            lambda output: Answer(message=loss_output(output)),
            asked.message.ByteSize(),
        )

    def optim_step(self, asked: types.OptimStepRequest) -> str:
        model = self._all.model(asked.model_id)

        def begun() -> Future[Stepped]:
            return model.session.optim_step(_adam(asked.optim_params))

        return self._in_turn(
            model, asked.seq_id, begun, lambda stepped: {"metrics": dict(stepped.metrics)}
        )

    def save_weights(self, asked: types.SaveWeightsRequest) -> str:
        return self._saved(
            asked, "weights", overwrite=asked.overwrite, metadata=asked.user_metadata
        )

    def save_external(self, asked: types.SaveWeightsExternalRequest) -> str:
        refused = (
            "age_encryption_recipients: this server encrypts nothing"
            if asked.age_encryption_recipients
            else ""
        )
        return self._saved(
            asked, "external_weights", overwrite=False, metadata=None, refused=refused
        )

    def save_for_sampler(self, asked: types.SaveWeightsForSamplerRequest) -> str:
        """Under a name, or for a sampling session of its own that ends with this one."""
        if asked.path is not None:
            return self._saved(
                asked, "sampler_weights", overwrite=False, metadata=asked.user_metadata
            )
        model = self._all.model(asked.model_id)
        sampler_id = f"{model.run.session}:sample:{asked.sampling_session_seq_id}"

        def begun() -> Future[Checkpoint]:
            if asked.sampling_session_seq_id is None:
                raise ConfigError(
                    "path and sampling_session_seq_id are missing: one of them names the weights"
                )
            if asked.kind != "snapshot":
                raise ConfigError(f"kind={asked.kind!r}: this server samples from snapshots alone")
            return start(self._whole(model.session.save_weights(own(sampler_id), overwrite=True)))

        def told(inner: Checkpoint) -> Mapping[str, Any]:
            self._all.snapshot(
                SamplerRecord(
                    id=sampler_id,
                    session=model.run.session,
                    base=model.run.base,
                    inner=inner,
                    own=True,
                )
            )
            return {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}

        return self._in_turn(model, asked.seq_id, begun, told)

    def info(self, asked: types.GetInfoRequest) -> Mapping[str, Any]:
        run = self._all.model(asked.model_id).run
        folder = self._all.menu.dish(run.base).folder
        return {
            "type": "get_info",
            "model_id": run.id,
            "model_name": run.base,
            "is_lora": True,
            "lora_rank": run.lora.rank,
            "model_data": {"arch": "", "model_name": run.base, "tokenizer_id": folder or run.base},
        }

    def _opened(
        self,
        client: Client,
        number: int | None,
        base: str,
        lora: Lora,
        metadata: Mapping[str, Any] | None,
    ) -> Model:
        """A model in the client's session, which loads."""
        run = RunRecord(
            id=_model_id(client, number),
            session=client.record.id,
            base=base,
            lora=lora,
            metadata=dict(metadata or {}),
        )
        if run.id in client.models:
            raise ConfigError(f"the session has a model of number {number} already")
        if len(client.models) >= MOST_MODELS:
            raise ConfigError(
                f"the session has {MOST_MODELS} models under training; end it and open another"
            )
        client.models[run.id] = Model(
            run, self._all.training.open(self._all.menu.dish(base).ours, lora)
        )
        return client.models[run.id]

    async def _loaded(self, client: Client, model: Model, loading: Future[None]) -> None:
        """One that cannot be loaded is let go."""
        try:
            await asyncio.to_thread(model.session.facts)
            await loading
        except BaseException:
            client.models.pop(model.run.id, model).session.close()
            raise
        self._all.records.put(model.run)

    def _saved(
        self,
        asked: Any,
        kind: Kind,
        *,
        overwrite: bool,
        metadata: Mapping[str, str] | None,
        refused: str = "",
    ) -> str:
        model = self._all.model(asked.model_id)

        def begun() -> Future[CheckpointRecord]:
            if refused:
                raise ConfigError(f"{refused}; leave it out")
            record = CheckpointRecord(
                id=f"{model.run.id}/{kind}/{check_name(asked.path)}",
                base=model.run.base,
                lora=model.run.lora,
                inner=Checkpoint("", 0),
                expires=expiry(asked.ttl_seconds),
                metadata=dict(metadata or {}) or None,
            )
            there = self._all.records.get(CheckpointRecord, record.id)
            if not overwrite and (
                record.id in model.saving or (there is not None and not there.over)
            ):
                raise ConfigError(
                    f"the run has {kind} named {record.name!r} already; choose another name"
                )
            verb = model.session.save if kind == "weights" else model.session.save_weights
            model.saving.add(record.id)
            return start(self._kept(model, record, verb(kept(record.id))))

        return self._in_turn(model, asked.seq_id, begun, lambda record: {"path": record.path})

    async def _kept(
        self, model: Model, record: CheckpointRecord, saving: Future[Checkpoint]
    ) -> CheckpointRecord:
        """Once it is saved, in the place of the one that may be there."""
        try:
            record = record.model_copy(update={"inner": await self._whole(saving), "made": now()})
        finally:
            model.saving.discard(record.id)
        there = self._all.records.get(CheckpointRecord, record.id)
        self._all.records.put(record)
        if there is not None:
            self._all.let_go([there.inner])
        return record

    async def _whole(self, saving: Future[Checkpoint]) -> Checkpoint:
        """What is saved for a session that has ended in the meantime is deleted."""
        try:
            return await saving
        except asyncio.CancelledError:
            start(self._deleted(saving))
            raise

    async def _deleted(self, saving: Future[Checkpoint]) -> None:
        self._all.training.delete(await saving)

    def _in_turn(
        self,
        model: Model,
        number: int | None,
        begin: Callable[[], Future[T]],
        told: Callable[[T], Any],
        size: int = 0,
    ) -> str:
        if number is None or number < 1:
            raise ConfigError(
                f"seq_id is {number}: requests of a model are done in its order, from 1 on"
            )
        request_id = f"{model.run.id}:{number}"
        if request_id not in self._all.promises:
            # else it is what all that is here waits for
            if not (number == model.turns.following and model.turns.held):
                self._all.promises.check_room(model.run.id)
            begun: asyncio.Future[Future[T]] = asyncio.get_running_loop().create_future()
            model.turns.take(
                number, lambda: None if begun.done() else begun.set_result(_surely(begin))
            )
            self._all.promises.make(
                request_id,
                model.run.session,
                _told(_begun(begun), told),
                queue=model.run.id,
                size=size,
            )
            model.run.last = now()
        return request_id

    def _at_once(
        self,
        request_id: str,
        client: Client,
        begin: Callable[[], Future[Any]],
        told: Callable[[Any], Any],
    ) -> str:
        if request_id not in self._all.promises:
            self._all.promises.check_room(client.record.id)
            self._all.promises.make(
                request_id, client.record.id, _told(_surely(begin), told), queue=client.record.id
            )
        return request_id


def parse(kind: type[BaseModel], body: bytes) -> Any:
    """A request of the API from its JSON; raises ValueError that names the field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_input=False)
        raise ValueError(
            f"{'.'.join(map(str, first['loc'])) or 'the body'}: {first['msg']}"
        ) from None


def _surely(begin: Callable[[], Future[T]]) -> Future[T]:
    try:
        return begin()
    except Exception as error:  # noqa: BLE001 it is the answer, and the turn is taken all the same
        return Failed(error)


async def _begun(begun: asyncio.Future[Future[T]]) -> T:
    return await (await begun)


async def _told(coming: Awaitable[T], told: Callable[[T], Any]) -> Answer:
    answer = told(await coming)
    return answer if isinstance(answer, Answer) else Answer(answer)


def _model_id(client: Client, number: int | None) -> str:
    if number is None:
        raise ConfigError("model_seq_id is missing")
    return f"{client.record.id}:train:{number}"


def _load(model: Model, saved: CheckpointRecord, optimizer: bool) -> Future[None]:
    if saved.kind == "external_weights":
        raise ConfigError(f"{saved.path!r} is for other programs; load tinker://RUN/weights/NAME")
    return (model.session.load if optimizer else model.session.load_weights)(saved.inner)


def _lora(asked: types.LoraConfig) -> Lora:
    if asked.rank > MOST_RANK:
        raise ConfigError(f"rank is {asked.rank}, and may be {MOST_RANK} here")
    return Lora(
        rank=asked.rank,
        seed=asked.seed if asked.seed is not None else secrets.randbelow(2**31),
        train_attn=asked.train_attn,
        train_mlp=asked.train_mlp,
        train_unembed=asked.train_unembed,
    )


def _check_optimizer(asked: Any) -> None:
    if asked is not None and asked.type != "adamw":
        raise BackendError(
            f"the optimiser {asked.type!r} is not served here: it has no published formula; "
            "AdamW is there"
        )


def _adam(asked: Any) -> Adam:
    if not isinstance(asked, types.AdamParams):
        raise BackendError(f"the optimiser {asked.type!r} is not served here; AdamW is there")
    return Adam(
        asked.learning_rate,
        asked.beta1,
        asked.beta2,
        asked.eps,
        asked.weight_decay,
        asked.grad_clip_norm,
    )
