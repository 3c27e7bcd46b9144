"""Trust in records: the code that the record of a run may name without the user's consent.

A run folder may come from somebody else. Its record names the recipe, the adapters and functions
such as a reward, and loading any of them runs code. Installed adapters, and recipes and functions
of the package `recipes`, are trusted; anything else is loaded only with `--trust` (in Python
`trust=True`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

from kitchen.config.order import Order, nested_value
from kitchen.errors import ConfigError

_CONSENT = "Loading it runs its code. If you trust this run, add --trust (in Python trust=True)"
# settings of recipes that may name functions, as MODULE:function
_FUNCTIONS = (
    "reward",
    "advantages",
    "schedule",
    "vote",
    "evaluation.metric",
    "evaluation.metrics",
)
_FUNCTIONS_BY_NAME = ("rewards",)  # mappings whose values are such settings
_FIELDS, _TESTS = "gate.data.fields", "gate.tests.path"  # of the pipeline of claims
# an address on this machine; programs read other forms, such as user@host, in different ways
_THIS_MACHINE = re.compile(
    r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[\w./-]*)?", re.ASCII
)


class NotTrusted(ConfigError):
    """The record of a run names code that is not loaded without the user's consent."""


def check_trusted_adapters(run: str, adapters: Mapping[str, str], *, trust: bool) -> None:
    """Raise NotTrusted if a record names an adapter, by port, that is not an installed one."""
    untrusted = _untrusted_adapters(adapters)
    if untrusted and not trust:
        names = " and ".join(f"the {port} adapter {name}" for port, name in untrusted.items())
        raise NotTrusted(f"the record of run {run!r} names {names}, by its class. {_CONSENT}")


def check_trusted_settings(
    run: str, settings: Mapping[str, Mapping[str, Any]], *, trust: bool
) -> None:
    """Raise NotTrusted if a record's settings, by port, decide where secrets are sent.

    These are addresses on other machines, and names of environment variables.
    """
    if trust:
        return
    for port, values in settings.items():
        for name, value in values.items():
            if _decides_where_secrets_go(value):
                raise NotTrusted(
                    f"the record of run {run!r} has {port}.{name}={value}, which decides where an "
                    "API key is sent, or which one. If you trust this run, add --trust (in Python "
                    "trust=True)"
                )


def check_trusted_order(
    run: str, order: Order, replaced: Collection[str] = (), *, new_recipe: bool = False, trust: bool
) -> None:
    """Raise NotTrusted if a record names code, or settings of adapters, that need consent.

    `replaced` are the ports whose adapter is given again, and `new_recipe` says that the recipe is.
    """
    if not new_recipe:
        check_trusted_recipe(run, order.recipe, trust=trust)
    if functions := [] if trust else _untrusted_functions(order):
        names = " and ".join(functions)
        raise NotTrusted(f"the record of run {run!r} names code to run, {names}. {_CONSENT}")
    check_trusted_adapters(run, order.recorded_adapters(replaced), trust=trust)
    check_trusted_settings(run, order.recorded_settings(replaced), trust=trust)


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
    is_trusted_recipe = same_process or _is_trusted_recipe(order.recipe)
    settings = order.recorded_settings(order.objects).values()
    values = chain.from_iterable(port.values() for port in settings)
    sends_secrets = any(map(_decides_where_secrets_go, values))
    untrusted = _untrusted_adapters(order.recorded_adapters(order.objects))
    functions = _untrusted_functions(order)
    return bool(untrusted or functions) or not is_trusted_recipe or sends_secrets


def _untrusted_functions(order: Order) -> list[str]:
    """Return the functions outside of the package `recipes` that settings name, as SETTING=NAME.

    That a module has been imported is no reason for trust: `os:system` is a function, too.
    """
    functions = []
    values = {setting: nested_value(order.settings, setting) for setting in _FUNCTIONS}
    for setting in _FUNCTIONS_BY_NAME:
        by_name = nested_value(order.settings, setting)
        for name, value in by_name.items() if isinstance(by_name, Mapping) else ():
            values[f"{setting}.{name}"] = value
    for setting, value in values.items():
        names = [value] if isinstance(value, str) else value  # or a list, or a mapping by name
        for name in names if isinstance(names, list | tuple | Mapping) else ():
            if _is_untrusted_function(name):
                functions.append(f"{setting}={name}")
    return [*functions, *_untrusted_checks(order)]


def _untrusted_checks(order: Order) -> Iterator[str]:
    """Yield the functions and the tests that a gate would run, as SETTING=NAME."""
    if nested_value(order.settings, "gate.skip"):
        return
    fields = nested_value(order.settings, _FIELDS)
    for field in fields if isinstance(fields, list | tuple) else ():
        check = field.get("check") if isinstance(field, Mapping) else None
        if _is_untrusted_function(check):
            yield f"{_FIELDS}.check={check}"
    if tests := nested_value(order.settings, _TESTS):
        yield f"{_TESTS}={tests}"


def _is_untrusted_function(name: Any) -> bool:
    return isinstance(name, str) and ":" in name and not _is_trusted_recipe(name)


def _untrusted_adapters(adapters: Mapping[str, str]) -> Mapping[str, str]:
    return {port: name for port, name in adapters.items() if ":" in name}


def _decides_where_secrets_go(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_decides_where_secrets_go, value))
    if not isinstance(value, str):
        return False
    is_elsewhere = "://" in value and not _THIS_MACHINE.fullmatch(value)
    return is_elsewhere or value in os.environ


def _is_trusted_recipe(recipe: str) -> bool:
    return recipe.startswith("recipes.")
