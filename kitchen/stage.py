"""Stages: verbs whose signature is their contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from numbers import Real
from types import UnionType
from typing import (
    Any,
    ClassVar,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from kitchen.errors import RunFailed
from kitchen.ports.future import Future, is_future
from kitchen.types import Metrics, Published, Table


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
    alternative: str = ""  # advice for users without it, such as "set policy_lag=0"


@dataclass(frozen=True)
class Contract:
    """The types that a stage reads and returns, taken from its signature."""

    reads: tuple[Read, ...]
    returns: tuple[Any, ...]  # in order, published types among them
    pending: frozenset[Any]  # those returned as Future[kind]
    yields: Any = None  # the item type of a stage that returns Iterable[item]
    is_condition: bool = False  # returns bool
    may_be_none: frozenset[Any] = frozenset()  # those returned as `kind | None`

    @cached_property
    def writes(self) -> tuple[Any, ...]:
        """The returned types that go into scope, where later stages read them."""
        return tuple(kind for kind in self.returns if not is_published(kind))

    def values_of(self, result: Any) -> Any:
        """Return the result of a stage as a tuple, one value for each of `returns`."""
        return result if len(self.returns) > 1 else (result,) * len(self.returns)

    def promises(self, kind: Any, value: Any) -> bool:
        """Return whether a value is one that the stage may return as this type."""
        if value is None:
            return kind in self.may_be_none
        if kind in self.pending:
            return is_future(value)
        is_class = isinstance(kind, type) and kind.__module__ != "builtins"
        return not is_class or _is_protocol(kind) or isinstance(value, kind)

    def rewrites(self, kind: Any) -> bool:
        """Return whether the stage both reads and returns a type."""
        return kind in self._rewritten

    @cached_property
    def _rewritten(self) -> frozenset[Any]:
        return frozenset(self.returns) & {read.kind for read in self.reads}


def _is_protocol(kind: Any) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


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
    ends_early: ClassVar[bool] = False  # of a loop source: whether it may not yield all its items
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
    annotations = [kind for kind in returned if kind not in (type(None), bool)]
    kinds = [_unwrap(annotation) for annotation in annotations]
    return Contract(
        reads,
        tuple(kind for kind, _ in kinds),
        frozenset(kind for kind, is_pending in kinds if is_pending),
        is_condition=result is bool,
        may_be_none=frozenset(
            kind
            for (kind, _), annotation in zip(kinds, annotations, strict=True)
            if type(None) in get_args(annotation)
        ),
    )


def _unwrap(kind: Any) -> tuple[Any, bool]:
    """Future[X] -> (X, True); X -> (X, False); X | None -> as X."""
    if get_origin(kind) in (Union, UnionType):
        [kind] = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Future:
        return get_args(kind)[0], True
    return kind, False


R = TypeVar("R")


def check_result(stage: Stage, result: R) -> R:
    """Return what `run` returned; raises RunFailed if its signature promises something else."""
    contract = stage.contract()
    if contract.yields is not None:
        kept = isinstance(result, Iterable)
    elif contract.is_condition:
        kept = result is not None
    elif not contract.returns:
        kept = result is None
    else:
        values = contract.values_of(result)
        kept = (
            isinstance(values, tuple)
            and len(values) == len(contract.returns)
            and all(map(contract.promises, contract.returns, values))
        )
    if not kept:
        raise RunFailed(f"{stage.title()}.{_promise(stage)} returned {_described(result)}")
    for value in contract.values_of(result):
        if isinstance(value, Metrics):
            _check_numbers(stage, value)
        if isinstance(value, Table):
            _check_cells(stage, value)
    return result


def _check_numbers(stage: Stage, metrics: Metrics) -> None:
    for name, value in metrics.items():
        if not isinstance(value, Real):
            raise RunFailed(
                f"{stage.title()}.{_promise(stage)} returned the metric {name}={value!r:.80}, "
                "which is not a number"
            )


def _check_cells(stage: Stage, table: Table) -> None:
    for row in table.rows:
        if len(row) != len(table.columns) or not all(isinstance(cell, str) for cell in row):
            raise RunFailed(
                f"{stage.title()}.{_promise(stage)} returned a table {table.title!r} with the row "
                f"{row!r:.80}, which is not {len(table.columns)} texts, one for each column"
            )


def _promise(stage: Stage) -> str:
    """Return the place of a stage's `run`, and what its signature promises."""
    run = inspect.unwrap(type(stage).run)
    promised = inspect.signature(run).return_annotation
    if not isinstance(promised, str):
        promised = inspect.formatannotation(promised)
    code = getattr(run, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"run{place} promises {promised} and"


def _described(result: Any) -> str:
    """Return what a stage returned, by its types."""
    if result is None:
        return "None"
    if type(result) is tuple:
        return f"({', '.join(map(_described, result))})"
    return f"a value of type {type(result).__name__}"
