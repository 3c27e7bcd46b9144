"""Chunks of a streamed answer: the JSON of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from adapters.openai.errors import MalformedAnswer
from kitchen.safe_text import read_json

_DATA = b"data:"
_LAST = b"[DONE]"


async def json_chunks(resource: Any, arguments: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    """Send a request by the SDK, and yield its chunks; raises MalformedAnswer if one is no JSON."""
    async with resource.with_streaming_response.create(**arguments) as response:
        async for line in _lines(response):
            data = line.removeprefix(_DATA).strip()
            if data == _LAST:
                return
            if line.startswith(_DATA) and data:
                yield _read(data)


async def _lines(response: Any) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a response, which end with LF only: JSON may contain other line breaks."""
    rest = b""
    async for data in response.iter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    yield rest


def _read(data: bytes) -> Any:
    try:
        return read_json(data.decode())
    except ValueError as error:
        raise MalformedAnswer(f"a chunk of it is no JSON: {error}") from error
