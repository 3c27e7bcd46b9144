"""Fields of requests that depend on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kitchen.errors import ConfigError

_FIXED = {
    "model": "the name of the weights, openai:MODEL, says which model is asked",
    "messages": "they are the conversation that is answered",
    "prompt": "it is the text that is continued or scored",
    "n": "it is the number of answers that the caller waits for",
    "stream": "answers are streamed where they are shown as they arrive, and only there",
}


@dataclass(frozen=True)
class RequestFields:
    """The name of the token limit in chats, and further fields, from the settings."""

    limit: str = "max_completion_tokens"
    more: Mapping[str, Any] = field(default_factory=dict)  # null leaves a field out

    def __post_init__(self) -> None:
        for name, reason in _FIXED.items():
            if name in self.more:
                raise ConfigError(f"sampling.fields cannot set {name}: {reason}")

    def body(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a request with those of the settings, which win, without nulls."""
        values = {**fields, **self.more}
        return {name: value for name, value in values.items() if value is not None}
