"""Values as JSON and back, equal to the last bit; no pickle."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from kitchen.engine.type_names import short_name
from kitchen.errors import CorruptCheckpoint
from kitchen.ports.blobs import BlobStore, unseal
from kitchen.ports.future import is_future
from kitchen.types import Facts


async def encode(kind: Any, value: Any) -> str:
    """Return a value as JSON; NaN and infinities stay, which pydantic's own dump turns to null."""
    resolved = await value if is_future(value) else value
    return json.dumps(json_adapter(kind).dump_python(resolved, mode="json"))


def decode(kind: Any, text: str) -> Any:
    return json_adapter(kind).validate_python(json.loads(text))


@cache
def json_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the pydantic adapter of a type, which takes milliseconds to build."""
    return TypeAdapter(kind)


def why_not_serializable(kind: Any) -> str:
    """Return why a type (None: no value) cannot or must not be stored as JSON; empty if it can."""
    if kind is None:
        return "returns no value to store"
    if isinstance(kind, type) and issubclass(kind, Facts):
        return "publishes Facts, which every process must compute: publish them in another stage"
    try:
        json_adapter(kind)
    except (PydanticSchemaGenerationError, TypeError) as error:
        return f"pydantic cannot serialize {short_name(kind)}: {str(error).splitlines()[0]}"
    return ""


def read_sealed(blobs: BlobStore, name: str, content: str, remedy: str) -> str:
    """Read a sealed text; raises CorruptCheckpoint if it is missing or damaged."""
    try:
        return unseal(blobs.read(name) or b"")
    except ValueError as error:
        path = blobs.locate(name)
        raise CorruptCheckpoint(f"{path}, {content}, is damaged ({error}); {remedy}") from error
