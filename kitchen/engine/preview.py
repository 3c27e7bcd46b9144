"""Checks before a run: what stages can verify cheaply, and what they can show without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from kitchen.errors import KitchenError
from kitchen.stage import Contract, Stage, contract_of, is_published
from kitchen.types import Table
from kitchen.workflow import Step, walk


def verify(step: Step, ports: Mapping[Any, Any]) -> list[KitchenError]:
    """Call `verify` of each stage that has it, with ports alone, and return the distinct errors."""
    problems: dict[str, KitchenError] = {}
    for stage in _stages(step):
        arguments = _arguments(stage, "verify", ports)
        if arguments is None:
            continue
        try:
            _method(stage, "verify")(**arguments)
        except KitchenError as error:
            problems.setdefault(str(error), error)
    return list(problems.values())


def preview(step: Step, ports: Mapping[Any, Any]) -> Iterator[Table]:
    """Call `preview` of each stage whose inputs exist, once even in loops, and yield the tables."""
    values = dict(ports)
    for stage in _stages(step):
        arguments = _arguments(stage, "preview", values)
        if arguments is None:
            continue
        result = _method(stage, "preview")(**arguments)
        contract = _contract(stage, "preview")
        for kind, value in zip(contract.returns, contract.values_of(result), strict=True):
            if isinstance(value, Table):
                yield value
            elif not is_published(stage.role(kind)):
                values[stage.role(kind)] = value


def _stages(step: Step) -> Iterator[Stage]:
    return (inner for inner in walk(step) if isinstance(inner, Stage))


def _method(stage: Stage, verb: str) -> Any:
    return getattr(stage.without_roles(), verb)


def _arguments(stage: Stage, verb: str, values: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Return the arguments of a method; None if the stage lacks it or a required value."""
    if not hasattr(stage.without_roles(), verb):
        return None
    arguments = {}
    for read in _contract(stage, verb).reads:
        kind = stage.role(read.kind)
        if kind in values:
            arguments[read.name] = values[kind]
        elif not read.optional:
            return None
    return arguments


def _contract(stage: Stage, verb: str) -> Contract:
    return contract_of(cast(Any, type(stage.without_roles())), verb)
