"""Values as JSON and back, equal to the last bit; no pickle."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from kitchen.engine.type_names import name
from kitchen.ports.future import is_future
from kitchen.types import Facts


async def write_down(kind: Any, value: Any) -> str:
    """JSON with NaN and infinities, which pydantic's own dump would turn into null."""
    arrived = await value if is_future(value) else value
    return json.dumps(in_json(kind).dump_python(arrived, mode="json"))


def read_back(kind: Any, text: str) -> Any:
    return in_json(kind).validate_python(json.loads(text))


@cache
def in_json(kind: Any) -> TypeAdapter[Any]:
    """The way of a type into JSON and back, which pydantic takes milliseconds to find."""
    return TypeAdapter(kind)


def unkeepable(kind: Any) -> str:
    """Why a value of this type, or none, cannot be written down and come back equal, or must not;
    empty if it can.
    """
    if kind is None:
        return "leaves no value that could be"
    if isinstance(kind, type) and issubclass(kind, Facts):
        return "publishes Facts, which each process must find again: have a stage before it publish them"
    try:
        in_json(kind)
    except (PydanticSchemaGenerationError, TypeError) as error:
        return f"pydantic cannot write {name(kind)} down: {str(error).splitlines()[0]}"
    return ""
