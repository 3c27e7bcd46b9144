"""The bridge: a server on loopback, between the SDK and SkyRL."""

from __future__ import annotations

import hmac
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import structlog

from adapters.tinker.skyrl.checkpoints import (
    CheckpointNames,
    Deletions,
    SamplerPaths,
    TrainableWeights,
)
from adapters.tinker.skyrl.exports import FILES, Exports
from adapters.tinker.skyrl.messages import (
    PROTOBUF,
    ApiReply,
    ApiRequest,
    Quirk,
    Send,
    UnexpectedReply,
    behind,
    reply,
)
from adapters.tinker.skyrl.models import CreateThenLoad, SessionEnds
from adapters.tinker.skyrl.passes import Backend, GradNorm, MeanLoss
from adapters.tinker.skyrl.results import AWAY, TRY_AGAIN
from adapters.tinker.skyrl.sampling import FrozenWeights, PromptLogprobs
from adapters.tinker.skyrl.wire import FailedRequests, JsonMessages, SampleIds, failed
from kitchen.errors import BackendError, KitchenError
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.tinker")

# seconds until a result that is not there is asked for again; the SDK gives up after 45
POLL_TIMEOUT = 40.0
TIMEOUT = 600.0  # seconds for any other reply
OTHER_DIALECT = (
    "so this server does not speak SkyRL's dialect of the Tinker API (that of 0.3.0 and of git, "
    "a956457); for another server, such as `kitchen serve`, leave training.server out"
)


def quirks(exports: Exports) -> tuple[Quirk, ...]:
    """Return all quirks; the first one sees a request first, and its reply last."""
    backend = Backend()
    return (
        SampleIds(),
        JsonMessages(),
        FailedRequests(),
        CreateThenLoad(),
        CheckpointNames(),
        exports,
        FrozenWeights(backend),
        SessionEnds(backend),
        TrainableWeights(),
        SamplerPaths(),
        Deletions(),
        PromptLogprobs(),
        GradNorm(),
        MeanLoss(backend),
    )


class Bridge:
    """Answers the SDK on a port of this machine, which needs a key that only this process has."""

    def __init__(self, upstream: str, upstream_key: str) -> None:
        self.key = f"tml-{secrets.token_hex(16)}"
        self._client = httpx.Client(
            base_url=upstream,
            headers={"X-API-Key": upstream_key},
            timeout=TIMEOUT,
            limits=httpx.Limits(max_connections=None),
        )
        exports = Exports()
        send = behind(quirks(exports), self._send)
        self._server = _Server(send, exports, self.key)
        self.url = exports.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(
            target=self._server.serve_forever, name="bridge to SkyRL", daemon=True
        ).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()

    def _send(self, request: ApiRequest) -> ApiReply:
        if self._client.is_closed:
            raise BackendError("the bridge to SkyRL is closed")
        is_poll = request.endpoint == "retrieve_future"
        try:
            response = self._client.request(
                request.method,
                request.path,
                content=request.body,
                headers={"Content-Type": request.content_type} if request.body else {},
                timeout=POLL_TIMEOUT if is_poll else TIMEOUT,
            )
        except httpx.ReadTimeout:
            return reply({"type": "try_again", "queue_state": "active"}, status=TRY_AGAIN)
        except httpx.TransportError as error:
            return reply({"detail": f"SkyRL does not answer: {mask(str(error))}"}, status=AWAY)
        content_type = response.headers.get("content-type", "")
        if content_type.startswith(PROTOBUF):
            raise UnexpectedReply("is protobuf, not JSON")
        return ApiReply(
            response.status_code,
            response.content,
            content_type,
            response.headers.get("location", ""),
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, send: Send, exports: Exports, key: str) -> None:
        self.send, self.exports, self.key = send, exports, key
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke; the traceback would go to standard error otherwise."""
        log.debug("a connection to the bridge to SkyRL broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content_type = self.headers.get("Content-Type", "")
        request = ApiRequest(str(self.command), self.path, body, content_type)
        if self.path.startswith(FILES):
            return self.write(self.server.exports.file(request))
        given = self.headers.get("X-API-Key", "")
        if not hmac.compare_digest(given.encode(), self.server.key.encode()):
            return self.write(reply({"detail": "this bridge is private"}, status=401))
        try:
            answered = self.server.send(request)
        except Exception as error:  # the SDK repeats requests without an answer
            log.debug("the bridge to SkyRL failed", endpoint=request.endpoint, exc_info=True)
            answered = _failure(request, error)
        self.write(answered)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def write(self, answered: ApiReply) -> None:
        self.send_response(answered.status)
        if answered.location:
            self.send_header("Location", answered.location)
        if answered.status != 204:
            self.send_header("Content-Type", answered.content_type)
            self.send_header("Content-Length", str(len(answered.body)))
        self.end_headers()
        if answered.status != 204:
            self.wfile.write(answered.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are logged by the SDK."""


def _failure(request: ApiRequest, error: Exception) -> ApiReply:
    """Return an error in a form that the SDK does not retry."""
    if isinstance(error, KitchenError) and not isinstance(error, UnexpectedReply):
        found = error
    else:
        found = BackendError(f"the reply to {request.endpoint} {_fault(error)}, {OTHER_DIALECT}")
    message = mask(str(found))
    if request.endpoint == "retrieve_future":
        return failed(f"{type(found).__name__}: {message}")
    return reply({"detail": message}, status=400)


def _fault(error: Exception) -> str:
    match error:
        case UnexpectedReply():
            return str(error)
        case KeyError():
            return f"has no field {error}"
        case _:
            return f"is malformed ({type(error).__name__}: {error})"
