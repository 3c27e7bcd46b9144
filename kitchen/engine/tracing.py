"""OpenTelemetry spans of runs and stages, and the wrapper around ports; none without an SDK."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from opentelemetry import trace

Attributes = Mapping[str, str | int]
_NAME = "crucible-kitchen"


class PortWrapper(Protocol):
    """Wraps the ports that stages read, as `kitchen.backend.observed_ports` does.

    The values in scope are never wrapped.
    """

    def wrap(self, kinds: Mapping[str, Any], values: Mapping[str, Any], of: Attributes) -> Any:
        """Return the arguments of a stage by name, ports wrapped; `kinds` are their types."""

    def unwrap(self, value: Any) -> Any:
        """Return the port inside a wrapper, and every other value unchanged."""


def span(name: str, attributes: Attributes) -> AbstractContextManager[Any]:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return nullcontext()
    return trace.get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes))
