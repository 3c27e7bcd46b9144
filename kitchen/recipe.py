"""Recipes: pydantic models whose fields are settings and whose method is the workflow."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from kitchen.workflow import Step


class Recipe(BaseModel, ABC):
    """Base class of recipes: fields with defaults are the settings, `workflow` returns the steps.

    `outputs` are the types that the workflow writes for a recipe that contains this one.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        use_attribute_docstrings=True,
        # JSON, in which a run is recorded, has no NaN and no infinity
        allow_inf_nan=False,
    )
    outputs: ClassVar[tuple[Any, ...]] = ()
    # metrics that the console always shows, and whose curves it draws at the end of a run
    headline: ClassVar[tuple[str, ...]] = (
        "reward",
        "loss",
        "held_out_reward",
        "held_out_loss",
        "held_out_accuracy",
    )

    @abstractmethod
    def workflow(self) -> Step: ...

    @model_validator(mode="before")
    @classmethod
    def _merge_with_defaults(cls, settings: Any) -> Any:
        """Let a mapping change some fields of a default and leave its others unchanged."""
        if not isinstance(settings, Mapping):
            return settings
        merged = dict(settings)
        for name, field in cls.model_fields.items():
            value = settings.get(name)
            if isinstance(value, Mapping) and not field.default_factory_takes_validated_data:
                merged[name] = merge_settings(field.get_default(call_default_factory=True), value)
        return merged

    @classmethod
    def title(cls) -> str:
        """The name of the recipe on the command line and in errors."""
        return cls.__module__


def merge_settings(old: Any, new: Any) -> Any:
    """Return the fields of `old` updated from the mapping `new`; `new` where they do not match."""
    if not isinstance(new, Mapping) or isinstance(old, Mapping):
        return new
    values = field_values(old)
    # another type than the default, or a wrong name, which pydantic reports
    if values is None or not new.keys() <= values.keys():
        return new
    return {**values, **{name: merge_settings(values[name], value) for name, value in new.items()}}


def field_values(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass or model, or the items of a mapping; None for others."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: getattr(value, name) for name in names}
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return dict(value) if isinstance(value, Mapping) else None
