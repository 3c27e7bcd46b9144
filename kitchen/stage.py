"""A stage: one verb, whose signature says what it takes and what it leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
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
    kind: Any  # the type it is found under
    pending: bool  # asked for as Future[kind]: passed on without waiting
    optional: bool  # has a default: may be absent


@dataclass(frozen=True)
class Need:
    """A capability that a stage wants of a port, which its signature cannot say."""

    port: Any
    capability: str
    # False: without it the setting of this name is not honoured, and the plan says so
    must: bool = True


@dataclass(frozen=True)
class Contract:
    """What a stage reads and writes, as its signature says."""

    reads: tuple[Read, ...]
    returns: tuple[Any, ...]  # in order, published kinds among them
    pending: frozenset[Any]  # those returned as Future[kind]
    yields: Any = None  # the item type, for a stage that returns Iterable[item]
    decides: bool = False  # returns bool: a condition

    @cached_property
    def writes(self) -> tuple[Any, ...]:
        """What goes onto the counter."""
        return tuple(kind for kind in self.returns if not published(kind))

    def parts(self, result: Any) -> Any:
        """What a stage answered, one value for each of `returns`."""
        return result if len(self.returns) > 1 else (result,) * len(self.returns)

    def rewrites(self, kind: Any) -> bool:
        return kind in self._rewritten

    @cached_property
    def _rewritten(self) -> frozenset[Any]:
        return frozenset(self.returns) & {read.kind for read in self.reads}


def published(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Published)


@dataclass_transform(frozen_default=True)
class Stage:
    """Subclass it, give it options as fields, and write `run` (sync or async).

    A run that is resumed may call it again: the same inputs must give the same answer (draw random
    numbers from a seed and the step), and what it does to the world must be the same done twice.
    With `kept`, its answer is written into the record instead (outside loops), and a resumed run
    takes it from there.

    Two methods are asked for before a run, with signatures that are read as that of `run`: `verify`
    takes ports alone and raises cheaply what `run` would raise, and `preview` does, once, what can
    be done without weights.
    """

    memoize: ClassVar[bool] = False
    run: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def contract(self) -> Contract:
        return signature(cast(Any, type(self)))

    def plain(self) -> Stage:
        """Without the roles that it was given."""
        return self

    def role(self, kind: Any) -> Any:
        """The type that stands for one of its own."""
        return kind

    def title(self) -> str:
        """Its name, without its options."""
        return type(self).__name__

    def __str__(self) -> str:
        """For people: its name and the options that are not at their defaults, shortened."""
        return f"{self.title()}({_changed(self)})"

    def needs(self) -> Iterable[Need]:
        return ()

    def using(self, roles: Mapping[Any, Any]) -> Stage:
        """The same verb on other types: `OptimStep(...).using({TrainingSession: Critic})`."""
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
        was, roles = self.stage.contract(), self.roles
        return replace(
            was,
            reads=tuple(replace(read, kind=roles.get(read.kind, read.kind)) for read in was.reads),
            returns=tuple(roles.get(kind, kind) for kind in was.returns),
            pending=frozenset(roles.get(kind, kind) for kind in was.pending),
            yields=roles.get(was.yields, was.yields),
        )

    def plain(self) -> Stage:
        return self.stage.plain()

    def role(self, kind: Any) -> Any:
        own = self.stage.role(kind)
        return self.roles.get(own, own)

    def title(self) -> str:
        return self.stage.title()

    def __str__(self) -> str:
        return str(self.stage)

    def needs(self) -> Iterable[Need]:
        return self.stage.needs()


def _changed(value: Any) -> str:
    """The fields of a dataclass that are not at their defaults and have something to say."""
    shown = [
        (f.name, _short(getattr(value, f.name)))
        for f in fields(value)
        if f.repr and getattr(value, f.name) != f.default
    ]
    return ", ".join(f"{name}={text}" for name, text in shown if not text.endswith("()"))


def _short(value: Any) -> str:
    if isinstance(value, Stage):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({_changed(value)})"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


@cache
def signature(cls: Any, verb: str = "run") -> Contract:
    """What a method of a stage reads and writes."""
    method = getattr(cls, verb)
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    for name in [p.name for p in parameters if p.name not in hints] + ["return"] * (
        "return" not in hints
    ):
        raise TypeError(
            f"{cls.__name__}.{verb}: {name!r} has no type; the signature says what a stage takes"
        )
    reads = tuple(
        Read(p.name, *_unwrap(hints[p.name]), optional=p.default is not p.empty) for p in parameters
    )
    result = hints["return"]
    if get_origin(result) not in (None, tuple, Union, UnionType) and issubclass(
        get_origin(result), Iterable
    ):
        return Contract(reads, (), frozenset(), yields=get_args(result)[0])
    returned = get_args(result) if get_origin(result) is tuple else (result,)
    kinds = [_unwrap(kind) for kind in returned if kind is not type(None) and kind is not bool]
    late = frozenset(kind for kind, pending in kinds if pending)
    return Contract(reads, tuple(kind for kind, _ in kinds), late, decides=result is bool)


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """Future[X] -> (X, True); X -> (X, False); X | None -> as X."""
    if get_origin(kind) in (Union, UnionType):
        [kind] = [k for k in get_args(kind) if k is not type(None)]
    if get_origin(kind) is Future:
        return get_args(kind)[0], True
    return kind, False
