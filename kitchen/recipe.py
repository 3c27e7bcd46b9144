"""A recipe: its fields are its settings, its workflow is its method."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from kitchen.workflow import Step


class Recipe(BaseModel, ABC):
    """Subclass it: settings with defaults as fields, then `workflow`; `outputs` are the types that
    come out of it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        use_attribute_docstrings=True,
        # as a text too: JSON, in which a run is recorded, has neither
        allow_inf_nan=False,
    )
    outputs: ClassVar[tuple[Any, ...]] = ()

    @abstractmethod
    def workflow(self) -> Step: ...

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, given: Any) -> Any:
        """A mapping changes what it names of a field's default, and leaves the rest as the recipe
        has it.
        """
        if not isinstance(given, Mapping):
            return given
        found = dict(given)
        for name, field in cls.model_fields.items():
            if (
                isinstance(given.get(name), Mapping)
                and not field.default_factory_takes_validated_data
            ):
                found[name] = over(field.get_default(call_default_factory=True), given[name])
        return found

    @classmethod
    def title(cls) -> str:
        """How people and the command line call it."""
        return cls.__module__


def over(old: Any, new: Any) -> Any:
    """What `old` holds, with what `new`, a mapping, names in its place; `new` itself where `old`
    has no such fields.
    """
    if not isinstance(new, Mapping) or isinstance(old, Mapping) or (held := held_in(old)) is None:
        return new
    # of another kind than the default, or wrong, which pydantic tells
    if not new.keys() <= held.keys():
        return new
    return {**held, **{name: over(held.get(name), value) for name, value in new.items()}}


def held_in(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or a model, or what a mapping has, by name; None of anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init
        }
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return dict(value) if isinstance(value, Mapping) else None
