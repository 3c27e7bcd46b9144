"""Settings of a recipe: defaults, a YAML file and the command line, merged and validated."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from numbers import Number
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kitchen.config.familiar_names import replacement
from kitchen.config.sources import Keys, Setting, SettingSource
from kitchen.errors import ConfigError, did_you_mean
from kitchen.recipe import Recipe, field_values

_MAX_FLOAT32 = 3.4028234663852886e38
_field_types = cache(partial(get_type_hints, include_extras=True))


@dataclass(frozen=True)
class ResolvedSettings:
    """A recipe with its settings, or every problem with them."""

    recipe: Recipe | None
    # dotted setting -> "default", "config.yaml:3", ...
    sources: Mapping[str, SettingSource] = field(default_factory=dict)
    problems: Sequence[ConfigError] = ()


def resolve_settings(cls: type[Recipe], settings: Sequence[Setting]) -> ResolvedSettings:
    """Build the recipe from settings over its defaults; later settings override earlier ones."""
    problems: list[ConfigError] = []
    valid: list[Setting] = []
    for setting in settings:
        setting = replace(setting, keys=_split_keys(cls, setting.keys))
        problem = (
            _unknown_setting(cls, setting)
            or _non_finite_number(setting)
            or _inside_of_a_value(setting, valid)
        )
        if problem is None:
            valid.append(setting)
        else:
            problems.append(problem)
    recipe, validation_errors = _validate(cls, valid)
    problems += validation_errors
    problems += _booleans_as_numbers(cls, valid, recipe)
    if problems:
        return ResolvedSettings(None, {}, problems)
    sources = {".".join(keys): _source_of(keys, valid) for keys in leaf_keys(cls)}
    return ResolvedSettings(recipe, sources)


def _inside_of_a_value(setting: Setting, earlier: Sequence[Setting]) -> ConfigError | None:
    """Return the problem of a setting inside of one that has a value other than a mapping."""
    for outer in earlier:
        is_inside = setting.keys[: len(outer.keys)] == outer.keys != setting.keys
        if is_inside and isinstance(outer.value, str | int | float | list | tuple):
            name = ".".join(outer.keys)
            return ConfigError(
                f"{setting.source}: {'.'.join(setting.keys)} would replace "
                f"{name}={outer.value}, set by {outer.source}: give {name} once, as a value or by "
                "name"
            )
    return None


def nested_settings(annotation: Any) -> Mapping[str, Any]:
    """Return the settings inside of a type, name to type; empty for a type without fields."""
    if get_origin(annotation) is Annotated:
        return nested_settings(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        settings: dict[str, Any] = {}
        for member in get_args(annotation):
            settings |= nested_settings(member)
        return settings
    if not isinstance(annotation, type):
        return {}
    if issubclass(annotation, BaseModel):
        return {
            name: Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            for name, info in annotation.model_fields.items()
        }
    if dataclasses.is_dataclass(annotation):
        types = _field_types(annotation)
        fields = [field for field in dataclasses.fields(annotation) if field.init]
        return {field.name: types[field.name] for field in fields}
    return {}


def leaf_keys(annotation: Any, parents: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of every setting without nested settings, in order."""
    for name, inner in nested_settings(annotation).items():
        if nested_settings(inner):
            yield from leaf_keys(inner, (*parents, name))
        else:
            yield (*parents, name)


def _split_keys(annotation: Any, keys: Keys) -> Keys:
    """Split dotted keys at the dots that separate nested settings.

    A dot in the key of a mapping is part of that key.
    """
    known = nested_settings(annotation)
    if not keys or not known:
        return keys
    key, dot, tail = keys[0].partition(".")
    remaining = (tail, *keys[1:]) if dot else keys[1:]
    return (key, *_split_keys(known.get(key), remaining))


def _unknown_setting(cls: type[Recipe], setting: Setting) -> ConfigError | None:
    annotation: Any = cls
    for depth, key in enumerate(setting.keys):
        known = nested_settings(annotation)
        # a mapping takes any key; a scalar is refused by its validation
        if not known:
            return None
        if key not in known:
            all_settings = [*map(".".join, leaf_keys(cls)), *setting.other_keys]
            nested = [name for name in all_settings if name.endswith(f".{key}")]
            candidates = known if depth else [*known, *all_settings]
            near = f"did you mean {nested[0]!r}?" if nested else did_you_mean(key, candidates)
            near = replacement(key) or near
            name = ".".join(setting.keys[: depth + 1])
            return ConfigError(f"{setting.source}: {cls.title()} has no setting {name!r}; {near}")
        annotation = known[key]
    return None


def _non_finite_number(setting: Setting) -> ConfigError | None:
    """Refuse NaN, infinity and what becomes infinity in float32, in which backends compute."""
    for value, _ in _scalars(setting.value, None):
        if isinstance(value, float) and not math.isfinite(value):
            return ConfigError(f"{setting}: input should be a finite number")
        if isinstance(value, float) and abs(value) > _MAX_FLOAT32:
            return ConfigError(f"{setting}: input should be a number of at most {_MAX_FLOAT32:g}")
    return None


def _booleans_as_numbers(
    cls: type[Recipe], settings: Sequence[Setting], recipe: Recipe | None
) -> Iterator[ConfigError]:
    """Refuse true and false where a number is expected: pydantic would read them as 1 and 0."""
    for setting in {setting.keys: setting for setting in settings}.values():
        siblings = [other for other in settings if other.keys[0] == setting.keys[0]]
        validated = recipe or _validated_or_none(cls, siblings)
        for key in setting.keys:
            validated = _item(validated, key)
        if any(
            isinstance(value, bool) and isinstance(parsed, Number) and not isinstance(parsed, bool)
            for value, parsed in _scalars(setting.value, validated)
        ):
            yield ConfigError(f"{setting}: input should be a number, not true or false")


def _validated_or_none(cls: type[Recipe], settings: Sequence[Setting]) -> Any:
    """Return the recipe with these settings; None if they are invalid, which is reported anyway."""
    try:
        return cls.model_validate(_merge(cls, settings))
    except (ValidationError, ConfigError):
        return None


def _scalars(value: Any, validated: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each scalar in nested lists and mappings, with what validation turned it into."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _scalars(inner, _item(validated, key))
    elif isinstance(value, list):
        items = validated if isinstance(validated, list | tuple) else [None] * len(value)
        for inner, item in zip(value, items, strict=False):
            yield from _scalars(inner, item)
    else:
        yield value, validated


def _item(container: Any, key: str) -> Any:
    return container.get(key) if isinstance(container, Mapping) else getattr(container, key, None)


def _validate(
    cls: type[Recipe], settings: Sequence[Setting]
) -> tuple[Recipe | None, Sequence[ConfigError]]:
    try:
        return cls.model_validate(_merge(cls, settings)), ()
    except ValidationError as error:
        return None, _explain(error.errors(), settings)
    # raised by the class of a nested setting; it hides the errors of all other settings
    except ConfigError as error:
        nested_error = ConfigError(str(error))
    problems: dict[str, ConfigError] = {}
    for name in {setting.keys[0]: None for setting in settings}:
        same_name = [setting for setting in settings if setting.keys[0] == name]
        try:
            cls.model_validate(_merge(cls, same_name))
        except ValidationError as error:
            details = [detail for detail in error.errors() if detail["loc"][:1] == (name,)]
            problems |= {str(problem): problem for problem in _explain(details, same_name)}
        except ConfigError as error:
            text = f"{same_name[-1].source}: {name}: {error}"
            problems[text] = ConfigError(text)
    if not any(str(nested_error) in text for text in problems):  # several settings cause it
        return None, (nested_error,)
    return None, tuple(problems.values())


def _merge(cls: type[Recipe], settings: Sequence[Setting]) -> dict[str, Any]:
    """Merge settings into one nested mapping to validate.

    A field's default is filled in only where a setting inside of it is given.
    """
    merged: dict[str, Any] = {}
    for setting in settings:
        name, *keys = setting.keys
        if keys and name not in merged:
            merged[name] = cls.model_fields[name].get_default(call_default_factory=True)
        merged[name] = _with_value(merged.get(name), keys, setting.value)
    return merged


def _with_value(container: Any, keys: Sequence[str], value: Any) -> Any:
    """Return a copy of the container as a mapping, with the value under the nested keys."""
    if not keys:
        return value
    items = field_values(container) or {}
    return {**items, keys[0]: _with_value(items.get(keys[0]), keys[1:], value)}


def explain_validation(error: ValidationError, cls: type[BaseModel]) -> Sequence[ConfigError]:
    """Translate the errors of pydantic in the construction of a model, each with its field."""
    problems: list[ConfigError] = []
    for detail in error.errors():
        if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
            name = str(detail["loc"][0])
            near = did_you_mean(name, cls.model_fields)
            problems.append(ConfigError(f"{cls.__name__} has no setting {name!r}; {near}"))
        else:
            problems += _explain([detail], ())
    return problems


def _explain(errors: Sequence[ErrorDetails], settings: Sequence[Setting]) -> Sequence[ConfigError]:
    """Translate errors of pydantic into ours, each with the setting and its source."""
    texts = dict.fromkeys(_explanation(error, settings) for error in errors)
    return [ConfigError(text) for text in texts]


def _explanation(error: ErrorDetails, settings: Sequence[Setting]) -> str:
    keys = tuple(map(str, error["loc"]))
    name = ".".join(keys)
    if error["type"] == "missing":
        return f"{name} has no default: give it as {name}=VALUE"
    causes = [setting for setting in settings if _share_path(setting.keys, keys)]
    choices = re.findall(r"'(.+?)'", error["msg"])
    if causes and error["type"] == "literal_error" and choices:
        return f"{causes[-1]} is unknown; {did_you_mean(str(error['input']), choices)}"
    if causes and error["type"] in ("dict_type", "dataclass_type"):
        return f"{causes[-1]}: {name} holds settings and has no value itself: {name}.NAME=VALUE"
    text = error["msg"].removeprefix("Value error, ")
    message = text[:1].lower() + text[1:]
    return f"{causes[-1] if causes else name}: {message}"


def _source_of(keys: Keys, settings: Sequence[Setting]) -> SettingSource:
    sources = (setting.source for setting in reversed(settings) if _share_path(setting.keys, keys))
    return next(sources, "default")


def _share_path(first: Keys, second: Keys) -> bool:
    """Return whether one setting is the other, or inside of it."""
    length = min(len(first), len(second))
    return first[:length] == second[:length]
