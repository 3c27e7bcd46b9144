"""Requests that train models, and save and load their weights."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from tinker import types

from adapters.server.exports import parse_recipients
from adapters.server.futures import Gone, Result
from adapters.server.records import (
    SAMPLER,
    CheckpointRecord,
    Kind,
    RunRecord,
    SamplerRecord,
    check_name,
    check_number,
    expiry,
    now,
)
from adapters.server.sessions import (
    ClientSession,
    Model,
    NotFound,
    Sessions,
    checkpoint_name,
    snapshot_name,
)
from adapters.tinker_protobuf import ForwardBackward, loss_output_message
from kitchen.errors import BackendError, ConfigError, DataError
from kitchen.ports.future import Done, Failed, Future, arrival, start
from kitchen.types import Adam, Checkpoint, Lora, LossOutput, OptimStepResult

T = TypeVar("T")
MAX_RANK = 1024


class TrainingApi:
    """The training requests of the API.

    Each method returns the id of the request, whose result is fetched later; a request that arrives
    again does not run again.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def create_model(self, request: types.CreateModelRequest) -> str:
        client = self._sessions.client(request.session_id)
        lora = _lora(request.lora_config or types.LoraConfig(rank=32))

        def begin() -> Future[Any]:
            _check_optimizer(request.optimizer_config)
            model = self._open(
                client, request.model_seq_id, request.base_model, lora, request.user_metadata
            )
            return start(self._wait_until_open(client, model, Done(None)))

        model_id = _model_id(client, request.model_seq_id)
        return self._submit(
            f"{model_id}:0",
            client,
            begin,
            lambda _: {"model_id": model_id, "type": "create_model"},
        )

    def load_weights(self, request: types.LoadWeightsRequest) -> str:
        """Load weights into a new model, as its first request, or into an existing one."""
        response = {"path": request.path, "type": "load_weights"}
        if request.session_id is None:
            model = self._sessions.model(str(request.model_id))
            return self._submit_in_order(
                model,
                request.seq_id,
                lambda: self._load_into(model, request),
                lambda _: {**response, "model_id": model.run.id},
            )
        client = self._sessions.client(request.session_id)
        model_id = _model_id(client, request.model_seq_id)

        def begin() -> Future[Any]:
            _check_optimizer(request.optimizer_config)
            saved = self._sessions.checkpoint(request.path)
            model = self._open(
                client,
                request.model_seq_id,
                self._sessions.base_of(saved.path, saved.base, request.base_model),
                saved.lora,
                request.user_metadata,
            )
            loading = _load(model, saved, request.optimizer)
            return start(self._wait_until_open(client, model, loading))

        return self._submit(
            f"{model_id}:0", client, begin, lambda _: {**response, "model_id": model_id}
        )

    def _load_into(self, model: Model, request: types.LoadWeightsRequest) -> Future[None]:
        saved = self._sessions.checkpoint(request.path)
        self._sessions.base_of(saved.path, saved.base, model.run.base)
        return _load(model, saved, request.optimizer)

    def forward_backward(self, request: ForwardBackward) -> str:
        model = self._sessions.model(request.model)

        def begin() -> Future[LossOutput]:
            session = model.session
            try:
                data, options = request.data(), request.options()
            except (DataError, ConfigError):
                if not request.forward_only:
                    session.forward_backward(())  # refused there too, and so is the step after it
                raise
            run = session.forward if request.forward_only else session.forward_backward
            return run(data, request.loss, options)

        return self._submit_in_order(
            model,
            request.number,
            begin,
            lambda output: Result(message=loss_output_message(output)),
            request.message.ByteSize(),
        )

    def optim_step(self, request: types.OptimStepRequest) -> str:
        model = self._sessions.model(request.model_id)

        def begin() -> Future[OptimStepResult]:
            return model.session.optim_step(_adam(request.optim_params))

        return self._submit_in_order(
            model, request.seq_id, begin, lambda stepped: {"metrics": dict(stepped.metrics)}
        )

    def save_weights(self, request: types.SaveWeightsRequest) -> str:
        return self._save(
            request, "weights", overwrite=request.overwrite, metadata=request.user_metadata
        )

    def save_external(self, request: types.SaveWeightsExternalRequest) -> str:
        return self._save(
            request,
            "external_weights",
            overwrite=False,
            metadata=None,
            recipients=request.age_encryption_recipients,
        )

    def save_for_sampler(self, request: types.SaveWeightsForSamplerRequest) -> str:
        """Save weights under a name, or for one sampling session that ends with this session."""
        if request.path is not None:
            return self._save(
                request, "sampler_weights", overwrite=False, metadata=request.user_metadata
            )
        model = self._sessions.model(request.model_id)
        sampler_id = f"{model.run.session}{SAMPLER}{request.sampling_session_seq_id}"

        def begin() -> Future[Checkpoint]:
            _check_snapshot(request)
            saving = model.session.save_weights(snapshot_name(sampler_id), overwrite=True)
            return start(self._finish_or_delete(saving))

        def respond(weights: Checkpoint) -> Mapping[str, Any]:
            self._sessions.add_snapshot(
                SamplerRecord(
                    id=sampler_id,
                    session=model.run.session,
                    base=model.run.base,
                    weights=weights,
                    is_only_user=True,
                )
            )
            return {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}

        return self._submit_in_order(model, request.seq_id, begin, respond)

    def info(self, request: types.GetInfoRequest) -> Mapping[str, Any]:
        run = self._sessions.model(request.model_id).run
        tokenizer_id = self._sessions.models.get(run.base).folder or run.base
        return {
            "type": "get_info",
            "model_id": run.id,
            "model_name": run.base,
            "is_lora": True,
            "lora_rank": run.lora.rank,
            "model_data": {"arch": "", "model_name": run.base, "tokenizer_id": tokenizer_id},
        }

    def _open(
        self,
        client: ClientSession,
        number: int | None,
        base: str,
        lora: Lora,
        metadata: Mapping[str, Any] | None,
    ) -> Model:
        """Open a model in the client's session; it loads in the background."""
        self._sessions.check_writable()
        run = RunRecord(
            id=_model_id(client, number),
            session=client.record.id,
            base=base,
            lora=lora,
            metadata=dict(metadata or {}),
            project=client.record.project,
        )
        if run.id in client.models:
            raise ConfigError(f"the session has a model of number {number} already")
        limit = self._sessions.limits.models_per_session
        if len(client.models) >= limit:
            raise ConfigError(
                f"the session has {limit} models under training, the most that this server allows; "
                "end it and open another"
            )
        session = self._sessions.training.open(self._sessions.models.get(base).name, lora)
        client.models[run.id] = Model(run, session)
        return client.models[run.id]

    async def _wait_until_open(
        self, client: ClientSession, model: Model, loading: Future[None]
    ) -> None:
        """Record the model once it is open; a model that fails to open is dropped."""
        try:
            await asyncio.to_thread(model.session.facts)
            await loading
        except BaseException:
            client.models.pop(model.run.id, model).session.close()
            raise
        self._sessions.records.put(model.run)

    def _save(
        self,
        request: Any,
        kind: Kind,
        *,
        overwrite: bool,
        metadata: Mapping[str, str] | None,
        recipients: Sequence[str] | None = None,
    ) -> str:
        model = self._sessions.model(request.model_id)

        def begin() -> Future[CheckpointRecord]:
            keys = parse_recipients(recipients)
            record = CheckpointRecord(
                id=f"{model.run.id}/{kind}/{check_name(request.path)}",
                base=model.run.base,
                lora=model.run.lora,
                weights=Checkpoint("", 0),
                expires=expiry(request.ttl_seconds),
                metadata=dict(metadata or {}) or None,
                is_encrypted=bool(keys),
            )
            if not overwrite:
                self._check_free(model, record)
            session = model.session
            save = session.save if kind == "weights" else session.save_weights
            model.saving.add(record.id)
            saving = save(checkpoint_name(record.id))
            if keys:
                saving = start(self._encrypt(record, saving, keys))
            return start(self._record_save(model, record, saving))

        return self._submit_in_order(
            model, request.seq_id, begin, lambda record: {"path": record.path}
        )

    def _check_free(self, model: Model, record: CheckpointRecord) -> None:
        existing = self._sessions.records.get(CheckpointRecord, record.id)
        exists = existing is not None and not existing.is_expired
        if exists or record.id in model.saving:
            raise ConfigError(
                f"the run has {record.kind} named {record.name!r} already; choose another name"
            )

    async def _record_save(
        self, model: Model, record: CheckpointRecord, saving: Future[Checkpoint]
    ) -> CheckpointRecord:
        """Record the checkpoint after it is saved; it replaces an earlier one of its name."""
        try:
            weights = await self._finish_or_delete(saving)
            size = await asyncio.to_thread(self._sessions.records.size_bytes, weights)
            saved = {"weights": weights, "created_at": now(), "size_bytes": size}
            record = record.model_copy(update=saved)
        finally:
            model.saving.discard(record.id)
        replaced = self._sessions.records.get(CheckpointRecord, record.id)
        self._sessions.records.put(record)
        if replaced is not None:
            self._sessions.delete_unused([replaced.weights])
        return record

    async def _finish_or_delete(self, saving: Future[Checkpoint]) -> Checkpoint:
        """Wait for a save; delete its weights if the session ends in the meantime."""
        try:
            return await asyncio.shield(arrival(saving))
        except asyncio.CancelledError:
            start(self._delete(saving))
            raise

    async def _delete(self, saving: Future[Checkpoint]) -> None:
        self._sessions.delete_unused([await saving])

    async def _encrypt(
        self, record: CheckpointRecord, saving: Future[Checkpoint], recipients: Sequence[Any]
    ) -> Checkpoint:
        """Replace saved weights by their exported files, encrypted."""
        sessions, weights = self._sessions, await saving
        try:
            base = sessions.models.public_name(record.base)
            encrypt = sessions.exports.encrypt
            return await asyncio.to_thread(encrypt, weights, base, record.id, recipients)
        finally:
            sessions.training.delete(weights)

    def _submit_in_order(
        self,
        model: Model,
        number: int | None,
        begin: Callable[[], Future[T]],
        respond: Callable[[T], Any],
        size: int = 0,
    ) -> str:
        """Run a request of a model after those with smaller numbers, and return its id."""
        if number is None or number < 1:
            raise ConfigError(
                f"seq_id is {number}: the requests of a model are numbered in order, from 1 on"
            )
        request_id = f"{model.run.id}:{number}"
        futures = self._sessions.futures
        if request_id not in futures:
            # requests that arrived early wait for this one, so it must not be rejected
            is_awaited = number == model.order.next_number and model.order.early
            if not is_awaited:
                futures.check_room(model.run.id)
            turn: asyncio.Future[Future[T]] = asyncio.get_running_loop().create_future()

            def begin_now() -> None:
                if not turn.done():
                    turn.set_result(_begin_safely(begin))

            model.order.submit(number, begin_now)
            futures.add(
                request_id,
                model.run.session,
                _result(_await_turn(turn), respond),
                queue=model.run.id,
                size=size,
            )
            model.run.last_request_at = now()
        return request_id

    def skip(self, body: bytes) -> None:
        """Let the requests of a model proceed after one that could not be parsed.

        Its client counts it, so that the later ones would wait for its number.
        """
        try:
            request = json.loads(body)
            order, number = self._sessions.model(request["model_id"]).order, int(request["seq_id"])
            if number not in order.early:
                order.submit(number, lambda: None)
        except (ValueError, TypeError, KeyError, AttributeError, NotFound, Gone):
            return  # it has no place among the requests of a model

    def _submit(
        self,
        request_id: str,
        client: ClientSession,
        begin: Callable[[], Future[Any]],
        respond: Callable[[Any], Any],
    ) -> str:
        """Run a request now, and return its id."""
        futures = self._sessions.futures
        if request_id not in futures:
            futures.check_room(client.record.id)
            futures.add(
                request_id,
                client.record.id,
                _result(_begin_safely(begin), respond),
                queue=client.record.id,
            )
        return request_id


def parse(kind: type[BaseModel], body: bytes) -> Any:
    """Parse a JSON request of the API; raises ValueError, which names the field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_input=False)
        field = ".".join(map(str, first["loc"])) or "the body"
        raise ValueError(f"{field}: {first['msg']}") from None


def _begin_safely(begin: Callable[[], Future[T]]) -> Future[T]:
    try:
        return begin()
    except Exception as error:  # noqa: BLE001 it is the result, and the request has had its turn
        return Failed(error)


async def _await_turn(turn: asyncio.Future[Future[T]]) -> T:
    return await (await turn)


async def _result(work: Awaitable[T], respond: Callable[[T], Any]) -> Result:
    response = respond(await work)
    return response if isinstance(response, Result) else Result(response)


def _model_id(client: ClientSession, number: int | None) -> str:
    return f"{client.record.id}:train:{check_number('model_seq_id', number)}"


def _load(model: Model, saved: CheckpointRecord, with_optimizer: bool) -> Future[None]:
    if saved.kind == "external_weights":
        raise ConfigError(
            f"{saved.path!r} is in a format for other programs; load tinker://RUN/weights/NAME"
        )
    session = model.session
    load = session.load if with_optimizer else session.load_weights
    return load(saved.weights)


def _lora(config: types.LoraConfig) -> Lora:
    if config.rank > MAX_RANK:
        raise ConfigError(f"rank is {config.rank}, and this server supports at most {MAX_RANK}")
    return Lora(
        rank=config.rank,
        seed=config.seed if config.seed is not None else secrets.randbelow(2**31),
        train_attn=config.train_attn,
        train_mlp=config.train_mlp,
        train_unembed=config.train_unembed,
    )


def _check_snapshot(request: types.SaveWeightsForSamplerRequest) -> None:
    if request.sampling_session_seq_id is None:
        raise ConfigError(
            "path and sampling_session_seq_id are missing: one of them names the weights"
        )
    check_number("sampling_session_seq_id", request.sampling_session_seq_id)
    if request.kind != "snapshot":
        raise ConfigError(f"kind={request.kind!r} is not supported; this server has snapshot only")


def _check_optimizer(config: Any) -> None:
    if config is not None and config.type != "adamw":
        raise BackendError(
            f"the optimiser {config.type!r} is not supported: it has no published formula; use "
            "AdamW"
        )


def _adam(params: Any) -> Adam:
    if not isinstance(params, types.AdamParams):
        raise BackendError(f"the optimiser {params.type!r} is not supported; use AdamW")
    return Adam(
        params.learning_rate,
        params.beta1,
        params.beta2,
        params.eps,
        params.weight_decay,
        params.grad_clip_norm,
    )
