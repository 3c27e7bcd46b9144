"""Types in words: their names, who could leave one, and whether one can be written down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from kitchen.stage import Stage


def name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def key(kind: Any) -> str:
    """A name that no other type has."""
    return f"{kind.__module__}.{kind.__qualname__}"


def who_leaves(kind: Any) -> str:
    """The end of a problem: which stages, of those that are imported, leave a type."""
    found = sorted({cls.__name__ for cls in _stages(Stage) if _leaves(cls, kind)})
    return f" ({' or '.join(found)} would)" if found else ""


def _stages(base: type[Stage]) -> Iterator[type[Stage]]:
    for cls in base.__subclasses__():
        if (
            cls.__module__ in sys.modules
            and not cls.__name__.startswith("_")
            and hasattr(cls, "run")
        ):
            yield cls
        yield from _stages(cls)


def _leaves(cls: type[Stage], kind: Any) -> bool:
    try:
        contract = cls.contract(cls.__new__(cls))
    # a stage that is not finished: the plan of the recipe that uses it says so
    except (TypeError, NameError):
        return False
    return kind in contract.writes or contract.yields is kind
