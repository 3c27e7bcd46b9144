"""Ports whose calls are observed during a run: timed, recorded, and traced if there is an SDK.

A wrapper changes no argument, no result and no error.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from types import CoroutineType
from typing import Any

from kitchen.backend.call_telemetry import CallSpan, metrics_or_none, tracer_or_none
from kitchen.backend.port_call import PortCall, working_for
from kitchen.ports.future import Done, Failed, Future, Pending, Started, is_future
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import TrainingSession
from kitchen.types import Checkpoint

# ports that compute here, so often that most of the rows would be theirs; they only have spans
_ONLY_TRACED = frozenset({"Tokenizer", "Dataset"})
# verbs that return another port, whose calls are observed too
_OPENS: Mapping[tuple[str, str], Any] = {
    ("TrainingClient", "open"): TrainingSession,
    ("TrainingClient", "sampler"): Sampler,
    ("TrainingSession", "snapshot"): Sampler,
}
_PROMPT_VERBS = ("sample", "logprobs", "top_logprobs")
_DATA_VERBS = ("forward", "forward_backward")
_SPECIAL = ("__len__", "__getitem__", "__iter__", "__contains__", "__call__")
_CALLER: ContextVar[Mapping[str, str | int]] = ContextVar("caller of ports")

Record = Callable[[PortCall], object]


class ObservedPorts:
    """Wraps the ports of one run, for spans, metrics and `record`.

    `record` is called with each call that has ended, on the thread on which its result arrived.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.tracer = tracer_or_none()
        self._record = record
        self._metrics = metrics_or_none()
        # model and weak reference of each session and sampler, by id: they need not be hashable
        self._models = dict[int, tuple[Any, str]]()

    def wrap(
        self, kinds: Mapping[str, Any], values: Mapping[str, Any], of: Mapping[str, str | int]
    ) -> Mapping[str, Any]:
        """Return the arguments of a stage by name, ports wrapped; `kinds` are their types."""
        if not (self._record or self.tracer or self._metrics):
            return values
        _CALLER.set(of)
        return {name: self.wrapped(kinds[name], value) for name, value in values.items()}

    def unwrap(self, value: Any) -> Any:
        """Return the port inside a wrapper, and every other value unchanged."""
        if not _is_wrapper(value):
            return value
        port, model = value._value, value._model
        if model is not None:
            key = id(port)
            with suppress(TypeError):  # of a class that has no weak references
                gone = weakref.ref(port, lambda _: self._models.pop(key, None))
                self._models[key] = gone, model
        return port

    def wrapped(self, kind: Any, value: Any, model: str | None = None) -> Any:
        """Return a port in a wrapper, and every other value unchanged."""
        is_port = getattr(kind, "_is_protocol", False) and not is_future(value)
        if not is_port or _is_wrapper(value):
            return value
        if kind.__name__ in _ONLY_TRACED and self.tracer is None:
            return value
        reference, known = self._models.get(id(value), (None, None))
        if reference is not None and reference() is value:
            model = known
        cls: Any = type(value)
        return _wrapper_class(cls)(value, kind, model, self)

    def ended(self, call: PortCall) -> None:
        if call.port in _ONLY_TRACED:
            return
        if self._record:
            self._record(call)
        if self._metrics:
            self._metrics.add(call)


class _ObservedPort:
    """A port whose calls are observed."""

    def __init__(self, value: Any, kind: Any, model: str | None, ports: ObservedPorts) -> None:
        self._value, self._kind, self._model, self._ports = value, kind, model, ports

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._value, name)
        if name.startswith("_") or not callable(attribute):
            return attribute
        return partial(_call, self, name, attribute)

    def __eq__(self, other: Any) -> bool:
        return bool(self._value == (other._value if _is_wrapper(other) else other))

    def __hash__(self) -> int:
        return hash(self._value)


def _is_wrapper(value: Any) -> bool:
    return issubclass(type(value), _ObservedPort)


@cache
def _wrapper_class(cls: Any) -> type[_ObservedPort]:
    """Return the wrapper for a class of ports, with the special methods that this class has."""

    def forward(special: str) -> Callable[..., Any]:
        def method(self: _ObservedPort, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._value, special)(*args, **kwargs)

        return method

    methods = {special: forward(special) for special in _SPECIAL if hasattr(cls, special)}
    return type(cls.__name__, (_ObservedPort,), methods)


def _call(
    port: _ObservedPort, verb: str, method: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call the method of a port, and observe it until its result has arrived."""
    call = _begin(port, verb, args, kwargs)
    try:
        with working_for(call.row), call.span.active() if call.span else nullcontext():
            result = method(*args, **kwargs)
    except BaseException as error:
        call.end(error)
        raise
    opened = _opening(port, verb, args, kwargs)
    if is_future(result):
        return call.follow(result, opened)
    if isinstance(result, CoroutineType):
        return call.awaited(result)
    call.end(value=result)
    return opened(result)


def _begin(
    port: _ObservedPort, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _CallUnderWay:
    kind, tracer = port._kind, port._ports.tracer
    row = PortCall(kind.__name__, verb, _CALLER.get({}), port._model)
    row.input_tokens = _input_tokens(kind, verb, args, kwargs)
    span = CallSpan(tracer, row) if tracer else None
    samples = verb == "sample" and Sampler in kind.__mro__
    if span and samples:
        span.describe_sampling(row, kwargs, type(port._value).__module__)
    return _CallUnderWay(row, span, port._ports.ended, samples, time.perf_counter())


def _input_tokens(
    kind: Any, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """Return the tokens of a prompt or of training data; None for calls that have none."""
    if verb in _PROMPT_VERBS and Sampler in kind.__mro__:
        return len(_first(args, kwargs, "prompt", "tokens"))
    if verb in _DATA_VERBS and TrainingSession in kind.__mro__:
        return sum(len(datum.tokens) for datum in _first(args, kwargs, "data"))
    return None


def _first(args: Sequence[Any], kwargs: Mapping[str, Any], *names: str) -> Any:
    """Return the first argument, which may be passed by name; empty if it is missing."""
    return args[0] if args else next((kwargs[name] for name in names if name in kwargs), ())


def _unchanged(value: Any) -> Any:
    return value


def _opening(
    port: _ObservedPort, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[Any], Any]:
    """Return the function that wraps the result of a verb, if that is a port."""
    kind = _OPENS.get((port._kind.__name__, verb))
    if kind is None:
        return _unchanged
    source = _first(args, kwargs, "model", "weights") or port._model
    model = source.path if isinstance(source, Checkpoint) else source
    return lambda value: port._ports.wrapped(kind, value, model)


@dataclass
class _CallUnderWay:
    """A call whose result has not arrived yet."""

    row: PortCall
    span: CallSpan | None
    ended: Callable[[PortCall], None]
    samples: bool  # whether the result is completions
    started: float  # by the performance counter
    is_over: bool = False

    def end(self, error: BaseException | None = None, value: Any = None) -> None:
        """Complete the row, once: a result can be taken any number of times."""
        if self.is_over:
            return
        self.is_over = True
        self.row.duration_ms = (time.perf_counter() - self.started) * 1000
        if error is not None:
            self.row.error_type = type(error).__name__
            self.row.http_status = _http_status(error) or self.row.http_status
        elif self.samples:
            self.row.output_tokens = sum(len(sampled.tokens) for sampled in value)
        if self.span:
            if self.samples and error is None:
                self.span.describe_samples(self.row, value)
            self.span.end(self.row, error)
        self.ended(self.row)

    def follow(self, future: Future[Any], opened: Callable[[Any], Any]) -> Future[Any]:
        """End the call when the result arrives, or when it is taken from an unknown future."""
        match future:
            case Pending(work):
                work.add_done_callback(self._take)
            case Started(task):
                task.add_done_callback(self._take)
            case Done(value):
                self.end(value=value)
            case Failed(error):
                self.end(error)
            case _:
                return _TakenFuture(future, self, opened)
        return future if opened is _unchanged else _OpeningFuture(future, opened)

    def _take(self, done: Any) -> None:
        """Take the result of a future of asyncio or concurrent.futures that is done."""
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        self.end(error, None if error else done.result())

    async def awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self.taking():
            value = await coroutine
        self.end(value=value)
        return value

    @contextmanager
    def taking(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise


@dataclass(frozen=True)
class _OpeningFuture:
    """A future whose value is a port, which is wrapped when it is taken."""

    future: Future[Any]
    opened: Callable[[Any], Any]

    def result(self, timeout: float | None = None) -> Any:
        return self.opened(self.future.result(timeout))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.opened((yield from self.future.__await__()))


@dataclass(frozen=True)
class _TakenFuture:
    """A future of an adapter's class, whose call ends when its value is taken."""

    future: Future[Any]
    call: _CallUnderWay
    opened: Callable[[Any], Any]

    def result(self, timeout: float | None = None) -> Any:
        try:
            value = self.future.result(timeout)
        except TimeoutError as error:
            if timeout is None:
                self.call.end(error)
            raise
        except BaseException as error:
            self.call.end(error)
            raise
        return self._taken(value)

    def __await__(self) -> Generator[Any, Any, Any]:
        with self.call.taking():
            value = yield from self.future.__await__()
        return self._taken(value)

    def _taken(self, value: Any) -> Any:
        self.call.end(value=value)
        return self.opened(value)


def _http_status(error: BaseException | None) -> int | None:
    """Return the HTTP status that an error, or one of its causes, carries."""
    while error is not None:
        response = getattr(error, "response", None)
        for holder in (error, response):
            status = getattr(holder, "status_code", None)
            if isinstance(status, int):
                return status
        error = error.__cause__
    return None
