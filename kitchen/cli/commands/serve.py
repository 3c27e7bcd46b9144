"""`kitchen serve`: models of this machine behind the Tinker API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from kitchen.cli.console import console
from kitchen.config.extras import check_installed
from kitchen.config.request import AdapterChoice, Problems, ResolvedRequest, resolve_adapters
from kitchen.errors import BackendError, ConfigError
from kitchen.recipe import Recipe
from kitchen.runs.logs import configure

MODEL = "packaged:smollm2-135m-instruct"  # where none is named


def serve(
    models: Sequence[str],
    aliases: Sequence[str],
    host: str,
    port: int,
    adapter_choice: AdapterChoice,
    *,
    take_over: bool,
    debug: bool,
) -> int:
    """Until it is told to stop, by Ctrl-C or SIGTERM."""
    configure(debug)
    made = ResolvedRequest(Recipe)  # type: ignore[type-abstract] # there is none
    resolve_adapters(adapter_choice, made)
    if made.kitchen is None:
        raise Problems(made.problems)
    kitchen, out = made.kitchen, console()
    telling = _server()(kitchen.training, kitchen.hub, kitchen.blobs).serve(
        models if models or aliases else (MODEL,), _named(aliases), host, port, take_over=take_over
    )
    address, key = next(telling), next(telling)
    out.print(f"serving the Tinker API at {address}; Ctrl-C stops it", soft_wrap=True)
    out.print(f"for clients: export TINKER_BASE_URL={address} TINKER_API_KEY={key}", soft_wrap=True)
    for name in telling:
        out.print(f"model {name}", soft_wrap=True)
    return 0


def _server() -> Any:
    for entry in entry_points(group="kitchen.servers", name="tinker"):
        found = entry.load()
        check_installed("server", "tinker", found)
        return found
    raise BackendError("no server is installed: pip install 'crucible-kitchen[serve]'")


def _named(aliases: Sequence[str]) -> Mapping[str, str]:
    """`NAME=MODEL` each; raises ConfigError."""
    found: dict[str, str] = {}
    for each in aliases:
        name, equals, model = each.partition("=")
        if not (name and equals and model):
            raise ConfigError(
                f"--alias {each}: write it as NAME=MODEL, as in Qwen/Qwen3-8B={MODEL}"
            )
        if found.setdefault(name, model) != model:
            raise ConfigError(f"--alias {each}: {name} stands for {found[name]} already")
    return found
