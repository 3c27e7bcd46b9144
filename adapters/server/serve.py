"""A server of the Tinker API on this machine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adapters.server.limits import Limits
from adapters.server.loopback import is_loopback
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.training import TrainingBackend, require_catalog, require_checkpoints
from kitchen.runs.lock import lease

if TYPE_CHECKING:
    from adapters.server.sessions import ServedModel

KEY = "KITCHEN_SERVE_KEY"  # the environment variable with the key that clients must send
MIN_KEY_LENGTH = 12  # characters
SHUTDOWN_GRACE = 30  # seconds that requests in progress have when the server stops


class TinkerServer:
    """Serves the models of a training client under their names and aliases."""

    packages = ("tinker", "starlette", "uvicorn", "prometheus_client")

    def __init__(self, training: TrainingBackend, hub: HubClient, blobs: BlobStore) -> None:
        require_catalog(training)
        require_checkpoints(training)
        self._training = training
        self._hub = hub
        self._blobs = blobs

    def app(
        self,
        models: Sequence[str],
        aliases: Mapping[str, str],
        key: str | None = None,
        limits: Limits | None = None,
    ) -> Any:
        """Return an ASGI application; raises BackendError for a model that cannot be fetched."""
        from adapters.server.app import create_app
        from adapters.server.records import Records
        from adapters.server.sessions import ServedModels, Sessions

        served = ServedModels(dict(self._fetch_models(models, aliases)))
        return create_app(Sessions(self._training, Records(self._blobs), served, limits), key)

    def serve(
        self,
        models: Sequence[str],
        aliases: Mapping[str, str],
        host: str,
        port: int,
        *,
        take_over: bool = False,
    ) -> Iterator[str]:
        """Yield the address, the key that clients send, and the models' names; then serve.

        Serves until a signal stops it. Raises ConfigError for an address that other machines can
        reach if no key is set.
        """
        import uvicorn

        from adapters.server.records import ROOT

        key = os.environ.get(KEY) or None
        _check_key(key, host)
        # two servers on one store would each end the other's sessions
        exclusive = lease(self._blobs, ROOT, take_over=take_over)
        with _exit_on_sigterm(), _listen(host, port) as listening, exclusive:
            app = self.app(models, aliases, key)
            yield f"http://{_reachable_name(host)}:{listening.getsockname()[1]}"
            yield "tml-any" if key is None else f"${KEY}"
            yield from app.state.sessions.models.by_name
            server = uvicorn.Server(
                uvicorn.Config(
                    app, log_config=None, access_log=False, timeout_graceful_shutdown=SHUTDOWN_GRACE
                )
            )
            with deferred_signals(server) as signals:
                server.run(sockets=[listening])
        for number in signals:
            signal.raise_signal(number)

    def _fetch_models(
        self, models: Sequence[str], aliases: Mapping[str, str]
    ) -> Iterator[tuple[str, ServedModel]]:
        """Yield each model under its name, its folder and its aliases.

        The SDK finds the tokenizer by the folder.
        """
        from adapters.server.sessions import ServedModel

        fetched = {}
        for model in dict.fromkeys([*models, *aliases.values()]):
            self._training.find(model)
            fetched[model] = ServedModel.fetch(model, self._hub)
            yield model, fetched[model]
            if fetched[model].folder:
                yield fetched[model].folder, fetched[model]
        for name, model in aliases.items():
            if name in fetched and name != model:
                raise ConfigError(
                    f"--alias {name}={model}: {name} is already the name of a served model; leave "
                    "one of them out"
                )
            yield name, fetched[model]


def _check_key(key: str | None, host: str) -> None:
    if key is None and not is_loopback(host):
        raise ConfigError(
            f"host={host} can be reached from other machines, and there is no key: set {KEY}, "
            "which clients then set as TINKER_API_KEY, or listen on 127.0.0.1"
        )
    if key is not None and not (key.startswith("tml-") and len(key) >= MIN_KEY_LENGTH):
        raise ConfigError(
            f"{KEY} must begin with tml-, because the SDK accepts no other key, and have "
            f"{MIN_KEY_LENGTH} characters or more"
        )


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does while a server starts."""

    def exit_now(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    with _handler(exit_now, signal.SIGTERM):
        yield


@contextmanager
def deferred_signals(server: Any) -> Iterator[list[int]]:
    """Stop the server on SIGINT and SIGTERM, and yield the list of signals that arrived.

    uvicorn would raise them again when it is done, before everything here is closed; they are
    collected instead. A signal that arrives before uvicorn listens stops it too.
    """
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        server.should_exit = True

    with _handler(stop, signal.SIGINT, signal.SIGTERM):
        yield received


@contextmanager
def _handler(handler: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)


def _reachable_name(host: str) -> str:
    """Return the host part of a URL; this machine's name if it listens on all its addresses."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"[{name}]" if ":" in name else name


def _listen(host: str, port: int) -> socket.socket:
    """Listen on an address; raises BackendError if it is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise BackendError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or stop the "
            "program that uses it"
        ) from error
