"""A server of the Tinker API on this machine."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from adapters.server.limits import Limits
from kitchen.backend.serving import (
    MIN_KEY_LENGTH,
    address_of,
    exit_on_sigterm,
    is_loopback,
    listen,
    run_server,
)
from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.training import TrainingBackend, require_catalog, require_checkpoints
from kitchen.runs.lock import InUse, lease

if TYPE_CHECKING:
    from adapters.server.sessions import ServedModel

KEY = "KITCHEN_SERVE_KEY"  # the environment variable with the key that clients must send
_ORIGIN = re.compile(r"https?://[^/?#@\s]+")
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
        cors: Sequence[str] = (),
        *,
        replica: bool = False,
    ) -> Any:
        """Return an ASGI application; raises BackendError for a model that cannot be fetched.

        `cors` are origins of web pages that may use the OpenAI API. A replica only samples, from
        the weights that another server on the same store saves.
        """
        from adapters.server.app import create_app
        from adapters.server.records import Records, ReplicaRecords
        from adapters.server.sessions import ServedModels, Sessions

        served = ServedModels(dict(self._fetch_models(models, aliases)))
        records = ReplicaRecords(self._blobs) if replica else Records(self._blobs)
        sessions = Sessions(self._training, records, served, limits)
        return create_app(sessions, key, cors)

    def serve(
        self,
        models: Sequence[str],
        aliases: Mapping[str, str],
        host: str,
        port: int,
        *,
        take_over: bool = False,
        cors: Sequence[str] = (),
        replica: bool = False,
    ) -> Iterator[str]:
        """Yield the address, the key that clients send, and the models' names; then serve.

        Serves until a signal stops it. Raises ConfigError for an address that other machines can
        reach if no key is set.
        """
        key = os.environ.get(KEY) or None
        _check_key(key, host)
        _check_origins(cors, key)
        # two servers that write to one store would each end the other's sessions
        exclusive = nullcontext() if replica else _only_server(self._blobs, take_over)
        with exit_on_sigterm(), listen(host, port) as listening, exclusive:
            app = self.app(models, aliases, key, cors=cors, replica=replica)
            yield address_of(listening, host)
            yield "tml-any" if key is None else f"${KEY}"
            yield from app.state.sessions.models.by_name
            futures = app.state.sessions.futures
            signals = run_server(app, listening, SHUTDOWN_GRACE, futures.stop_waiting)
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


@contextmanager
def _only_server(blobs: BlobStore, take_over: bool) -> Iterator[None]:
    """Hold the store of runs; raises InUse if another server may be writing to it."""
    from adapters.server.records import ROOT

    with ExitStack() as stack:
        try:
            stack.enter_context(lease(blobs, ROOT, take_over=take_over))
        except InUse as error:
            folder = blobs.locate(ROOT)[: -len(f"/{ROOT}")]
            raise InUse(
                f"another `kitchen serve` ({error.holder}) uses the folder {folder}, and only one "
                "server can write there: stop that one, give this one another folder (--runs), or "
                "let it only sample (--replica); if that host is gone, replace it (--take-over)",
                error.holder,
            ) from error
        yield


def _check_origins(origins: Sequence[str], key: str | None) -> None:
    for origin in origins:
        if origin == "*" and key is None:
            raise ConfigError(
                f"--cors '*' would let every web page use this server: set {KEY}, or name the "
                "origins of the pages"
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"--cors {origin}: an origin has a scheme and a host and no path, as in "
                "http://localhost:3000"
            )


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
