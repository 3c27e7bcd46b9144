"""Members of an ensemble: failures that belong together, probes, and giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future as WorkFuture
from typing import Any

import numpy as np
import pytest

from adapters.fake.sampling import FakeSampler
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.artifacts.weights import Weights
from kitchen.errors import ApiError, BackendError, DataError
from kitchen.ports.future import Future, Pending
from kitchen.types import Sampled, Tokens
from stages.ensemble.members import GIVE_UP, Member, NoAnswer, RequestLimits

ANSWER = [Sampled(np.arange(2), np.zeros(2, np.float32), "stop")]


class Server(FakeTraining):
    """A server whose requests stay open until the test answers them or resets connections."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[WorkFuture[Any]] = []

    def sampler(self, weights: Any) -> Any:
        return ServerSampler(self)

    def answer(self) -> None:
        for request in self._taken():
            request.set_result(ANSWER)

    def reset(self) -> None:
        self.refuse(BackendError("connection reset"))

    def refuse(self, error: Exception) -> None:
        for request in self._taken():
            request.set_exception(error)

    def _taken(self) -> list[WorkFuture[Any]]:
        taken, self.under_way = self.under_way, []
        return taken


class ServerSampler(FakeSampler):
    """A sampler of Server."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def sample(self, prompt: Tokens, **options: Any) -> Future[Sequence[Sampled]]:
        request: WorkFuture[Sequence[Sampled]] = WorkFuture()
        self.server.under_way.append(request)
        return Pending(request)

    def close(self) -> None: ...


async def settle() -> None:
    """Let all tasks run until they wait for the server."""
    for _ in range(20):
        await asyncio.sleep(0)


async def asked(
    server: Server, requests: int, seconds: float, pause: float = 1.0
) -> list[asyncio.Task[Any]]:
    """Return the tasks of as many requests, the first of which was answered."""
    limits = RequestLimits(seconds, concurrency=16, pause=pause)
    member = Member(Weights("a", "a", "a"), ByteTokenizer(), limits)
    member.open(server, None)
    tasks = [asyncio.create_task(member.ask(np.arange(3))) for _ in range(requests)]
    await settle()
    assert len(server.under_way) == 1
    server.answer()
    await settle()
    return tasks


def test_requests_that_fail_together_count_once() -> None:
    async def scenario() -> None:
        server = Server()
        tasks = await asked(server, 1 + 16 + 8, seconds=60)
        assert len(server.under_way) == 16
        server.reset()
        await settle()
        assert len(server.under_way) == 1  # the probe
        server.answer()
        await settle()
        assert len(server.under_way) == 7
        server.answer()
        results = await asyncio.gather(*tasks)
        assert sum(isinstance(result, NoAnswer) for result in results) == 16

    asyncio.run(scenario())


def test_member_is_given_up_after_probes_that_fail() -> None:
    async def scenario() -> None:
        server = Server()
        tasks = await asked(server, 1 + 16 + 8, seconds=0.01)  # which bounds the pauses as well
        results = await asyncio.gather(*tasks)
        failed = [result for result in results if isinstance(result, NoAnswer)]
        assert [result.late for result in failed] == [True] * (16 + GIVE_UP) + [False] * 3
        assert [result.sent for result in failed] == [True] * (16 + GIVE_UP) + [False] * 3

    asyncio.run(scenario())


TOO_LONG = [
    DataError("m reads 10 tokens, and the prompt with the next token has 11"),
    ApiError("the prompt is too long", status=400),
    ApiError("the prompt is too long", status=413),
]


@pytest.mark.parametrize("error", TOO_LONG)
def test_prompts_that_are_too_long_do_not_cost_a_member(error: Exception) -> None:
    async def scenario() -> None:
        server = Server()
        tasks = await asked(server, 1 + 16 + 2, seconds=60)
        for requests in (16, 2):  # the rest goes out together, so the first were no failures
            assert len(server.under_way) == requests
            server.refuse(error)
            await settle()
        results = await asyncio.gather(*tasks)
        assert sum(isinstance(result, NoAnswer) for result in results) == 18

    asyncio.run(scenario())


@pytest.mark.parametrize("error", TOO_LONG)
def test_probe_with_a_prompt_that_is_too_long_has_not_failed(error: Exception) -> None:
    async def scenario() -> None:
        server = Server()
        tasks = await asked(server, 1 + 16 + GIVE_UP + 3, seconds=60, pause=0)
        server.reset()
        await settle()
        server.reset()  # the first probe
        await settle()
        while any(not task.done() for task in tasks):
            server.refuse(error)
            await settle()
        results = await asyncio.gather(*tasks)
        failed = [result for result in results if isinstance(result, NoAnswer)]
        assert len(failed) == len(tasks) - 1
        assert all(result.sent for result in failed)

    asyncio.run(scenario())
