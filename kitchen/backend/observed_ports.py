"""Ports whose calls are observed during a run: timed, recorded, and traced if there is an SDK.

A wrapper changes no argument, no result and no error. Stages may use it as they use the port: with
isinstance, in a `with` block, in a copy, or to set an attribute.
"""

from __future__ import annotations

import asyncio
import copy
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from inspect import isroutine
from types import CoroutineType, MethodType
from typing import Any, NamedTuple

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
# special methods that a wrapper defines itself, instead of calling those of the port
_OWN_METHODS = frozenset(
    {
        "__class__",
        "__class_getitem__",
        "__copy__",
        "__deepcopy__",
        "__del__",
        "__delattr__",
        "__eq__",
        "__getattr__",
        "__getattribute__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__getstate__",
        "__hash__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__reduce__",
        "__reduce_ex__",
        "__repr__",
        "__setattr__",
        "__setstate__",
        "__subclasshook__",
    }
)
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
        return {name: self.wrapped(kinds[name], value, of) for name, value in values.items()}

    def unwrap(self, value: Any) -> Any:
        """Return the port inside a wrapper, and every other value unchanged."""
        if not _is_wrapper(value):
            return value
        port, model = value._observed.port, value._observed.model
        if model is not None:
            key = id(port)
            with suppress(TypeError):  # of a class that has no weak references
                gone = weakref.ref(port, lambda _: self._models.pop(key, None))
                self._models[key] = gone, model
        return port

    def wrapped(
        self, kind: Any, value: Any, of: Mapping[str, str | int], model: str | None = None
    ) -> Any:
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
        return _wrapper_class(cls)(_Observed(value, kind, model, self, of))

    def ended(self, call: PortCall) -> None:
        if call.port in _ONLY_TRACED:
            return
        if self._record:
            self._record(call)
        if self._metrics:
            self._metrics.add(call)


class _Observed(NamedTuple):
    """A port in a wrapper, and what is known of it."""

    port: Any
    kind: Any
    model: str | None
    ports: ObservedPorts
    caller: Mapping[str, str | int]  # on threads without the context of a stage


class _ObservedPort:
    """A port whose calls are observed."""

    __slots__ = ("__weakref__", "_observed")
    _observed: _Observed

    def __init__(self, observed: _Observed) -> None:
        object.__setattr__(self, "_observed", observed)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for isinstance
        return type(self._observed.port)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._observed.port, name)
        if name.startswith("_") or not _is_method(self._observed.kind, name, attribute):
            return attribute
        return _ObservedMethod(self._observed, name, attribute)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._observed.port, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._observed.port, name)

    def __eq__(self, other: Any) -> bool:
        return bool(self._observed.port == (other._observed.port if _is_wrapper(other) else other))

    def __hash__(self) -> int:
        return hash(self._observed.port)

    def __repr__(self) -> str:
        return repr(self._observed.port)

    def __copy__(self) -> Any:
        return copy.copy(self._observed.port)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._observed.port, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:  # another process reads the port itself
        return _unchanged, (self._observed.port,)


class _ObservedMethod:
    """A method of a port whose calls are observed."""

    __slots__ = ("_method", "_observed", "_verb")

    def __init__(self, observed: _Observed, verb: str, method: Callable[..., Any]) -> None:
        self._observed, self._verb, self._method = observed, verb, method

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for inspect.iscoroutinefunction and inspect.signature
        return type(self._method)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _call(self._observed, self._verb, self._method, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def __eq__(self, other: Any) -> bool:
        same = type(other) is _ObservedMethod
        return bool(self._method == (other._method if same else other))

    def __hash__(self) -> int:
        return hash(self._method)

    def __repr__(self) -> str:
        return repr(self._method)


def _is_method(kind: Any, name: str, attribute: Any) -> bool:
    """Return whether an attribute is a method, and not a class or an object that can be called."""
    if isinstance(attribute, MethodType) or isroutine(attribute):
        return True
    return callable(attribute) and isroutine(getattr(kind, name, None))


def _is_wrapper(value: Any) -> bool:
    return issubclass(type(value), _ObservedPort)


@cache
def _wrapper_class(cls: Any) -> type[_ObservedPort]:
    """Return the wrapper for a class of ports, with the special methods that this class has."""

    def forward(special: str) -> Callable[..., Any]:
        def method(self: _ObservedPort, /, *args: Any, **kwargs: Any) -> Any:
            port = self._observed.port
            result = getattr(port, special)(*args, **kwargs)
            return self if result is port else result  # that of `with`

        return method

    specials = [name for name in dir(cls) if name.startswith("__") and name.endswith("__")]
    methods: dict[str, Any] = {"__slots__": ()}
    for name in specials:
        of_class = getattr(cls, name)
        if name == "__dataclass_fields__":  # for dataclasses.replace
            methods[name] = of_class
        elif name not in _OWN_METHODS and _is_own(cls, name):
            methods[name] = forward(name)
    return type(cls.__name__, (_ObservedPort,), methods)


def _is_own(cls: Any, name: str) -> bool:
    """Return whether a class has a method that `object` does not have or that it overrides."""
    method = getattr(cls, name)
    return callable(method) and method is not getattr(object, name, None)


def _call(
    observed: _Observed,
    verb: str,
    method: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call the method of a port, and observe it until its result has arrived."""
    call = _begin(observed, verb, args, kwargs)
    try:
        with working_for(call.row), call.span.active() if call.span else nullcontext():
            result = method(*args, **kwargs)
    except BaseException as error:
        call.end(error)
        raise
    opened = _opening(observed, verb, args, kwargs)
    if is_future(result):
        return call.follow(result, opened)
    if isinstance(result, CoroutineType):
        return call.awaited(result, opened)
    call.end(value=result)
    return opened(result)


def _begin(
    observed: _Observed, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _CallUnderWay:
    port, kind, model, ports, caller = observed
    tracer = ports.tracer
    row = PortCall(kind.__name__, verb, _CALLER.get(caller), model)
    row.input_tokens = _input_tokens(kind, verb, args, kwargs)
    span = CallSpan(tracer, row) if tracer else None
    samples = verb == "sample" and Sampler in kind.__mro__
    if span and samples:
        span.describe_sampling(row, kwargs, type(port).__module__)
    return _CallUnderWay(row, span, ports.ended, samples, time.perf_counter())


def _input_tokens(
    kind: Any, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> int | None:
    """Return the tokens of a prompt or of training data; None for calls that have none."""
    if verb in _PROMPT_VERBS and Sampler in kind.__mro__:
        prompt = _first(args, kwargs, "prompt", "tokens")
        return len(prompt) if hasattr(prompt, "__len__") else None
    if verb in _DATA_VERBS and TrainingSession in kind.__mro__:
        return _tokens_of(_first(args, kwargs, "data"))
    return None


def _tokens_of(values: Any) -> int | None:
    """Return the tokens of data or completions; None for an iterator, which has only one reader."""
    if not isinstance(values, Sequence) or not all(hasattr(each, "tokens") for each in values):
        return None
    return sum(len(each.tokens) for each in values)


def _first(args: Sequence[Any], kwargs: Mapping[str, Any], *names: str) -> Any:
    """Return the first argument, which may be passed by name; empty if it is missing."""
    return args[0] if args else next((kwargs[name] for name in names if name in kwargs), ())


def _unchanged(value: Any) -> Any:
    return value


def _opening(
    observed: _Observed, verb: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[[Any], Any]:
    """Return the function that wraps the result of a verb, if that is a port."""
    kind = _OPENS.get((observed.kind.__name__, verb))
    if kind is None:
        return _unchanged
    source = _first(args, kwargs, "model", "weights") or observed.model
    model = source.path if isinstance(source, Checkpoint) else source
    caller = _CALLER.get(observed.caller)
    return lambda value: observed.ports.wrapped(kind, value, caller, model)


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
            self.row.output_tokens = _tokens_of(value)
        if self.span:
            if self.row.output_tokens is not None:
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

    async def awaited(
        self, coroutine: Coroutine[Any, Any, Any], opened: Callable[[Any], Any]
    ) -> Any:
        with self.taking():
            value = await coroutine
        self.end(value=value)
        return opened(value)

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
