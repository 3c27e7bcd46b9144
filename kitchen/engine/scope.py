"""Scopes of a run: values keyed by their type, in nested scopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kitchen.ports.future import Future
from kitchen.progress import NOWHERE, Location


class Scope:
    """At most one value of each type; inner scopes shadow outer ones.

    Only the runner writes here. Stages never see a Scope: they receive what their signature asks
    for and return what it promises.
    """

    def __init__(
        self,
        values: Mapping[Any, Any],
        outer: Scope | None = None,
        location: Location | None = None,
    ) -> None:
        self._values = dict(values)
        self._outer = outer
        inherited = NOWHERE if outer is None else outer.location
        self.location: Location = inherited if location is None else location
        self._owned: list[Any] = []  # put here by stages, oldest first; closed with this scope
        self.pending: list[tuple[Future[Any], str]] = []  # in flight, and the stage that asked

    def __contains__(self, kind: Any) -> bool:
        return kind in self._values or (self._outer is not None and kind in self._outer)

    def __getitem__(self, kind: Any) -> Any:
        if kind in self._values:
            return self._values[kind]
        if self._outer is None:
            raise KeyError(kind)
        return self._outer[kind]

    def put(self, kind: Any, value: Any) -> None:
        self._values[kind] = value
        self._owned.append(value)

    def replace(self, kind: Any, value: Any) -> None:
        """Replace a value in the scope that holds it, so that state survives an iteration."""
        if kind in self._values or self._outer is None:
            self.put(kind, value)
        else:
            self._outer.replace(kind, value)

    def requested_by(self, future: Future[Any]) -> str:
        """Return the title of the stage that returned a future; empty if none here did."""
        for pending, stage in self.pending:
            if pending is future:
                return stage
        return "" if self._outer is None else self._outer.requested_by(future)

    def resolve(self, future: Future[Any], value: Any) -> None:
        """Put the value in its future's place, so that it can be closed and handed out."""
        for kind, held in self._values.items():
            if held is future:
                self._values[kind] = value
        self._owned = [value if owned is future else owned for owned in self._owned]

    def inner(
        self, values: Mapping[Any, Any] | None = None, location: Location | None = None
    ) -> Scope:
        return Scope(values or {}, self, location)

    def merge(self, branch: Scope) -> None:
        """Adopt the values of an inner scope and what it still waits for."""
        self._values.update(branch._values)
        self._owned += branch._owned
        self.pending += branch.pending

    def hand_out(self, kind: Any, outer: Scope) -> None:
        """Move a value to an outer scope, which closes it from now on."""
        value = self[kind]
        self._owned = [owned for owned in self._owned if owned is not value]
        outer.put(kind, value)

    def disposable(self) -> Iterator[Any]:
        """Yield the values that only this scope holds, youngest first."""
        held = set() if self._outer is None else {id(value) for value in self._outer.values()}
        for value in reversed(self._owned):
            if id(value) not in held:
                held.add(id(value))
                yield value
        self._owned.clear()

    def values(self) -> Iterator[Any]:
        yield from self._values.values()
        if self._outer is not None:
            yield from self._outer.values()
