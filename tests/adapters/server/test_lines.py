"""Whose turn it is, where many want to sample."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from adapters.server import lines
from adapters.server.lines import Lines, Wanted, Weights
from kitchen.errors import BackendError, DataError


class Kitchen:
    """Samplers whose answers come when the test says so."""

    def __init__(self) -> None:
        self.lines = Lines(self._opened)
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.asked: list[str] = []
        self._open: dict[str, asyncio.Future[bytes]] = {}
        self._began: list[Awaitable[Any]] = []

    def _opened(self, weights: Weights) -> Any:
        kitchen, name = self, str(weights)
        self.opened.append(name)

        class Sampler:
            def ask(self, what: str) -> Awaitable[bytes]:
                kitchen.asked.append(what)
                kitchen._open[what] = asyncio.get_running_loop().create_future()
                return kitchen._open[what]

            def close(self) -> None:
                kitchen.closed.append(name)

        return Sampler()

    def want(
        self,
        weights: str,
        client: str,
        what: str,
        number: int = 0,
        rows: int = 1,
        session: str = "s",
        error: Exception | None = None,
    ) -> asyncio.Future[Any]:
        """`error`: what it is refused with at once."""
        begun: asyncio.Future[Awaitable[bytes]] = asyncio.get_running_loop().create_future()

        def ask(sampler: Any) -> Awaitable[bytes]:
            if error is not None:
                raise error
            answer: Awaitable[bytes] = sampler.ask(what)
            return answer

        self.lines.join(weights, client, Wanted(session, number, rows, ask, begun))
        return begun

    async def answer(self, *whats: str, error: Exception | None = None) -> None:
        for what in whats:
            if error is None:
                self._open[what].set_result(b"")
            else:
                self._open[what].set_exception(error)
        await self.pass_()

    async def pass_(self) -> None:
        await asyncio.sleep(4 * lines.GATHER)


def played(play: Callable[[Kitchen], Awaitable[None]]) -> None:
    async def now() -> None:
        await play(Kitchen())

    asyncio.run(now())


def test_what_comes_at_once_is_asked_at_once_in_the_order_of_its_numbers() -> None:
    async def play(kitchen: Kitchen) -> None:
        for number in (2, 0, 1):
            kitchen.want("w", "a", f"a{number}", number)
        await kitchen.pass_()
        assert kitchen.asked == ["a0", "a1", "a2"]

    played(play)


def test_what_comes_while_a_share_is_answered_waits_and_each_client_has_one_after_the_other() -> (
    None
):
    async def play(kitchen: Kitchen) -> None:
        kitchen.want("w", "a", "first")
        await kitchen.pass_()
        for number in range(3):
            kitchen.want("w", "a", f"a{number}", number)
        kitchen.want("w", "b", "b0")
        await kitchen.pass_()
        assert kitchen.asked == ["first"]
        await kitchen.answer("first")
        assert kitchen.asked == ["first", "a0", "b0", "a1", "a2"]

    played(play)


def test_a_client_with_much_to_ask_does_not_hold_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "ROWS", 4)

    async def play(kitchen: Kitchen) -> None:
        for number in range(20):
            kitchen.want("w", "a", f"a{number}", number, rows=2)
        await kitchen.pass_()
        assert kitchen.asked == ["a0", "a1"]
        kitchen.want("w", "b", "b0", rows=2)
        await kitchen.answer("a0", "a1")
        assert kitchen.asked[2:] == ["a2", "b0"]

    played(play)


def test_no_more_samplers_are_open_than_there_may_be_and_none_starves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "MOST_OPEN", 2)

    async def play(kitchen: Kitchen) -> None:
        for name in "xyz":
            kitchen.want(name, "a", f"{name}0")
        await kitchen.pass_()
        assert kitchen.asked == ["x0", "y0"]
        kitchen.want("x", "a", "x1")  # there is more for one that is open, and z has waited longer
        await kitchen.answer("x0")
        assert kitchen.asked == ["x0", "y0", "z0"]
        assert kitchen.closed == ["x"]
        assert kitchen.lines.open == ["y", "z"]
        await kitchen.answer("y0")
        assert kitchen.asked[3:] == ["x1"]
        assert kitchen.closed == ["x", "y"]
        assert kitchen.opened == ["x", "y", "z", "x"]

    played(play)


@pytest.mark.parametrize(
    "error, opened", [(BackendError("no such weights"), 2), (DataError("a token too many"), 1)]
)
def test_a_sampler_that_failed_is_opened_again_and_one_that_was_asked_nonsense_is_not(
    error: Exception, opened: int
) -> None:
    async def play(kitchen: Kitchen) -> None:
        begun = kitchen.want("w", "a", "first")
        await kitchen.pass_()
        await kitchen.answer("first", error=error)
        with pytest.raises(type(error)):
            await (await begun)
        kitchen.want("w", "a", "second")
        await kitchen.pass_()
        assert kitchen.asked == ["first", "second"]
        assert len(kitchen.opened) == opened

    played(play)


def test_one_that_nobody_asks_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(kitchen: Kitchen) -> None:
        for name in "xy":
            kitchen.want(name, "a", name)
        await kitchen.pass_()
        await kitchen.answer("x")
        kitchen.lines.sweep()
        assert kitchen.closed == []
        monkeypatch.setattr(lines, "IDLE", -1.0)
        kitchen.lines.sweep()
        assert kitchen.closed == ["x"], "y is busy"
        assert kitchen.lines.open == ["y"]

    played(play)


def test_what_nobody_waits_for_any_more_is_not_asked() -> None:
    async def play(kitchen: Kitchen) -> None:
        kitchen.want("w", "a", "gone").cancel()
        kitchen.want("w", "a", "there", 1)
        await kitchen.pass_()
        assert kitchen.asked == ["there"]

    played(play)


def test_weights_that_are_to_be_deleted_are_let_go() -> None:
    async def play(kitchen: Kitchen) -> None:
        for name in ("own/a", "own/b", "kept"):
            kitchen.want(name, "a", name)
        await kitchen.pass_()
        kitchen.lines.let_go("own/")
        assert sorted(kitchen.closed) == ["own/a", "own/b"]
        assert kitchen.lines.open == ["kept"]
        await kitchen.answer("own/a", "own/b", "kept")
        kitchen.lines.close()
        assert sorted(kitchen.closed) == ["kept", "own/a", "own/b"]

    played(play)


def test_a_share_that_is_refused_as_a_whole_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "ROWS", 1)

    async def play(kitchen: Kitchen) -> None:
        kitchen.want("w", "c", "first")
        await kitchen.pass_()
        refused = kitchen.want("w", "a", "nonsense", error=DataError("no"))
        kitchen.want("w", "b", "b0")
        await kitchen.answer("first")
        assert kitchen.asked == ["first", "b0"]
        with pytest.raises(DataError):
            await (await refused)

    played(play)


def test_what_begins_to_come_has_its_time_though_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "GATHER", 0.05)

    async def play(kitchen: Kitchen) -> None:
        kitchen.want("x", "a", "x0")
        await kitchen.pass_()
        kitchen.want("y", "b", "y0")
        kitchen._open["x0"].set_result(b"")
        await asyncio.sleep(0.005)
        kitchen.want("y", "b", "y1", 1)
        await kitchen.pass_()
        assert kitchen.asked == ["x0", "y0", "y1"]

    played(play)


def test_sampling_sessions_of_one_client_take_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "ROWS", 2)

    async def play(kitchen: Kitchen) -> None:
        for number in range(9):
            kitchen.want("w", "a", f"first{number}", number, session="1")
        kitchen.want("w", "a", "second0", 0, session="2")
        await kitchen.pass_()
        assert kitchen.asked == ["first0", "second0"]

    played(play)


def test_nobody_s_sampler_is_closed_for_what_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "MOST_OPEN", 1)

    async def play(kitchen: Kitchen) -> None:
        kitchen.want("x", "a", "x0")
        await kitchen.pass_()
        await kitchen.answer("x0")
        kitchen.want("y", "b", "y0").cancel()
        await kitchen.pass_()
        assert kitchen.lines.open == ["x"]
        assert kitchen.closed == []

    played(play)
