"""A server of the Tinker API on this machine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adapters.server.loopback import is_loopback
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.hub import HubClient
from kitchen.ports.training import TrainingBackend, require_catalog, require_checkpoints
from kitchen.runs.lock import lease

if TYPE_CHECKING:
    from adapters.server.sessions import Dish

KEY = "KITCHEN_SERVE_KEY"  # the environment variable with the key that clients must bring
SHORTEST = 12  # characters of a key
STOPPING = 30  # seconds that requests under way have when the server is told to stop


class TinkerServer:
    """Serves models of a training client by the names they are given here."""

    packages = ("tinker", "starlette", "uvicorn", "prometheus_client")

    def __init__(self, training: TrainingBackend, hub: HubClient, blobs: BlobStore) -> None:
        require_catalog(training)
        require_checkpoints(training)
        self._training, self._hub, self._blobs = training, hub, blobs

    def app(self, models: Sequence[str], aliases: Mapping[str, str], key: str | None = None) -> Any:
        """An ASGI application; raises BackendError for a model that cannot be had."""
        from adapters.server.app import app
        from adapters.server.records import Records
        from adapters.server.sessions import Menu, Sessions

        menu = Menu(dict(self._offered(models, aliases)))
        return app(Sessions(self._training, Records(self._blobs), menu), key)

    def serve(
        self,
        models: Sequence[str],
        aliases: Mapping[str, str],
        host: str,
        port: int,
        *,
        take_over: bool = False,
    ) -> Iterator[str]:
        """Where, the key that clients bring, the names of the models; and then serves until it is
        told to stop.

        Raises ConfigError for an address that is not this machine's own where no key is set.
        """
        import uvicorn

        from adapters.server.records import ROOT

        key = os.environ.get(KEY) or None
        if key is None and not is_loopback(host):
            raise ConfigError(
                f"host={host} can be reached from other machines, and there is no key: set {KEY}, "
                "which "
                "clients then bring as TINKER_API_KEY, or listen on 127.0.0.1"
            )
        if key is not None and not (key.startswith("tml-") and len(key) >= SHORTEST):
            raise ConfigError(
                f"{KEY} must begin with tml-, for the SDK takes no other key, and have {SHORTEST} "
                "characters or more"
            )
        # of two servers, each would end the other's sessions
        alone = lease(self._blobs, ROOT, take_over=take_over)
        with _ended_by_sigterm(), _listen(host, port) as listening, alone:
            made = self.app(models, aliases, key)
            yield f"http://{_reached(host)}:{listening.getsockname()[1]}"
            yield "tml-any" if key is None else f"${KEY}"
            yield from made.state.sessions.menu.dishes
            server = uvicorn.Server(
                uvicorn.Config(
                    made, log_config=None, access_log=False, timeout_graceful_shutdown=STOPPING
                )
            )
            with _held_back(server) as signals:
                server.run(sockets=[listening])
        for number in signals:
            signal.raise_signal(number)

    def _offered(
        self, models: Sequence[str], aliases: Mapping[str, str]
    ) -> Iterator[tuple[str, Dish]]:
        """Each model by its name, by its folder, which the SDK finds the tokenizer in, and by its
        aliases.
        """
        from adapters.server.sessions import Dish

        dishes = {}
        for model in dict.fromkeys([*models, *aliases.values()]):
            self._training.find(model)
            dishes[model] = Dish.of(model, self._hub)
            yield from ((name, dishes[model]) for name in (model, dishes[model].folder) if name)
        for name, model in aliases.items():
            if name in dishes and name != model:
                raise ConfigError(
                    f"--alias {name}={model}: {name} is served by its own name; leave one of them "
                    "out"
                )
            yield name, dishes[model]


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """While a server starts: what was begun is put in order, as it is for Ctrl-C."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    with _handled(end, signal.SIGTERM):
        yield


@contextmanager
def _held_back(server: Any) -> Iterator[list[int]]:
    """The signals that uvicorn was ended with: it raises them once more when it is done, before all
    here is closed.

    One that comes before it listens to them itself ends it too.
    """
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        server.should_exit = True

    with _handled(end, signal.SIGINT, signal.SIGTERM):
        yield came


@contextmanager
def _handled(handler: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in numbers}
    try:
        yield
    finally:
        for each, earlier in before.items():
            signal.signal(each, earlier)


def _reached(host: str) -> str:
    """What others call this machine, where it listens on all its addresses."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"[{name}]" if ":" in name else name


def _listen(host: str, port: int) -> socket.socket:
    """Raises BackendError where the port is taken or the address is not this machine's."""
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        raise BackendError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or stop "
            "what "
            "has it"
        ) from error
