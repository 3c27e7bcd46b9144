"""Fields of requests that depend on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RequestFields:
    """The name of the token limit in chats, and further fields, from the settings."""

    limit: str = "max_completion_tokens"
    more: Mapping[str, Any] = field(default_factory=dict)  # null leaves a field out

    def body(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a request with those of the settings, without nulls."""
        values = {**fields, **self.more}
        return {name: value for name, value in values.items() if value is not None}
