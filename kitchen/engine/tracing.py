"""OpenTelemetry spans, one per run, stage and port call; nothing happens without an SDK."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace

from kitchen.ports.future import Future, is_future

Attributes = Mapping[str, str | int]
_NAME = "crucible-kitchen"


def span(name: str, attributes: Attributes) -> AbstractContextManager[Any]:
    if not _sdk_installed():
        return nullcontext()
    return trace.get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes))


def traced(kind: Any, value: Any, attributes: Attributes) -> Any:
    """Wrap a port so that each call opens a span; unchanged if no SDK is installed."""
    is_port = getattr(kind, "_is_protocol", False)
    if not is_port or not _sdk_installed() or isinstance(value, _TracedPort) or is_future(value):
        return value
    return _TracedPort(value, kind.__name__, attributes)


def untraced(value: Any) -> Any:
    return object.__getattribute__(value, "_value") if isinstance(value, _TracedPort) else value


def _sdk_installed() -> bool:
    """Return whether an SDK has replaced the API's default provider."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class _TracedPort:
    """A port whose calls open spans; the span of a future ends when its value arrives."""

    def __init__(self, value: Any, port: str, attributes: Attributes) -> None:
        self._value, self._port, self._attributes = value, port, attributes

    def __len__(self) -> int:
        return len(self._value)

    def __getitem__(self, index: Any) -> Any:
        return self._value[index]

    def __getattr__(self, verb: str) -> Any:
        attribute = getattr(self._value, verb)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            tracer = trace.get_tracer(_NAME)
            opened = tracer.start_span(f"{self._port}.{verb}", attributes=dict(self._attributes))
            try:
                with trace.use_span(opened, record_exception=True):
                    result = attribute(*args, **kwargs)
            except BaseException:
                opened.end()
                raise
            if is_future(result):
                return _TracedFuture(result, opened)
            opened.end()
            return result

        return call


@dataclass(frozen=True)
class _TracedFuture:
    """A future that ends a span when its value arrives."""

    future: Future[Any]
    opened: trace.Span

    def result(self, timeout: float | None = None) -> Any:
        with self._ending():
            return self.future.result(timeout)

    def __await__(self) -> Generator[Any, Any, Any]:
        with self._ending():
            return (yield from self.future.__await__())

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.opened.record_exception(error)
            self.opened.set_status(trace.StatusCode.ERROR, str(error))
            raise
        finally:
            if self.opened.is_recording():
                self.opened.end()
