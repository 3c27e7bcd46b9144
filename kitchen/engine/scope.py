"""The counter: values keyed by their type, in nested scopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kitchen.ports.future import Future


class Context:
    """At most one value of each type per scope; inner scopes shadow outer ones.

    Only the runner writes here. Stages never see a Context: they get what their signature asks for
    and return what it promises.
    """

    def __init__(
        self, values: Mapping[Any, Any], outer: Context | None = None, where: str = ""
    ) -> None:
        self._values = dict(values)
        self._outer = outer
        self._where: list[str] = [
            *([] if outer is None else outer._where),
            *([where] if where else []),
        ]
        self._made: list[Any] = []  # what stages put here, oldest first: this scope's to close
        self.asked: list[tuple[Future[Any], str]] = []  # what is in flight, and which stage asked

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
        self._made.append(value)

    def replace(self, kind: Any, value: Any) -> None:
        """Put it where it already lies, be that an outer scope: how state survives an iteration."""
        if kind in self._values or self._outer is None:
            self.put(kind, value)
        else:
            self._outer.replace(kind, value)

    def asker(self, future: Future[Any]) -> str:
        """Which stage asked for what is in flight; empty if nobody here did."""
        found = [stage for each, stage in self.asked if each is future]
        return found[0] if found else "" if self._outer is None else self._outer.asker(future)

    def settle(self, future: Future[Any], arrived: Any) -> None:
        """What was in flight is here: it takes the future's place, so that it can be closed and
        handed out.
        """
        for kind, value in self._values.items():
            if value is future:
                self._values[kind] = arrived
        self._made = [arrived if made is future else made for made in self._made]

    def inner(self, values: Mapping[Any, Any] | None = None, where: str = "") -> Context:
        return Context(values or {}, outer=self, where=where)

    def merge(self, branch: Context) -> None:
        """Take over what an inner scope left, and what it still waits for."""
        self._values.update(branch._values)
        self._made += branch._made
        self.asked += branch.asked

    def hand_out(self, kind: Any, outer: Context) -> None:
        """Leave a value to an outer scope, which closes it from now on."""
        value = self[kind]
        self._made = [made for made in self._made if made is not value]
        outer.put(kind, value)

    def disposable(self) -> Iterator[Any]:
        """What was made here and nobody outside holds, youngest first."""
        held = set() if self._outer is None else {id(value) for value in self._outer.all()}
        for value in reversed(self._made):
            if id(value) not in held:
                held.add(id(value))
                yield value
        self._made.clear()

    def all(self) -> Iterator[Any]:
        yield from self._values.values()
        if self._outer is not None:
            yield from self._outer.all()

    def where(self) -> Sequence[str]:
        """The way here, outermost first: recipe, loops and their steps."""
        return self._where
