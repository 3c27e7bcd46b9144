"""Trust in records: the code that the record of a run may name without the user's consent.

A run folder may come from somebody else. Its record names the recipe and the adapters, and loading
either runs code. Installed adapters and recipes of the package `recipes` are trusted; anything else
is loaded only with `--trust` (in Python `trust=True`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from kitchen.config.order import Order
from kitchen.errors import ConfigError

_CONSENT = "Loading it runs its code. If you trust this run, add --trust (in Python trust=True)"


class NotTrusted(ConfigError):
    """The record of a run names code that is not loaded without the user's consent."""


def check_trusted_adapters(run: str, adapters: Mapping[str, str], *, trust: bool) -> None:
    """Raise NotTrusted if a record names an adapter, by port, that is not an installed one."""
    untrusted = _untrusted_adapters(adapters)
    if untrusted and not trust:
        names = " and ".join(f"the {port} adapter {name}" for port, name in untrusted.items())
        raise NotTrusted(f"the record of run {run!r} names {names}, by its class. {_CONSENT}")


def check_trusted_recipe(run: str, recipe: str, *, trust: bool) -> None:
    """Raise NotTrusted if a record names a recipe, as `module:Class`, outside of `recipes`.

    A module that this process has imported already runs no new code.
    """
    imported = recipe.partition(":")[0] in sys.modules
    if not trust and not imported and not _is_trusted_recipe(recipe):
        raise NotTrusted(
            f"the record of run {run!r} names the recipe {recipe}, which is not in the package "
            f"'recipes'. {_CONSENT}"
        )


def needs_trust(order: Order, *, same_process: bool) -> bool:
    """Return whether a run is resumed only with `--trust`; an object is given again anyway.

    `same_process`: it would be resumed by this process, which has imported the recipe.
    """
    adapters = {
        port: name
        for port, name in order.adapters.items()
        if port != "blobs" and port not in order.objects
    }
    is_trusted_recipe = same_process or _is_trusted_recipe(order.recipe)
    return bool(_untrusted_adapters(adapters)) or not is_trusted_recipe


def _untrusted_adapters(adapters: Mapping[str, str]) -> Mapping[str, str]:
    return {port: name for port, name in adapters.items() if ":" in name}


def _is_trusted_recipe(recipe: str) -> bool:
    return recipe.startswith("recipes.")
