"""Workflows: five combinators that assemble stages (sequence, for_each, every, when, parallel)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Union, runtime_checkable

from kitchen.errors import ConfigError
from kitchen.progress import Progress
from kitchen.stage import Stage

# a step of a workflow: a stage, or the result of a combinator
Step = Union[Stage, "Series", "ForEach", "When", "Parallel"]


@runtime_checkable
class SupportsWorkflow(Protocol):
    """A recipe as a step of another recipe."""

    outputs: Any  # ClassVar[tuple[type, ...]]: the types that its workflow writes

    def workflow(self) -> Step: ...


@dataclass(frozen=True)
class Series:
    """Steps that run one after the other."""

    steps: tuple[Step, ...]
    # None: the steps share the scope around them; else they have an inner scope, a phase, and only
    # these types leave it
    outputs: tuple[Any, ...] | None = None
    title: str = ""  # of a recipe that is a step of another one


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
    """A body that runs only if a condition holds."""

    condition: Stage  # returns bool
    body: Series

    @property
    def constant_within_iteration(self) -> bool:
        """True if the condition reads only Progress, which an iteration does not change.

        Then a type written under it exists in every later body under the same condition.
        """
        return all(read.kind is Progress for read in self.condition.contract().reads)


@dataclass(frozen=True)
class Parallel:
    """Branches that run concurrently."""

    branches: tuple[Step, ...]


class Every(Stage):
    """Condition that holds at every n-th iteration of the loop around it."""

    n: int

    def run(self, progress: Progress) -> bool:
        return self.n > 0 and (progress.step + 1) % self.n == 0


Block = Callable[..., Step]


def sequence(*steps: Step | SupportsWorkflow, outputs: tuple[Any, ...] | None = None) -> Series:
    """Run steps one after the other.

    With `outputs` they form a phase: they have an inner scope, and only these types leave it. A
    recipe among the steps is a phase with the outputs that it declares.
    """
    return Series(_steps(steps), outputs)


def for_each(source: Stage, *, ahead: int = 0, save: int = 0, stale: tuple[Any, ...] = ()) -> Block:
    """Run the body once per item of `source`, each time in a fresh scope.

    `save` is the number of iterations between save points. `ahead` iterations are submitted beyond
    the one being waited for; types in `stale` may be read that many iterations old.
    """
    if ahead < 0 or save < 0:
        raise ConfigError(f"for_each({source!r}): ahead={ahead} and save={save} cannot be negative")
    return lambda *body: ForEach(source, Series(_steps(body)), ahead, save, stale)


def when(condition: Stage) -> Block:
    """Run the body only if `condition` holds; its outputs can be read only as `X | None = None`."""
    return lambda *body: When(condition, Series(_steps(body)))


def every(n: int) -> Block:
    """Run the body at every n-th iteration of the loop around it; n = 0 means never."""
    return when(Every(n))


def parallel(*branches: Step | SupportsWorkflow) -> Parallel:
    """Run branches concurrently on the same inputs; no two may write or change the same type."""
    return Parallel(_steps(branches))


def _steps(steps: Iterable[Step | SupportsWorkflow]) -> tuple[Step, ...]:
    return tuple(_step(step) for step in steps)


def _step(step: Step | SupportsWorkflow) -> Step:
    if isinstance(step, (Stage, Series, ForEach, When, Parallel)):
        return step
    if isinstance(step, SupportsWorkflow):
        return Series((step.workflow(),), tuple(step.outputs), type(step).__name__)
    raise TypeError(
        f"{step!r} is not a step: use a stage, a recipe, or one of sequence, for_each, when, every "
        "and parallel"
    )


def has_save_points(step: Step) -> bool:
    return any(isinstance(inner, ForEach) and inner.save > 0 for inner in walk(step))


def is_resumable(step: Step) -> bool:
    """Return whether a run of the step stores anything to resume from: save points or memos."""
    memoizes = any(isinstance(inner, Stage) and inner.memoize for inner in walk(step))
    return memoizes or has_save_points(step)


def walk(step: Step) -> Iterator[Step]:
    """Yield the step and everything in it, in order."""
    yield step
    match step:
        case Series(steps) | Parallel(steps):
            for inner in steps:
                yield from walk(inner)
        case ForEach(first, body) | When(first, body):
            yield first
            yield from walk(body)
