"""`kitchen serve`: models on this machine behind the Tinker API and the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from kitchen.cli.console import console
from kitchen.cli.streams import drop_unread_output
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.extras import check_installed
from kitchen.config.request import Problems, ResolvedRequest, resolve_adapters
from kitchen.errors import BackendError, ConfigError
from kitchen.recipe import Recipe

DEFAULT_MODEL = "packaged:smollm2-135m-instruct"


@dataclass(frozen=True)
class ServeOptions:
    """The options of `kitchen serve`."""

    models: Sequence[str]
    aliases: Sequence[str]  # "NAME=MODEL"
    host: str
    port: int
    take_over: bool
    cors: Sequence[str] = ()  # origins of web pages
    replica: bool = False


def serve_models(options: ServeOptions, adapters: AdapterChoice) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    drop_unread_output()
    request = ResolvedRequest(Recipe)  # type: ignore[type-abstract] # no recipe is run
    resolve_adapters(adapters, request)
    kitchen = request.kitchen
    if kitchen is None:
        raise Problems(request.problems)
    models = options.models
    if not models and not options.aliases:
        models = (DEFAULT_MODEL,)
    server = server_class("tinker")(kitchen.training, kitchen.hub, kitchen.blobs)
    # yields the address, the key and the names of the models, then serves
    lines = server.serve(
        models,
        _parse_aliases(options.aliases),
        options.host,
        options.port,
        take_over=options.take_over,
        cors=options.cors,
        replica=options.replica,
    )
    address = next(lines)
    key = next(lines)
    out = console()
    role = ", as a replica that only samples" if options.replica else ""
    out.print(f"serving the Tinker API at {address}{role}; Ctrl-C stops it", soft_wrap=True)
    out.print(f"for clients: export TINKER_BASE_URL={address} TINKER_API_KEY={key}", soft_wrap=True)
    out.print(
        f"for clients of OpenAI: export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY={key}",
        soft_wrap=True,
    )
    for name in lines:
        out.print(f"model {name}", soft_wrap=True)
    return 0


def server_class(name: str) -> Any:
    """Return a server adapter; raises BackendError if it or a package of it is not installed."""
    for entry in entry_points(group="kitchen.servers", name=name):
        server = entry.load()
        check_installed("server", name, server)
        return server
    raise BackendError("no server is installed: pip install 'crucible-kitchen[serve]'")


def _parse_aliases(aliases: Sequence[str]) -> Mapping[str, str]:
    """Return name to model, from texts "NAME=MODEL"; raises ConfigError."""
    models: dict[str, str] = {}
    for alias in aliases:
        name, equals, model = alias.partition("=")
        if not (name and equals and model):
            raise ConfigError(
                f"--alias {alias}: write it as NAME=MODEL, as in Qwen/Qwen3-8B={DEFAULT_MODEL}"
            )
        if models.setdefault(name, model) != model:
            raise ConfigError(f"--alias {alias}: {name} is already an alias of {models[name]}")
    return models
