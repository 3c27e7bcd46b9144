"""Stages: verbs whose signature is their contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from kitchen.ports.future import Future
from kitchen.types import Published


@dataclass(frozen=True)
class Read:
    """One parameter of a stage."""

    name: str
    kind: Any  # the type whose value it receives
    pending: bool  # annotated Future[kind]: passed on without waiting
    optional: bool  # has a default: the value may be absent


@dataclass(frozen=True)
class Need:
    """A capability that a stage needs of a port beyond what its signature says."""

    port: Any
    capability: str
    # False: without the capability the stage runs, but the setting of this name has no effect,
    # which the plan reports
    required: bool = True


@dataclass(frozen=True)
class Contract:
    """The types that a stage reads and returns, taken from its signature."""

    reads: tuple[Read, ...]
    returns: tuple[Any, ...]  # in order, published types among them
    pending: frozenset[Any]  # those returned as Future[kind]
    yields: Any = None  # the item type of a stage that returns Iterable[item]
    is_condition: bool = False  # returns bool

    @cached_property
    def writes(self) -> tuple[Any, ...]:
        """The returned types that go into scope, where later stages read them."""
        return tuple(kind for kind in self.returns if not is_published(kind))

    def values_of(self, result: Any) -> Any:
        """Return the result of a stage as a tuple, one value for each of `returns`."""
        return result if len(self.returns) > 1 else (result,) * len(self.returns)

    def rewrites(self, kind: Any) -> bool:
        """Return whether the stage both reads and returns a type."""
        return kind in self._rewritten

    @cached_property
    def _rewritten(self) -> frozenset[Any]:
        return frozenset(self.returns) & {read.kind for read in self.reads}


def is_published(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Published)


@dataclass_transform(frozen_default=True)
class Stage:
    """Base class of stages: options are fields, and `run` (sync or async) does the work.

    A resumed run may call `run` again, so it must be deterministic and idempotent: the same inputs
    give the same result (draw random numbers from a seed and the step), and effects on the outside
    world may be repeated. With `memoize`, the result of a stage outside loops is stored in the
    run's record, and a resumed run reads it instead of calling `run` again.

    Two optional methods are called before a run, with signatures that are read like that of `run`:
    `verify` takes only adapters, and cheaply raises the errors that `run` would raise; `preview`
    is called once, even in loops, and computes what needs no weights.
    """

    memoize: ClassVar[bool] = False
    run: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def contract(self) -> Contract:
        """Return the types that the stage reads and returns, taken from the signature of `run`."""
        return contract_of(cast(Any, type(self)))

    def without_roles(self) -> Stage:
        """Return the stage that `using` was called on; itself if it never was."""
        return self

    def role(self, kind: Any) -> Any:
        """Return the type that `using` puts in place of a type in the signature of `run`."""
        return kind

    def title(self) -> str:
        """Return the name of the stage, without its options."""
        return type(self).__name__

    def __str__(self) -> str:
        """Return the name of the stage and its shortened options, except those at defaults."""
        return f"{self.title()}({_changed_options(self)})"

    def needs(self) -> Iterable[Need]:
        """Return the capabilities that the stage needs of adapters; none by default."""
        return ()

    def using(self, roles: Mapping[Any, Any]) -> Stage:
        """Replace types in the signature: `OptimStep(...).using({TrainingSession: Critic})`."""
        return _Using(self, roles)


class _Using(Stage):
    stage: Stage
    roles: Mapping[Any, Any]

    def run(self, **values: Any) -> Any:
        return self.stage.run(**values)

    def contract(self) -> Contract:
        return self._contract

    @cached_property
    def _contract(self) -> Contract:
        inner = self.stage.contract()
        return replace(
            inner,
            reads=tuple(replace(read, kind=self._renamed(read.kind)) for read in inner.reads),
            returns=tuple(self._renamed(kind) for kind in inner.returns),
            pending=frozenset(self._renamed(kind) for kind in inner.pending),
            yields=self._renamed(inner.yields),
        )

    def _renamed(self, kind: Any) -> Any:
        return self.roles.get(kind, kind)

    def without_roles(self) -> Stage:
        return self.stage.without_roles()

    def role(self, kind: Any) -> Any:
        return self._renamed(self.stage.role(kind))

    def title(self) -> str:
        return self.stage.title()

    def __str__(self) -> str:
        return str(self.stage)

    def needs(self) -> Iterable[Need]:
        return self.stage.needs()


def _changed_options(value: Any) -> str:
    """Return the fields of a dataclass that differ from their defaults, shortened."""
    options = []
    for field in fields(value):
        option = getattr(value, field.name)
        if not field.repr or option == _default(field):
            continue
        text = _shortened(option)
        if not text.endswith("()"):
            options.append(f"{field.name}={text}")
    return ", ".join(options)


def _default(field: Field[Any]) -> Any:
    """Return the default of a field, or the result of its default_factory; else MISSING."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _shortened(value: Any) -> str:
    if isinstance(value, Stage):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({_changed_options(value)})"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def contract_of(cls: Any, method: str = "run") -> Contract:
    """Return the contract of a stage's method; raises TypeError for a parameter without a type."""
    function = getattr(cls, method)
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    for name in [*(parameter.name for parameter in parameters), "return"]:
        if name not in hints:
            raise TypeError(
                f"{cls.__name__}.{method}: {name!r} has no type annotation; annotate it, because "
                "the signature of a stage declares what it reads and returns"
            )
    reads = tuple(
        Read(
            parameter.name,
            *_unwrap(hints[parameter.name]),
            parameter.default is not parameter.empty,
        )
        for parameter in parameters
    )
    result = hints["return"]
    origin = get_origin(result)
    if origin not in (None, tuple, Union, UnionType) and issubclass(origin, Iterable):
        return Contract(reads, (), frozenset(), yields=get_args(result)[0])
    returned = get_args(result) if origin is tuple else (result,)
    kinds = [_unwrap(kind) for kind in returned if kind not in (type(None), bool)]
    pending = frozenset(kind for kind, is_pending in kinds if is_pending)
    return Contract(reads, tuple(kind for kind, _ in kinds), pending, is_condition=result is bool)


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """Future[X] -> (X, True); X -> (X, False); X | None -> as X."""
    if get_origin(kind) in (Union, UnionType):
        [kind] = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Future:
        return get_args(kind)[0], True
    return kind, False
