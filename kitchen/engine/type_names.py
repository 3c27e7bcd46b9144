"""Names of types in plans, errors and save points, and the stages that write a type."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from kitchen.stage import Contract, Stage


def short_name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def qualified_name(kind: Any) -> str:
    """Return the name of a type with its module, which no other type has."""
    return f"{kind.__module__}.{kind.__qualname__}"


def read_names(contract: Contract) -> tuple[str, ...]:
    """Return the types that a stage reads as its signature spells them, such as Future[Sampler]."""
    return tuple(_spelled(read.kind, read.pending) for read in contract.reads)


def return_names(contract: Contract) -> tuple[str, ...]:
    """Return the types that a stage returns, or yields, as its signature spells them."""
    if contract.yields is not None:
        return (short_name(contract.yields),)
    return tuple(_spelled(kind, kind in contract.pending) for kind in contract.returns)


def _spelled(kind: Any, pending: bool) -> str:
    return f"Future[{short_name(kind)}]" if pending else short_name(kind)


def suggest_writers(kind: Any) -> str:
    """Return the end of an error: the imported stages that would write a type."""
    names = sorted({cls.__name__ for cls in _stages(Stage) if _writes(cls, kind)})
    return f" ({' or '.join(names)} would)" if names else ""


def _stages(base: type[Stage]) -> Iterator[type[Stage]]:
    for cls in base.__subclasses__():
        imported = cls.__module__ in sys.modules
        if imported and not cls.__name__.startswith("_") and hasattr(cls, "run"):
            yield cls
        yield from _stages(cls)


def _writes(cls: type[Stage], kind: Any) -> bool:
    try:
        contract = cls.contract(cls.__new__(cls))
    # an unfinished stage; the plan of a recipe that uses it reports the error
    except (TypeError, NameError):
        return False
    return kind in contract.writes or contract.yields is kind
