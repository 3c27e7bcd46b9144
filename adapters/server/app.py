"""The HTTP application of the server."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import structlog
from pydantic import BaseModel, Field, StrictInt
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tinker import types

from adapters.server.absent import why_absent
from adapters.server.error_texts import error_text
from adapters.server.futures import Gone, QueueFull
from adapters.server.metrics import Metrics
from adapters.server.openai.api import OpenAIApi
from adapters.server.openai.errors import error_response, is_openai_path
from adapters.server.rejections import RequestRejected
from adapters.server.rest import RestApi
from adapters.server.sampling import SamplingApi
from adapters.server.sessions import NotFound, Sessions
from adapters.server.training import TrainingApi, parse
from adapters.tinker_protobuf import parse_forward_backward
from kitchen.backend.serving import is_local_request
from kitchen.errors import ConfigError, DataError, KitchenError, RunFailed

log = structlog.get_logger("kitchen.serve")
PUBLIC_PATHS = ("/healthz", "/api/v1/healthz")  # need no key
API = "/api/v1"
MAX_SHOWN_PATH = 500  # characters in an error
PROTOBUF = "application/x-protobuf"
_WRONG_KEY = (
    "the API key is missing or wrong: send it as X-API-Key, or as Authorization: Bearer KEY"
)
Handler = Callable[[Request], Awaitable[Response]]
Endpoint = tuple[str, str, Handler]  # method, path, handler
STATUSES: Mapping[type[Exception], int] = {
    NotFound: 404,
    Gone: 410,
    QueueFull: 429,
    ConfigError: 400,
    DataError: 400,
    RunFailed: 503,
    KitchenError: 400,
    ValueError: 422,
}


class WeightsPath(BaseModel):
    """The body of a weights_info request."""

    tinker_path: str


class TimeToLive(BaseModel):
    """The body of a request to change a checkpoint's time to live; None for no expiry."""

    ttl_seconds: StrictInt | None


class Project(BaseModel):
    """The body of a request to move a session to a project."""

    project_id: str = Field(min_length=1)


def create_app(sessions: Sessions, key: str | None, cors: Sequence[str] = ()) -> Starlette:
    """Return the application; with a key, every request but health checks must send it.

    `cors` are origins of web pages that may use the OpenAI API.
    """
    api = Api(sessions)
    metrics = Metrics(sessions)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(api, sessions.limits.sweep_interval))
        yield
        sweeping.cancel()
        api.close()

    gate = Middleware(
        Gate, key=key, metrics=metrics, max_bytes=sessions.limits.request_bytes, origins=cors
    )
    pages = Middleware(
        OpenAIPages, allow_origins=cors, allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    app = Starlette(
        lifespan=lifespan,
        routes=[*api.routes(), Route("/metrics", metrics.render)],
        middleware=[pages, gate] if cors else [gate],
        exception_handlers={404: _unknown, 405: _unknown},
    )
    app.state.sessions = sessions
    app.state.api = api
    return app


class Api:
    """Routes HTTP requests to the training, sampling and REST parts of the API."""

    def __init__(self, sessions: Sessions) -> None:
        self.sampling = SamplingApi(sessions)
        self._sessions = sessions
        self._training = TrainingApi(sessions)
        self._rest = RestApi(sessions)
        self._openai = OpenAIApi(sessions, self.sampling.scheduler, self._body)

    def routes(self) -> list[Route]:
        endpoints = [
            ("GET", "/healthz", _ok),
            *((method, API + path, handler) for method, path, handler in self._api_endpoints()),
        ]
        routes = [
            Route(path, _with_errors(handler), methods=[method])
            for method, path, handler in endpoints
        ]
        return [*routes, *self._openai.routes()]

    def sweep(self) -> None:
        self.sampling.scheduler.sweep()
        self._sessions.sweep()

    def close(self) -> None:
        self.sampling.scheduler.close()
        self._sessions.close()

    def _api_endpoints(self) -> list[Endpoint]:
        return [
            *self._session_endpoints(),
            *self._training_endpoints(),
            *self._sampling_endpoints(),
            *self._rest_endpoints(),
            *self._checkpoint_endpoints(),
        ]

    def _session_endpoints(self) -> list[Endpoint]:
        telemetry = types.TelemetryResponse(status="accepted")
        dynamic = types.ClientDynamicConfigResponse(sample_cancel_enabled=True)
        return [
            ("GET", "/healthz", _ok),
            ("POST", "/client/config", _constant(types.ClientConfigResponse())),
            ("POST", "/client/dynamic_config", _constant(dynamic)),
            ("POST", "/telemetry", _constant(telemetry)),
            ("POST", "/create_session", self._create_session),
            ("POST", "/session_heartbeat", self._heartbeat),
            ("POST", "/sessions/{id}/finish", self._finish_session),
            ("POST", "/retrieve_future", self._retrieve_future),
        ]

    def _training_endpoints(self) -> list[Endpoint]:
        api = self._training
        create = self._queued(types.CreateModelRequest, api.create_model)
        load = self._queued(types.LoadWeightsRequest, api.load_weights)
        step = self._queued(types.OptimStepRequest, api.optim_step)
        save = self._queued(types.SaveWeightsRequest, api.save_weights)
        export = self._queued(types.SaveWeightsExternalRequest, api.save_external)
        save_for_sampler = self._queued(types.SaveWeightsForSamplerRequest, api.save_for_sampler)
        return [
            ("POST", "/create_model", create),
            ("POST", "/load_weights", load),
            ("POST", "/forward_backward", self._forward_backward),
            ("POST", "/forward", self._forward_backward),
            ("POST", "/optim_step", step),
            ("POST", "/save_weights", save),
            ("POST", "/save_weights_external", export),
            ("POST", "/save_weights_for_sampler", save_for_sampler),
            ("POST", "/get_info", self._get_info),
        ]

    def _sampling_endpoints(self) -> list[Endpoint]:
        return [
            ("POST", "/create_sampling_session", self._create_sampling_session),
            ("POST", "/asample", self._sample),
            ("POST", "/cancel_future", self._cancel_sample),
        ]

    def _rest_endpoints(self) -> list[Endpoint]:
        rest = self._rest
        return [
            ("GET", "/get_server_capabilities", _read(lambda _: rest.capabilities())),
            ("POST", "/weights_info", self._weights_info),
            ("GET", "/training_runs", _read(self._runs)),
            ("GET", "/training_runs/{run}", _read(lambda request: rest.run(_run(request)))),
            ("GET", "/sessions", _read(lambda request: rest.sessions(*_page(request)))),
            ("GET", "/sessions/{id}", _read(lambda request: rest.session(_id(request)))),
            ("PUT", "/sessions/{id}/project", self._set_project),
            ("GET", "/samplers/{id}", _read(lambda request: rest.sampler(_id(request)))),
        ]

    def _checkpoint_endpoints(self) -> list[Endpoint]:
        rest = self._rest
        checkpoints = "/training_runs/{run}/checkpoints"
        checkpoint = f"{checkpoints}/{{kind}}/{{name}}"

        def file_urls(request: Request) -> Mapping[str, Any]:
            return rest.file_urls(*_checkpoint(request), str(request.base_url).rstrip("/"))

        return [
            ("GET", "/checkpoints", _read(lambda request: rest.all_checkpoints(*_page(request)))),
            ("GET", checkpoints, _read(lambda request: rest.checkpoints(_run(request)))),
            ("DELETE", checkpoint, self._delete_checkpoint),
            ("PUT", f"{checkpoint}/ttl", self._set_ttl),
            ("POST", f"{checkpoint}/publish", self._publish(True)),
            ("DELETE", f"{checkpoint}/publish", self._publish(False)),
            ("GET", f"{checkpoint}/external_weights_urls", _read(file_urls)),
            ("GET", "/files/{run}/{kind}/{name}/{file:path}", self._file),
        ]

    def _queued(self, kind: Any, submit: Callable[[Any], str]) -> Handler:
        """Return a handler that queues a request and answers with the id of its result."""

        async def handle(request: Request) -> Response:
            body = await self._body(request)
            try:
                parsed = parse(kind, body)
            except ValueError:
                self._training.skip(body)
                raise
            return _request_id(submit(parsed))

        return handle

    async def _create_session(self, request: Request) -> Response:
        body = parse(types.CreateSessionRequest, await self._body(request))
        client = self._sessions.open(body.user_metadata, body.display_name, body.project_id)
        return JSONResponse({"type": "create_session", "session_id": client.record.id})

    async def _heartbeat(self, request: Request) -> Response:
        body = parse(types.SessionHeartbeatRequest, await self._body(request))
        self._sessions.client(body.session_id)  # records that the client is active
        return JSONResponse({"type": "session_heartbeat"})

    async def _finish_session(self, request: Request) -> Response:
        self._sessions.end(self._sessions.client(_id(request)))
        return Response(status_code=204)

    async def _forward_backward(self, request: Request) -> Response:
        if request.headers.get("content-type") != PROTOBUF:
            raise RequestRejected(
                415, f"forward_backward needs the content type {PROTOBUF}, which the SDK 0.38 sends"
            )
        body = parse_forward_backward(await self._body(request))
        return _request_id(self._training.forward_backward(body))

    async def _get_info(self, request: Request) -> Response:
        body = parse(types.GetInfoRequest, await self._body(request))
        return JSONResponse(self._training.info(body))

    async def _retrieve_future(self, request: Request) -> Response:
        body = parse(types.FutureRetrieveRequest, await self._body(request))
        self._sessions.note_poll(body.request_id)
        timeout = self._sessions.limits.long_poll
        result = await self._sessions.futures.fetch(body.request_id, timeout)
        if result is None:
            return JSONResponse(
                {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}, 408
            )
        if result.message:
            return Response(result.message, media_type=PROTOBUF)
        return JSONResponse(result.json)

    async def _cancel_sample(self, request: Request) -> Response:
        body = parse(types.FutureRetrieveRequest, await self._body(request))
        self.sampling.cancel(body.request_id)
        return Response(status_code=204)

    async def _create_sampling_session(self, request: Request) -> Response:
        body = parse(types.CreateSamplingSessionRequest, await self._body(request))
        sampler_id = self.sampling.create(body)
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": sampler_id})

    async def _sample(self, request: Request) -> Response:
        body = parse(types.SampleRequest, await self._body(request))
        request_id, sequence_ids = self.sampling.sample(body)
        return _request_id(request_id, sample_sequence_ids=sequence_ids)

    async def _weights_info(self, request: Request) -> Response:
        body = parse(WeightsPath, await self._body(request))
        return JSONResponse(self._rest.weights_info(body.tinker_path))

    async def _delete_checkpoint(self, request: Request) -> Response:
        self._rest.delete(*_checkpoint(request))
        return Response(status_code=204)

    async def _set_ttl(self, request: Request) -> Response:
        body = parse(TimeToLive, await self._body(request))
        self._rest.set_ttl(*_checkpoint(request), body.ttl_seconds)
        return Response(status_code=204)

    async def _set_project(self, request: Request) -> Response:
        body = parse(Project, await self._body(request))
        self._rest.set_project(_id(request), body.project_id)
        return Response(status_code=204)

    def _publish(self, public: bool) -> Handler:
        async def handle(request: Request) -> Response:
            self._rest.set_public(*_checkpoint(request), public)
            return Response(status_code=204)

        return handle

    def _runs(self, request: Request) -> Mapping[str, Any]:
        return self._rest.runs(*_page(request), request.query_params.get("project_id"))

    async def _file(self, request: Request) -> Response:
        until = request.query_params.get("until", "")
        data = await run_in_threadpool(
            self._rest.file,
            "/".join(_checkpoint(request)),
            request.path_params["file"],
            int(until) if until.isdecimal() else 0,
            request.query_params.get("signature", ""),
        )
        return Response(data, media_type="application/octet-stream")

    async def _body(self, request: Request) -> bytes:
        """Read the body up to the limit, whatever its header declares."""
        limit = self._sessions.limits.request_bytes
        parts = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_long(limit)
            parts.append(part)
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            raise RequestRejected(
                415, f"this server does not read the content encoding {encoding!r}"
            )
        return b"".join(parts)


class OpenAIPages(CORSMiddleware):
    """Middleware that lets web pages of other origins use the OpenAI API, and nothing else."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_openai_path(scope["path"]):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Gate:
    """Middleware that rejects requests that lack the key or are too long, and counts all."""

    def __init__(
        self,
        app: ASGIApp,
        key: str | None,
        metrics: Metrics,
        max_bytes: int,
        origins: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._origins = origins  # of pages that need no key
        self._key = key
        self._metrics = metrics
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        with self._metrics.request(request) as status:

            async def send_and_note(message: Any) -> None:
                if message["type"] == "http.response.start":
                    status.code = message["status"]
                await send(message)

            rejection = self._rejection(request)
            if rejection is not None:
                response = _error_response(rejection.status, rejection, scope["path"])
                await response(scope, receive, send_and_note)
            else:
                await self._app(scope, receive, send_and_note)

    def _rejection(self, request: Request) -> RequestRejected | None:
        # the path that is routed; the URL contains the host, which the client chooses
        path = request.scope["path"]
        # a signature in its URL protects each file
        is_file = path.startswith(f"{API}/files/") and request.method in ("GET", "HEAD")
        needs_key = path not in PUBLIC_PATHS and not is_file
        if self._key is not None and needs_key:
            sent = request.headers.get("x-api-key") or _bearer(request)
            if not hmac.compare_digest(sent.encode(), self._key.encode()):
                return RequestRejected(401, _WRONG_KEY)
        origins = self._origins if is_openai_path(path) else ()
        if self._key is None and not is_local_request(request.headers, origins):
            return RequestRejected(
                403,
                "without a key this server answers only programs on this machine that reach it at "
                "a loopback address; set KITCHEN_SERVE_KEY for others, and for pages in a browser",
            )
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_bytes:
            return _too_long(self._max_bytes)
        return None


def _bearer(request: Request) -> str:
    """Return the key as clients of the OpenAI API send it."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _too_long(limit: int) -> RequestRejected:
    return RequestRejected(413, f"a request may have at most {limit} bytes")


async def _sweep(api: Api, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            api.sweep()
        except Exception as error:
            log.error("sweeping failed; the next sweep tries again", exc_info=error)


def _with_errors(handler: Handler) -> Handler:
    """Return a handler that answers with the status of the error when one is raised."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRejected as error:
            return _error_response(error.status, error)
        except ClientDisconnect:
            return Response(status_code=499)
        except tuple(STATUSES) as error:
            status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
            return _error_response(status, error)

    return handle


async def _unknown(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method is not in the API."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    path = request.scope["path"]
    message = f"{request.method:.{MAX_SHOWN_PATH}} {path:.{MAX_SHOWN_PATH}} is not served here"
    if why := why_absent(path):
        status, message = 404, f"{message}: {why}"
    return _error_response(status, NotFound(message), path)


async def _ok(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _constant(response: Any) -> Handler:
    async def handle(request: Request) -> Response:
        return JSONResponse(response.model_dump(mode="json"))

    return handle


def _read(read: Callable[[Request], Mapping[str, Any]]) -> Handler:
    """Return a handler that answers with JSON computed on another thread."""

    async def handle(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(read, request))

    return handle


def _request_id(request_id: str, **more: Any) -> Response:
    return JSONResponse({"request_id": request_id, **more})


def _page(request: Request) -> tuple[int, int]:
    """Return limit and offset."""
    limit = request.query_params.get("limit", "20")
    offset = request.query_params.get("offset", "0")
    if not limit.isdecimal() or not offset.isdecimal():
        raise ValueError(f"limit={limit!r} and offset={offset!r} must be whole numbers")
    return min(int(limit), 1000), int(offset)


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _run(request: Request) -> str:
    return str(request.path_params["run"])


def _checkpoint(request: Request) -> tuple[str, str, str]:
    """Return the run, kind and name of a checkpoint."""
    params = request.path_params
    return params["run"], params["kind"], params["name"]


def _error_response(status: int, error: Exception, path: str = "") -> Response:
    if is_openai_path(path):
        return error_response(status, error)
    return JSONResponse({"detail": error_text(error)}, status)
