"""Settings of a recipe: defaults, then a YAML file, then the command line; each knows where it came
from.
"""

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

from kitchen.config.sources import Keys, Setting
from kitchen.errors import ConfigError, did_you_mean
from kitchen.recipe import Recipe, held_in

_hints = cache(partial(get_type_hints, include_extras=True))


@dataclass(frozen=True)
class ResolvedSettings:
    """A recipe with its settings, or every problem with them."""

    recipe: Recipe | None
    # dotted setting -> "default", "config.yaml:3", ...
    sources: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[ConfigError] = ()


def resolve_settings(cls: type[Recipe], given: Sequence[Setting]) -> ResolvedSettings:
    """The recipe with these settings over its defaults, later ones over earlier ones."""
    given = [replace(setting, keys=_keys(cls, setting.keys)) for setting in given]
    problems = [
        problem for setting in given if (problem := _unknown(cls, setting) or _not_finite(setting))
    ]
    known = [
        setting for setting in given if not _unknown(cls, setting) and not _not_finite(setting)
    ]
    recipe, wrong = _validated(cls, known)
    wrong = [*wrong, *_flags(cls, known, recipe)]
    if problems or wrong:
        return ResolvedSettings(None, {}, [*problems, *wrong])
    sources = {".".join(leaf): _source(leaf, known) for leaf in leaf_keys(cls)}
    return ResolvedSettings(recipe, sources)


def nested_settings(annotation: Any) -> Mapping[str, Any]:
    """Settings inside of a setting of this type, name to type; empty where it has none."""
    if get_origin(annotation) is Annotated:
        return nested_settings(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {
            name: kind
            for choice in get_args(annotation)
            for name, kind in nested_settings(choice).items()
        }
    if not isinstance(annotation, type):
        return {}
    if issubclass(annotation, BaseModel):
        return {
            name: Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
            for name, info in annotation.model_fields.items()
        }
    if dataclasses.is_dataclass(annotation):
        hints = _hints(annotation)
        return {each.name: hints[each.name] for each in dataclasses.fields(annotation) if each.init}
    return {}


def leaf_keys(annotation: Any, above: Keys = ()) -> Iterator[Keys]:
    """Every setting that has none inside, in order."""
    for name, kind in nested_settings(annotation).items():
        if nested_settings(kind):
            yield from leaf_keys(kind, (*above, name))
        else:
            yield (*above, name)


def _keys(kind: Any, written: Keys) -> Keys:
    """Dots set settings apart that are inside of each other; those in the keys of a mapping are
    part of a key.
    """
    known = nested_settings(kind)
    if not written or not known:
        return written
    key, dot, rest = written[0].partition(".")
    return (key, *_keys(known.get(key), (rest, *written[1:]) if dot else written[1:]))


def _unknown(cls: type[Recipe], setting: Setting) -> ConfigError | None:
    kind: Any = cls
    for at, key in enumerate(setting.keys):
        known = nested_settings(kind)
        # a mapping may have any keys; what cannot have any is refused when it is validated
        if not known:
            return None
        if key not in known:
            every = [".".join(leaf) for leaf in leaf_keys(cls)]
            same = [each for each in every if each.endswith(f".{key}")]
            nearest = (
                f"did you mean {same[0]!r}?"
                if same
                else did_you_mean(key, known if at else [*known, *every])
            )
            name = ".".join(setting.keys[: at + 1])
            return ConfigError(
                f"{setting.source}: {cls.title()} has no setting {name!r}; {nearest}"
            )
        kind = known[key]
    return None


def _not_finite(setting: Setting) -> ConfigError | None:
    """JSON, in which a run is recorded, has neither infinity nor NaN."""
    wrong = any(
        isinstance(each, float) and not math.isfinite(each)
        for each, _ in _pairs(setting.value, None)
    )
    return ConfigError(f"{setting}: input should be a finite number") if wrong else None


def _flags(
    cls: type[Recipe], given: Sequence[Setting], recipe: Recipe | None
) -> Iterator[ConfigError]:
    """Settings that are true or false where a number is wanted: pydantic would read them as 1 and
    0.
    """
    for setting in {setting.keys: setting for setting in given}.values():
        made = recipe or _alone(cls, [each for each in given if each.keys[0] == setting.keys[0]])
        for key in setting.keys:
            made = _inside(made, key)
        if any(
            isinstance(each, bool) and isinstance(one, Number) and not isinstance(one, bool)
            for each, one in _pairs(setting.value, made)
        ):
            yield ConfigError(f"{setting}: input should be a number, not true or false")


def _alone(cls: type[Recipe], given: Sequence[Setting]) -> Any:
    """The recipe with these settings; None if they are told to be wrong anyway."""
    try:
        return cls.model_validate(_tree(cls, given))
    except (ValidationError, ConfigError):
        return None


def _pairs(value: Any, made: Any) -> Iterator[tuple[Any, Any]]:
    """What is neither list nor mapping in a value, beside what was made of it."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _pairs(each, _inside(made, key))
    elif isinstance(value, list):
        for each, one in zip(
            value, made if isinstance(made, list | tuple) else [None] * len(value), strict=False
        ):
            yield from _pairs(each, one)
    else:
        yield value, made


def _inside(made: Any, key: str) -> Any:
    return made.get(key) if isinstance(made, Mapping) else getattr(made, key, None)


def _validated(
    cls: type[Recipe], given: Sequence[Setting]
) -> tuple[Recipe | None, Sequence[ConfigError]]:
    try:
        return cls.model_validate(_tree(cls, given)), ()
    except ValidationError as error:
        return None, _explained(error.errors(), given)
    # of a nested setting; it hides what pydantic would have said of the others
    except ConfigError as error:
        first = ConfigError(str(error))
    found: dict[str, ConfigError] = {}
    for name in {setting.keys[0]: None for setting in given}:
        own = [setting for setting in given if setting.keys[0] == name]
        try:
            cls.model_validate(_tree(cls, own))
        except ValidationError as error:
            found |= {
                str(e): e
                for e in _explained([e for e in error.errors() if e["loc"][:1] == (name,)], own)
            }
        except ConfigError as error:
            text = f"{own[-1].source}: {name}: {error}"
            found[text] = ConfigError(text)
    return None, tuple(found.values()) or (first,)


def _tree(cls: type[Recipe], given: Sequence[Setting]) -> dict[str, Any]:
    """What to validate: the defaults are filled in only where a setting inside of one is given."""
    tree: dict[str, Any] = {}
    for setting in given:
        first, *rest = setting.keys
        if rest and first not in tree:
            tree[first] = cls.model_fields[first].get_default(call_default_factory=True)
        tree[first] = _put(tree.get(first), rest, setting.value)
    return tree


def _put(old: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    held = held_in(old) or {}
    return {**held, keys[0]: _put(held.get(keys[0]), keys[1:], value)}


def _explained(errors: Sequence[ErrorDetails], given: Sequence[Setting]) -> Sequence[ConfigError]:
    texts = []
    for error in errors:
        place = tuple(map(str, error["loc"]))
        mine = [setting for setting in given if _along(setting.keys, place)]
        if error["type"] == "missing":
            texts.append(f"{'.'.join(place)} has no default: give it as {'.'.join(place)}=VALUE")
        elif (
            mine
            and error["type"] == "literal_error"
            and (known := re.findall(r"'(.+?)'", error["msg"]))
        ):
            texts.append(f"{mine[-1]} is unknown; {did_you_mean(str(error['input']), known)}")
        elif mine and error["type"] in ("dict_type", "dataclass_type"):
            texts.append(
                f"{mine[-1]}: what it has are settings inside of it: {'.'.join(place)}.NAME=VALUE"
            )
        else:
            texts.append(
                f"{mine[-1] if mine else '.'.join(place)}: "
                f"{error['msg'][:1].lower()}{error['msg'][1:]}"
            )
    return [ConfigError(text) for text in dict.fromkeys(texts)]


def _source(leaf: Keys, given: Sequence[Setting]) -> str:
    return next(
        (setting.source for setting in reversed(given) if _along(setting.keys, leaf)), "default"
    )


def _along(one: Keys, other: Keys) -> bool:
    """Whether one is inside of the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
