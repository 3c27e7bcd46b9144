"""What can be known before a run: what stages can verify, and what they can show without any
weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from kitchen.errors import KitchenError
from kitchen.stage import Contract, Stage, published, signature
from kitchen.types import Table
from kitchen.workflow import Step, walk


def verify(step: Step, ports: Mapping[Any, Any]) -> list[KitchenError]:
    """What the stages find that they could not do; each has a method `verify` that takes ports
    alone, and is cheap.
    """
    problems: dict[str, KitchenError] = {}
    for stage in walk(step):
        if (
            isinstance(stage, Stage)
            and (arguments := _arguments(stage, "verify", ports)) is not None
        ):
            try:
                _method(stage, "verify")(**arguments)
            except KitchenError as error:
                problems.setdefault(str(error), error)
    return list(problems.values())


def preview(step: Step, ports: Mapping[Any, Any]) -> Iterator[Table]:
    """Call `preview` of each stage that finds what it reads, once, in loops too; show what they
    tell.
    """
    counter = dict(ports)
    for stage in (each for each in walk(step) if isinstance(each, Stage)):
        if (arguments := _arguments(stage, "preview", counter)) is None:
            continue
        result, contract = _method(stage, "preview")(**arguments), _signature(stage, "preview")
        for kind, value in zip(contract.returns, contract.parts(result), strict=True):
            kind = stage.role(kind)
            if isinstance(value, Table):
                yield value
            elif not published(kind):
                counter[kind] = value


def _method(stage: Stage, verb: str) -> Any:
    return getattr(stage.plain(), verb)


def _arguments(stage: Stage, verb: str, counter: Mapping[Any, Any]) -> dict[str, Any] | None:
    """None if the stage has no such method, or something that it reads is not there."""
    if not hasattr(stage.plain(), verb):
        return None
    reads = {
        read.name: (stage.role(read.kind), read.optional) for read in _signature(stage, verb).reads
    }
    if any(kind not in counter and not optional for kind, optional in reads.values()):
        return None
    return {name: counter[kind] for name, (kind, _) in reads.items() if kind in counter}


def _signature(stage: Stage, verb: str) -> Contract:
    return signature(cast(Any, type(stage.plain())), verb)
