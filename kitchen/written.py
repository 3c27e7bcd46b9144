"""Values as JSON and back, equal to the last bit; no pickle."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from kitchen.ports.future import Future


async def write_down(kind: Any, value: Any) -> str:
    """JSON with NaN and infinities, which pydantic's own dump would turn into null."""
    arrived = await value if isinstance(value, Future) else value
    return json.dumps(TypeAdapter(kind).dump_python(arrived, mode="json"))


def read_back(kind: Any, text: str) -> Any:
    return TypeAdapter(kind).validate_python(json.loads(text))
