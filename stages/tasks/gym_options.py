"""Settings of reasoning-gym's tasks, checked by the configuration classes of the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from kitchen.errors import ConfigError, did_you_mean

SETTING = "reasoning_gym"
GymOptions = Mapping[str, Any]  # the options of one task, by name


def _by_task(value: Any) -> Any:
    """Return options by task: {"chain_sum.min_digits": 2} as {"chain_sum": {"min_digits": 2}}."""
    if not isinstance(value, Mapping):
        return value
    by_task: dict[str, dict[str, Any]] = {}
    for key, option in value.items():
        task, dot, name = str(key).partition(".")
        if not dot and not isinstance(option, Mapping):
            raise ConfigError(
                f"{SETTING}.{task}={option!r} must name a task and one of its options, "
                f"{SETTING}.TASK.OPTION=VALUE, as in {SETTING}.chain_sum.size=100"
            )
        by_task.setdefault(task, {}).update({name: option} if dot else option)
    return by_task


# options by task: reasoning_gym.TASK.OPTION=VALUE
GymSetting = Annotated[Mapping[str, Mapping[str, Any]], BeforeValidator(_by_task)]


def check_options(task: str, options: GymOptions) -> None:
    """Raise ConfigError for options that the configuration of a task does not have or take."""
    if not options:
        return
    from reasoning_gym.factory import DATASETS

    config_class = DATASETS[task][1]
    fields = {field.name for field in dataclasses.fields(config_class)}
    for name in options:
        if name not in fields:
            raise ConfigError(
                f"{SETTING}.{task}: the task has no option {name!r}; {did_you_mean(name, fields)}"
            )
    values = {"seed": 0, **library_options(task, options)}
    config = config_class(**values)
    try:
        config.validate()
    except (AssertionError, ValueError) as error:
        reason = str(error) or "the library refuses this combination of options"
        raise ConfigError(f"{SETTING}.{task}: {reason}") from error


def library_options(task: str, options: GymOptions) -> dict[str, Any]:
    """Return options in the types of the library; raises ConfigError for a value of another type.

    Values come from the command line or YAML, where dates are texts, and tuples are lists.
    """
    from reasoning_gym.factory import DATASETS

    types = {field.name: field.type for field in dataclasses.fields(DATASETS[task][1])}
    return {name: _converted(task, name, types[name], value) for name, value in options.items()}


def _converted(task: str, name: str, type_: Any, value: Any) -> Any:
    setting = f"{SETTING}.{task}.{name}"
    if isinstance(value, bool) and type_ in (int, float):
        raise ConfigError(f"{setting}={value} must be a number")
    try:
        return TypeAdapter(type_).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{setting}={value!r}: {error.errors()[0]['msg']}") from error
    except Exception as error:  # pydantic knows no such type
        raise ConfigError(f"{setting} cannot be set here: it is a {type_}") from error
