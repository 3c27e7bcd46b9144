"""OpenTelemetry spans of runs and stages, and the wrapper around ports; none without an SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from opentelemetry import trace

from kitchen.secrets import error_attributes, mask

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
    return _span(name, attributes)


@contextmanager
def _span(name: str, attributes: Attributes) -> Iterator[None]:
    """Open a span, to which an error is added without secrets."""
    with trace.get_tracer(_NAME).start_as_current_span(
        name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except Exception as error:
            current.record_exception(error, attributes=error_attributes(error))
            current.set_status(trace.StatusCode.ERROR, mask(f"{type(error).__name__}: {error}"))
            raise
