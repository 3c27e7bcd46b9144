"""Values as JSON and back, equal to the last bit; no pickle."""

from __future__ import annotations

import json
from typing import Any

from kitchen.hints import in_json
from kitchen.ports.future import is_future


async def write_down(kind: Any, value: Any) -> str:
    """JSON with NaN and infinities, which pydantic's own dump would turn into null."""
    arrived = await value if is_future(value) else value
    return json.dumps(in_json(kind).dump_python(arrived, mode="json"))


def read_back(kind: Any, text: str) -> Any:
    return in_json(kind).validate_python(json.loads(text))
