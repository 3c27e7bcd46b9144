"""The routes of the API, and what each answers."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from pydantic import BaseModel, StrictInt
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tinker import types

from adapters.server.listing import Listing
from adapters.server.loopback import is_loopback
from adapters.server.metrics import Metrics
from adapters.server.promises import Full, Gone
from adapters.server.sampling import SamplingApi
from adapters.server.sessions import Absent, Sessions
from adapters.server.training import TrainingApi, parse
from adapters.server.wire import passing
from kitchen.errors import ConfigError, DataError, KitchenError, RunFailed
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.serve")
LONGEST = 32 * 2**20  # bytes of a request; the SDK cuts its own at 5 MB
POLL = 20.0  # seconds that a client's question for an answer is held; the SDK asks again after 45
TICK = 10.0  # seconds from one sweep to the next
OPEN = ("/healthz", "/api/v1/healthz")  # what needs no key
PROTOBUF = "application/x-protobuf"
Handler = Callable[[Request], Awaitable[Response]]
STATUSES: Mapping[type[Exception], int] = {
    Absent: 404,
    Gone: 410,
    Full: 429,
    ConfigError: 400,
    DataError: 400,
    RunFailed: 503,
    KitchenError: 400,
    ValueError: 422,
}


class Named(BaseModel):
    """Weights by their path."""

    tinker_path: str


class Lifetime(BaseModel):
    """How long a checkpoint is kept; None is for ever."""

    ttl_seconds: StrictInt | None


class Refused(Exception):
    """A request that is not even looked at."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def app(sessions: Sessions, key: str | None) -> Starlette:
    """Every request but those for health must bring the key, if there is one."""
    api, metrics = Api(sessions), Metrics(sessions)

    @asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(api))
        yield
        sweeping.cancel()
        api.close()

    routes = [
        Route(path, api.told(handler), methods=[method]) for method, path, handler in api.routes()
    ]
    made = Starlette(
        lifespan=living,
        routes=[*routes, Route("/metrics", metrics.shown)],
        middleware=[Middleware(Door, key=key, metrics=metrics)],
        exception_handlers={404: _unknown, 405: _unknown},
    )
    made.state.sessions, made.state.api = sessions, api
    return made


class Api:
    """From requests of HTTP to what they ask for."""

    def __init__(self, sessions: Sessions) -> None:
        self._all, self._listing = sessions, Listing(sessions)
        self._training, self._sampling = TrainingApi(sessions), SamplingApi(sessions)

    def routes(self) -> list[tuple[str, str, Handler]]:
        training, listing = self._training, self._listing
        checkpoint = "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
        return [
            ("GET", "/healthz", _ok),
            ("GET", "/api/v1/healthz", _ok),
            ("POST", "/api/v1/client/config", _as_json(types.ClientConfigResponse())),
            (
                "POST",
                "/api/v1/client/dynamic_config",
                _as_json(types.ClientDynamicConfigResponse()),
            ),
            (
                "GET",
                "/api/v1/get_server_capabilities",
                _read(lambda request: listing.capabilities()),
            ),
            ("POST", "/api/v1/telemetry", _as_json(types.TelemetryResponse(status="accepted"))),
            ("POST", "/api/v1/create_session", self._open),
            ("POST", "/api/v1/session_heartbeat", self._heartbeat),
            ("POST", "/api/v1/sessions/{id}/finish", self._finish),
            (
                "POST",
                "/api/v1/create_model",
                self._promise(types.CreateModelRequest, training.create_model),
            ),
            (
                "POST",
                "/api/v1/load_weights",
                self._promise(types.LoadWeightsRequest, training.load_weights),
            ),
            ("POST", "/api/v1/forward_backward", self._pass),
            ("POST", "/api/v1/forward", self._pass),
            (
                "POST",
                "/api/v1/optim_step",
                self._promise(types.OptimStepRequest, training.optim_step),
            ),
            (
                "POST",
                "/api/v1/save_weights",
                self._promise(types.SaveWeightsRequest, training.save_weights),
            ),
            (
                "POST",
                "/api/v1/save_weights_external",
                self._promise(types.SaveWeightsExternalRequest, training.save_external),
            ),
            (
                "POST",
                "/api/v1/save_weights_for_sampler",
                self._promise(types.SaveWeightsForSamplerRequest, training.save_for_sampler),
            ),
            ("POST", "/api/v1/get_info", self._info),
            ("POST", "/api/v1/retrieve_future", self._retrieve),
            ("POST", "/api/v1/create_sampling_session", self._open_sampling),
            ("POST", "/api/v1/asample", self._sample),
            ("POST", "/api/v1/weights_info", self._weights_info),
            ("GET", "/api/v1/training_runs", _read(lambda request: listing.runs(*_page(request)))),
            (
                "GET",
                "/api/v1/training_runs/{run}",
                _read(lambda request: listing.run(request.path_params["run"])),
            ),
            (
                "GET",
                "/api/v1/training_runs/{run}/checkpoints",
                _read(lambda request: listing.checkpoints(request.path_params["run"])),
            ),
            ("DELETE", checkpoint, self._delete),
            ("PUT", f"{checkpoint}/ttl", self._live),
            (
                "GET",
                f"{checkpoint}/external_weights_urls",
                _read(
                    lambda request: listing.files(
                        **_of(request), url=str(request.base_url).rstrip("/")
                    )
                ),
            ),
            ("GET", "/api/v1/files/{run}/{kind}/{name}/{file:path}", self._file),
            (
                "GET",
                "/api/v1/checkpoints",
                _read(lambda request: listing.all_checkpoints(*_page(request))),
            ),
            ("GET", "/api/v1/sessions", _read(lambda request: listing.sessions(*_page(request)))),
            (
                "GET",
                "/api/v1/sessions/{id}",
                _read(lambda request: listing.session(request.path_params["id"])),
            ),
            (
                "GET",
                "/api/v1/samplers/{id}",
                _read(lambda request: listing.sampler(request.path_params["id"])),
            ),
        ]

    def sweep(self) -> None:
        self._sampling.lines.sweep()
        self._all.sweep()

    def close(self) -> None:
        self._sampling.lines.close()
        self._all.close()

    @staticmethod
    def told(handler: Handler) -> Handler:
        """What it answers, or what is wrong with the request."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as error:
                return _wrong(error.status, error)
            except ClientDisconnect:
                return Response(status_code=499)
            except tuple(STATUSES) as error:
                return _wrong(
                    next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), error
                )

        return answer

    def _promise(self, kind: Any, verb: Callable[[Any], str]) -> Handler:
        async def promise(request: Request) -> Response:
            return self._promised(verb(parse(kind, await _body(request))))

        return promise

    def _promised(self, request_id: str, **more: Any) -> Response:
        return JSONResponse({"request_id": request_id, **more})

    async def _open(self, request: Request) -> Response:
        asked = parse(types.CreateSessionRequest, await _body(request))
        client = self._all.open(asked.user_metadata, asked.display_name, asked.project_id)
        return JSONResponse({"type": "create_session", "session_id": client.record.id})

    async def _heartbeat(self, request: Request) -> Response:
        self._all.client(parse(types.SessionHeartbeatRequest, await _body(request)).session_id)
        return JSONResponse({"type": "session_heartbeat"})

    async def _finish(self, request: Request) -> Response:
        self._all.end(self._all.client(request.path_params["id"]))
        return Response(status_code=204)

    async def _pass(self, request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF:
            raise Refused(415, f"forward_backward takes {PROTOBUF}, as the SDK 0.38 sends it")
        return self._promised(self._training.forward_backward(passing(await _body(request))))

    async def _info(self, request: Request) -> Response:
        return JSONResponse(self._training.info(parse(types.GetInfoRequest, await _body(request))))

    async def _retrieve(self, request: Request) -> Response:
        asked = parse(types.FutureRetrieveRequest, await _body(request))
        self._all.seen(asked.request_id)
        answer = await self._all.promises.fetch(asked.request_id, POLL)
        if answer is None:
            return JSONResponse(
                {"type": "try_again", "request_id": asked.request_id, "queue_state": "active"}, 408
            )
        if answer.message:
            return Response(answer.message, media_type=PROTOBUF)
        return JSONResponse(answer.json)

    async def _open_sampling(self, request: Request) -> Response:
        asked = parse(types.CreateSamplingSessionRequest, await _body(request))
        return JSONResponse(
            {"type": "create_sampling_session", "sampling_session_id": self._sampling.create(asked)}
        )

    async def _sample(self, request: Request) -> Response:
        asked = parse(types.SampleRequest, await _body(request))
        request_id, sequences = self._sampling.sample(asked)
        return self._promised(request_id, sample_sequence_ids=sequences)

    async def _weights_info(self, request: Request) -> Response:
        asked = parse(Named, await _body(request))
        return JSONResponse(self._listing.weights_info(asked.tinker_path))

    async def _delete(self, request: Request) -> Response:
        self._listing.delete(**_of(request))
        return Response(status_code=204)

    async def _live(self, request: Request) -> Response:
        self._listing.live(
            **_of(request), seconds=parse(Lifetime, await _body(request)).ttl_seconds
        )
        return Response(status_code=204)

    async def _file(self, request: Request) -> Response:
        where, query = request.path_params, request.query_params
        until = query.get("until", "")
        data = await run_in_threadpool(
            self._listing.file,
            f"{where['run']}/{where['kind']}/{where['name']}",
            where["file"],
            int(until) if until.isdecimal() else 0,
            query.get("signature", ""),
        )
        return Response(data, media_type="application/octet-stream")


class Door:
    """Lets in who brings the key and no more than is taken."""

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics) -> None:
        self._app, self._key, self._metrics = app, key, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        with self._metrics.request(request) as status:

            async def sending(message: Any) -> None:
                if message["type"] == "http.response.start":
                    status.code = message["status"]
                await send(message)

            if why := self._refused(request):
                await _wrong(why.status, why)(scope, receive, sending)
            else:
                await self._app(scope, receive, sending)

    def _refused(self, request: Request) -> Refused | None:
        # what is routed by; the URL has the host in it, which is the client's word
        path = request.scope["path"]
        if path not in OPEN and not path.startswith("/api/v1/files/") and self._key is not None:
            given = request.headers.get("x-api-key", "")
            if not hmac.compare_digest(given.encode(), self._key.encode()):
                return Refused(401, "the API key is missing or wrong: it comes as X-API-Key")
        if self._key is None and not _from_here(request):
            return Refused(
                403,
                "without a key this server answers programs of this machine alone, which ask for "
                "it by "
                "an address of its own; set KITCHEN_SERVE_KEY for others, and for pages in a "
                "browser",
            )
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LONGEST:
            return Refused(413, f"a request may have {LONGEST} bytes")
        return None


def _from_here(request: Request) -> bool:
    """Not from a page that a browser has open, which could have a name of its own lead to this
    machine.
    """
    host = request.headers.get("host", "")
    name, _, port = host.rpartition(":")
    return "origin" not in request.headers and is_loopback(
        (name if port.isdecimal() else host).strip("[]")
    )


async def _body(request: Request) -> bytes:
    """Whatever its header says, no more than is taken."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LONGEST:
            raise Refused(413, f"a request may have {LONGEST} bytes")
        parts.append(part)
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise Refused(415, f"this server reads no {encoding!r}")
    return b"".join(parts)


async def _sweep(api: Api) -> None:
    while True:
        await asyncio.sleep(TICK)
        try:
            api.sweep()
        except Exception as error:
            log.error("sweeping failed; it is tried again", exc_info=error)


async def _unknown(request: Request, error: Exception) -> Response:
    """Of a path or method that is none of the API's."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    return _wrong(status, Absent(f"{request.method} {request.scope['path']} is not served here"))


async def _ok(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _as_json(answer: Any) -> Handler:
    async def same(request: Request) -> Response:
        return JSONResponse(answer.model_dump(mode="json"))

    return same


def _read(verb: Callable[[Request], Mapping[str, Any] | None]) -> Handler:
    async def read(request: Request) -> Response:
        found = await run_in_threadpool(verb, request)
        return Response(status_code=204) if found is None else JSONResponse(found)

    return read


def _page(request: Request) -> tuple[int, int]:
    """Limit and offset."""
    asked = [request.query_params.get("limit", "20"), request.query_params.get("offset", "0")]
    if not all(each.isdecimal() for each in asked):
        raise ValueError(f"limit={asked[0]!r} and offset={asked[1]!r} must be whole numbers")
    return min(int(asked[0]), 1000), int(asked[1])


def _of(request: Request) -> dict[str, str]:
    where = request.path_params
    return {"run_id": where["run"], "kind": where["kind"], "name": where["name"]}


def _wrong(status: int, error: Exception) -> Response:
    return JSONResponse({"detail": mask(f"{type(error).__name__}: {error}")}, status)
