"""A recipe: its fields are its settings, its workflow is its method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from kitchen.workflow import Step


class Recipe(BaseModel, ABC):
    """Subclass it: settings with defaults as fields, then `workflow`; `leaves` are the types that come out of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True)
    leaves: ClassVar[tuple[Any, ...]] = ()

    @abstractmethod
    def workflow(self) -> Step: ...

    @classmethod
    def title(cls) -> str:
        """How people and the command line call it."""
        return cls.__module__
