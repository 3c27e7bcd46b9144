"""Spans by OpenTelemetry: one per run, stage and port call; without an SDK, nothing happens."""

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
    if not _heard():
        return nullcontext()
    return trace.get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes))


def traced(kind: Any, value: Any, attributes: Attributes) -> Any:
    """A port in a wrapper that opens a span per call, if someone listens; anything else as it is."""
    if (
        not getattr(kind, "_is_protocol", False)
        or not _heard()
        or isinstance(value, _Traced)
        or is_future(value)
    ):
        return value
    return _Traced(value, kind.__name__, attributes)


def untraced(value: Any) -> Any:
    return object.__getattribute__(value, "_value") if isinstance(value, _Traced) else value


def _heard() -> bool:
    """Whether someone listens: an SDK has taken the place of what the API begins with."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


class _Traced:
    """Any port; its span ends when the answer is there."""

    def __init__(self, value: Any, port: str, attributes: Attributes) -> None:
        self._value, self._port, self._attributes = value, port, attributes

    def __len__(self) -> int:
        return len(self._value)

    def __getitem__(self, index: Any) -> Any:
        return self._value[index]

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._value, verb)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            tracer = trace.get_tracer(_NAME)
            opened = tracer.start_span(f"{self._port}.{verb}", attributes=dict(self._attributes))
            try:
                with trace.use_span(opened, record_exception=True):
                    answer = found(*args, **kwargs)
            except BaseException:
                opened.end()
                raise
            if is_future(answer):
                return _Ending(answer, opened)
            opened.end()
            return answer

        return call


@dataclass(frozen=True)
class _Ending:
    """A future that ends a span when it arrives."""

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
