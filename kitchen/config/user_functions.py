"""Functions of users, which settings name as MODULE:function."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from kitchen.config.discovery import recipe_code_error
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.errors import (
    ConfigError,
    RunFailed,
    describe_error,
    did_you_mean,
    exits_as_failures,
)

# the type of a setting that names a function; what it names is checked when the workflow is built
FunctionName = Annotated[str, WithJsonSchema({"type": "string", "pattern": ":"})]


def import_function(setting: str, name: str) -> Callable[..., Any]:
    """Import the function MODULE:function, the value of a setting.

    Modules are found in the current folder, too. Raises ConfigError, which names the setting, for
    an unknown module or function, and for a module that cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        module_name = module_name.removesuffix(".py").replace("/", ".").lstrip(".")
        raise ConfigError(
            f"{setting}={name} names a file; name its module: {setting}={module_name}:{attribute}"
        )
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(
            f"{setting}={name}: {module_name!r} is not a module; write MODULE:function"
        )
    add_cwd_to_path()
    problem = f"{setting}={name}: {module_name} cannot be imported"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{setting}={name}: there is no module {module_name!r} in this folder, nor "
                "installed; the form is MODULE:function"
            ) from error
        raise recipe_code_error(problem, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise recipe_code_error(problem, error) from error
    call = vars(module).get(attribute)
    if not callable(call) or inspect.isclass(call):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"{setting}={name}: {module_name} has no function {attribute!r}; "
            f"{did_you_mean(attribute, functions)}"
        )
    return call  # type: ignore[no-any-return]


def is_function_name(value: str | None) -> bool:
    """Return whether the value of a setting names a function as MODULE:function."""
    return value is not None and ":" in value


def check_positional(setting: str, name: str, function: Callable[..., Any], usage: str) -> None:
    """Raise ConfigError unless a function can be called as `usage` says, as in `f(step, steps)`.

    Its result is not awaited, so a coroutine function is an error, too.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{setting}={name} is a coroutine function: define it without `async`")
    signature = inspect.signature(function)
    arguments = usage.count(",") + 1
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        raise ConfigError(
            f"{setting}={name} is called as {usage}; its signature is {signature}"
        ) from error


def call_in_run(setting: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a user; raises RunFailed, with the user's line, for any error in it."""
    try:
        with exits_as_failures():
            return function(*arguments)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        raise RunFailed(f"{setting}={name}: {describe_error(error)}") from error
