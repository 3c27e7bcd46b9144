"""Five words to put stages together: sequence, for_each, every, when, parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Union, runtime_checkable

from kitchen.errors import ConfigError
from kitchen.progress import Progress
from kitchen.stage import Stage

Step = Union[Stage, "Series", "ForEach", "When", "Parallel"]


@runtime_checkable
class SupportsWorkflow(Protocol):
    """A recipe, seen as a step of another one."""

    outputs: Any  # ClassVar[tuple[type, ...]]: what comes out of it

    def workflow(self) -> Step: ...


@dataclass(frozen=True)
class Series:
    """Steps one after the other."""

    steps: tuple[Step, ...]
    # None: everything; else a scope of its own that leaves only these
    outputs: tuple[Any, ...] | None = None
    title: str = ""  # of a recipe that is a step of another


@dataclass(frozen=True)
class ForEach:
    """A loop over the items of a source."""

    source: Stage  # returns Iterable[item]; the body finds the item by its type
    body: Series
    ahead: int = 0  # iterations submitted beyond the one being waited for
    save: int = 0  # iterations between save points; 0 means none
    stale: tuple[Any, ...] = ()  # types that may be read up to `ahead` iterations old


@dataclass(frozen=True)
class When:
    """A body that runs only if a condition says so."""

    condition: Stage  # returns bool
    body: Series

    @property
    def steady(self) -> bool:
        """Whether it decides the same throughout an iteration: what it left under it is there under
        it again.
        """
        return all(read.kind is Progress for read in self.condition.contract().reads)


@dataclass(frozen=True)
class Parallel:
    """Branches that run at once."""

    branches: tuple[Step, ...]


class Every(Stage):
    """Each n-th iteration of the loop around it."""

    n: int

    def run(self, progress: Progress) -> bool:
        return self.n > 0 and (progress.step + 1) % self.n == 0


Block = Callable[..., Step]


def sequence(*steps: Step | SupportsWorkflow, outputs: tuple[Any, ...] | None = None) -> Series:
    """One after the other. With `outputs`, a phase: a scope of its own, out of which only these
    types come.

    A recipe among the steps is a phase that leaves what it says it leaves.
    """
    return Series(_steps(steps), outputs)


def for_each(source: Stage, *, ahead: int = 0, save: int = 0, stale: tuple[Any, ...] = ()) -> Block:
    """The body once per item of `source`, each in a fresh scope; every `save` iterations a point to
    resume from.

    `ahead` iterations are submitted beyond the one being waited for; `stale` types may be read that
    much out of date.
    """
    if ahead < 0 or save < 0:
        raise ConfigError(f"for_each({source!r}): ahead={ahead} and save={save} cannot be negative")
    return lambda *body: ForEach(source, Series(_steps(body)), ahead, save, stale)


def when(condition: Stage) -> Block:
    """The body only if `condition` says so; what it leaves can be read only as `X | None = None`."""
    return lambda *body: When(condition, Series(_steps(body)))


def every(n: int) -> Block:
    """The body on each n-th iteration of the loop around it; n = 0 means never."""
    return when(Every(n))


def parallel(*branches: Step | SupportsWorkflow) -> Parallel:
    """All at once, on the same inputs; no two branches may leave or change the same type."""
    return Parallel(_steps(branches))


def _steps(steps: Iterable[Step | SupportsWorkflow]) -> tuple[Step, ...]:
    return tuple(_step(step) for step in steps)


def _step(step: Step | SupportsWorkflow) -> Step:
    if isinstance(step, (Stage, Series, ForEach, When, Parallel)):
        return step
    if isinstance(step, SupportsWorkflow):
        return Series((step.workflow(),), tuple(step.outputs), type(step).__name__)
    raise TypeError(
        f"{step!r} is no step: a stage, a recipe, or one of sequence, for_each, when, every, "
        "parallel is"
    )


def saves(step: Step) -> bool:
    """Whether `step` has points to resume from."""
    return any(isinstance(inner, ForEach) and inner.save > 0 for inner in walk(step))


def keeps(step: Step) -> bool:
    """Whether what happened in it is written down for a run that goes on: save points, or kept
    answers.
    """
    return saves(step) or any(isinstance(inner, Stage) and inner.memoize for inner in walk(step))


def walk(step: Step) -> Iterator[Step]:
    """The step and everything in it, in order."""
    yield step
    match step:
        case Series(steps) | Parallel(steps):
            for inner in steps:
                yield from walk(inner)
        case ForEach(first, body) | When(first, body):
            yield first
            yield from walk(body)
