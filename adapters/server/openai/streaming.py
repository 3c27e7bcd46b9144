"""Answers that are sent as server-sent events while their tokens are drawn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from adapters.server.openai.disconnect import unless_disconnected
from adapters.server.openai.errors import error_body
from adapters.server.openai.generation import Generated, OnToken

Work = Callable[[OnToken], Awaitable[Sequence[Generated]]]
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies must not hold it back


@dataclass(frozen=True)
class DrawnToken:
    """A token of a choice."""

    choice: int
    token: int


async def drawn_tokens(work: Work) -> AsyncGenerator[DrawnToken | Sequence[Generated], None]:
    """Yield tokens as they are drawn, and the complete result last; closing cancels the work."""
    loop = asyncio.get_running_loop()
    tokens: asyncio.Queue[DrawnToken | None] = asyncio.Queue()

    def on_token(choice: int, token: int) -> None:
        loop.call_soon_threadsafe(tokens.put_nowait, DrawnToken(choice, token))

    task = asyncio.ensure_future(work(on_token))
    task.add_done_callback(lambda _: tokens.put_nowait(None))
    try:
        while (token := await tokens.get()) is not None:
            yield token
        yield await task
    finally:
        task.cancel()


async def stream_response(
    request: Request, chunks: AsyncGenerator[Mapping[str, Any], None]
) -> Response:
    """Return the response to a streamed request.

    Errors before the first chunk are raised, so that they have a status of their own.
    """
    first = await unless_disconnected(request, _next(chunks))
    return StreamingResponse(
        _events(first, chunks), media_type="text/event-stream", headers=HEADERS
    )


async def _next(chunks: AsyncGenerator[Mapping[str, Any], None]) -> Mapping[str, Any]:
    return await anext(chunks)


async def _events(
    first: Mapping[str, Any], chunks: AsyncGenerator[Mapping[str, Any], None]
) -> AsyncIterator[str]:
    """Yield chunks as events; an error in between is the last event."""
    async with aclosing(chunks):
        try:
            yield _event(first)
            async for chunk in chunks:
                yield _event(chunk)
        except Exception as error:  # noqa: BLE001 the status has been sent
            yield _event(error_body(error)[1])
            return
    yield "data: [DONE]\n\n"


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
