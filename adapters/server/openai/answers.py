"""Answers, whole or in chunks, with the counts of their tokens."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse, Response

from adapters.server.openai.chunks import Choice
from adapters.server.openai.generation import Generated, Generation


@dataclass(frozen=True)
class Answer:
    """The fields that an answer has besides its choices."""

    kind: str
    prefix: str  # of its id
    model: str  # as the client named it
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970
    number: str = field(default_factory=lambda: secrets.token_hex(12))

    def whole(self, body: Mapping[str, Any], usage: Mapping[str, int]) -> Response:
        return JSONResponse({**self._head(self.kind), **body, "usage": usage})

    async def chunks(
        self,
        parts: AsyncGenerator[Choice | Sequence[Generated], None],
        generations: Sequence[Generation],
        *,
        counts: bool,
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield one chunk for each part and, with `counts`, a last one with the usage."""
        kind = self.kind if self.kind == "text_completion" else f"{self.kind}.chunk"
        head = self._head(kind) | ({"usage": None} if counts else {})
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Mapping):
                    yield {**head, "choices": [part]}
                elif counts:
                    yield {**head, "choices": [], "usage": usage(generations, part)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.number}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def usage(generations: Sequence[Generation], generated: Sequence[Generated]) -> Mapping[str, int]:
    """Count the tokens of the prompts, each once, and of all completions."""
    of_prompts = sum(len(generation.prompt) for generation in generations)
    of_completions = 0
    for completions in generated:
        of_completions += sum(len(sampled.tokens) for sampled in completions.sampled)
    return {
        "prompt_tokens": of_prompts,
        "completion_tokens": of_completions,
        "total_tokens": of_prompts + of_completions,
    }
