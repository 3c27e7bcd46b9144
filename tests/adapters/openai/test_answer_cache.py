"""Answers that are kept: none is asked for twice, and a damaged one is asked for again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.openai.answer_cache import AnswerCache, request_key
from adapters.openai.token_server import KITCHEN
from kitchen.errors import BackendError
from tests.adapters.openai.conftest import Connect
from tests.adapters.openai.test_faults import ask, texts
from tests.support.openai_server import KEY, OpenAIServer, Send

MODEL = "openai:clever-large"


class StoppedServer(OpenAIServer):
    """A server that breaks every connection once it is stopped."""

    is_stopped = False

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if self.is_stopped:
            await self._reset({}, send)
        else:
            await super().__call__(scope, receive, send)


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "openai").glob("??/*.json"))


def test_equal_requests_are_sent_once(connect: Connect, tmp_path: Path) -> None:
    server = OpenAIServer("held")
    adapter = connect(server)
    sampler = adapter.sampler(MODEL)
    together = [ask(sampler, adapter) for _ in range(3)]
    server.held.wait(30)
    server.gate.set()
    [answer] = {texts(adapter, future.result(30))[0] for future in together}
    later = ask(adapter.sampler(MODEL), adapter).result(30)
    assert texts(adapter, later) == [answer]
    assert len(server.bodies) == 1
    ask(sampler, adapter, seed=4).result(30)
    assert len(server.bodies) == 2, "another seed is another request"
    assert KEY not in "".join(path.read_text() for path in entries(tmp_path))
    assert len(entries(tmp_path)) == 2


def test_without_a_cache_nothing_is_kept(connect: Connect, tmp_path: Path) -> None:
    server = OpenAIServer()
    adapter = connect(server, cache=False)
    for _ in range(2):
        ask(adapter.sampler(MODEL), adapter).result(30)
    assert len(server.bodies) == 2
    assert not entries(tmp_path)


def test_text_of_other_weights_is_asked_for_again(connect: Connect) -> None:
    server = OpenAIServer()
    server.owner = KITCHEN
    adapter = connect(server)
    for sha256 in ("1" * 64, "2" * 64, "1" * 64):
        server.sha256 = sha256
        for _ in range(2):
            sampler = adapter.sampler(MODEL)
            ask(sampler, adapter).result(30)
    assert len(server.bodies) == 2, "the third answer was kept"


@pytest.mark.parametrize("owner", ["tests", KITCHEN])
@pytest.mark.parametrize("status", [429, 500, None])
def test_kept_answers_need_no_server(connect: Connect, owner: str, status: int | None) -> None:
    server = StoppedServer()
    server.owner, server.sha256 = owner, "1" * 64
    adapter = connect(server, retries=0, patience=0)
    first = texts(adapter, ask(adapter.sampler(MODEL), adapter).result(30))
    server.is_stopped = status is None
    server.listing = (status or 200, {})
    sampler = adapter.sampler(MODEL)
    with capture_logs() as logs:
        answers = [texts(adapter, ask(sampler, adapter).result(30)) for _ in range(2)]
    assert answers == [first, first]
    assert [row["log_level"] for row in logs if "kept answers" in row["event"]] == ["warning"]
    with pytest.raises(BackendError):
        ask(sampler, adapter, seed=9).result(30)
    assert len(server.bodies) == 1


def truncate(text: str) -> str:
    return text[: len(text) // 2]


def change_a_word(text: str) -> str:
    return text.replace("clever", "stupid")


def wrap(text: str) -> str:
    return json.dumps([text])


@pytest.mark.parametrize("listing", [(404, {}), (403, {}), (200, {"models": []}), (200, [])])
def test_servers_without_a_list_of_models_are_used(
    connect: Connect, tmp_path: Path, listing: tuple[int, object]
) -> None:
    server = OpenAIServer()
    server.listing = listing
    adapter = connect(server)
    for _ in range(2):
        ask(adapter.sampler(MODEL), adapter).result(30)
    assert len(server.bodies) == len(entries(tmp_path)) == 1


@pytest.mark.parametrize("damage", [truncate, change_a_word, wrap])
def test_a_damaged_answer_is_asked_for_again(
    connect: Connect, tmp_path: Path, damage: Callable[[str], str]
) -> None:
    server = OpenAIServer()
    adapter = connect(server)
    first = texts(adapter, ask(adapter.sampler(MODEL), adapter).result(30))
    [path] = entries(tmp_path)
    whole = path.read_text()
    path.write_text(damage(whole))
    assert texts(adapter, ask(adapter.sampler(MODEL), adapter).result(30)) == first
    assert len(server.bodies) == 2
    assert path.read_text() == whole


def test_many_writers_and_readers_see_whole_answers(tmp_path: Path) -> None:
    key = request_key("http://one/v1", "chat/completions", {"model": "m", "seed": 1})
    seen: list[object] = []

    def work(number: int) -> None:
        cache = AnswerCache(tmp_path)
        for _ in range(40):
            cache.write(key, {"text": str(number) * 2000})
            seen.append(cache.read(key))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 160
    assert all(answer in [{"text": str(n) * 2000} for n in range(4)] for answer in seen)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_the_key_of_a_request_is_its_content() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "seed": 1}
    keys = {
        request_key(address, endpoint, fields, weights)
        for address in ("http://one/v1", "http://two/v1")
        for endpoint in ("completions", "chat/completions")
        for fields in (body, {**body, "seed": 2}, {**body, "n": 2})
        for weights in ("", "1" * 64)
    }
    assert len(keys) == 24
    again = request_key("http://one/v1", "completions", dict(reversed(body.items())))
    assert again in keys
