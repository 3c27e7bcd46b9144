"""Faults of a server: each ends in an answer, or in an error with the promised exit code."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from adapters.fake.hub import FakeHub
from adapters.openai.answer_cache import AnswerCache
from adapters.openai.client import OpenAISampling
from adapters.openai.connection import EXIT_GRACE, Connection, Request, Requester
from adapters.openai.hold_back import HoldBack
from adapters.openai.retries import Limits
from kitchen.errors import ApiError, BackendError, ConfigError, RunFailed
from kitchen.ports.sampling import Sampler
from kitchen.types import Sampled
from tests.adapters.openai.conftest import Connect
from tests.support.openai_server import KEY, MountedServers, OpenAIServer
from tests.support.polling import wait_until


def ask(sampler: Sampler, adapter: OpenAISampling, text: str = "hello", **options: Any) -> Any:
    prompt = adapter.tokenizer("openai:clever-large").render(
        [{"role": "user", "content": text}], answer=True
    )
    return sampler.sample(prompt, **{"max_tokens": 32, "seed": 3, **options})


def texts(adapter: OpenAISampling, sampled: list[Sampled]) -> list[str]:
    tokenizer = adapter.tokenizer("openai:clever-large")
    return [tokenizer.decode(one.tokens) for one in sampled]


PASSING = [
    "busy",
    "failing",
    "unavailable",
    "reset",
    "truncated",
    "half_json",
    "deep",
    "no_choices",
    "empty_choice",
]


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_costs_a_retry(connect: Connect, fault: str) -> None:
    server = OpenAIServer(fault)
    adapter = connect(server)
    sampler = adapter.sampler("openai:clever-large")
    [sampled] = ask(sampler, adapter).result(30)
    assert texts(adapter, [sampled]) == ["clever-large on 'hello' with seed 3, choice 0"]
    assert sampled.stop_reason == "stop"
    assert np.isnan(sampled.logprobs).all()
    assert len(server.bodies) == 2
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.parametrize("fault", ["failing", "reset", "half_json", "deep", "empty_choice"])
def test_a_fault_that_stays_is_a_backend_error(connect: Connect, fault: str) -> None:
    server = OpenAIServer(*[fault] * 9)
    adapter = connect(server)
    sampler = adapter.sampler("openai:clever-large")
    with pytest.raises(BackendError) as caught:
        ask(sampler, adapter).result(30)
    assert caught.value.exit_code == 4
    assert len(server.bodies) == 3, "retries=2"


@pytest.mark.parametrize(
    ("fault", "status"),
    [("no_key", 401), ("forbidden", 403), ("invalid", 400), ("no_credit", 429)],
)
def test_a_refused_request_is_not_repeated(connect: Connect, fault: str, status: int) -> None:
    server = OpenAIServer(fault)
    adapter = connect(server)
    with pytest.raises(ApiError) as caught:
        ask(adapter.sampler("openai:clever-large"), adapter).result(30)
    assert (caught.value.status, caught.value.exit_code) == (status, 4)
    assert len(server.bodies) == 1
    assert server.keys == [KEY]
    assert KEY not in f"{caught.value} {caught.value.body}"


def test_an_unknown_model_gets_a_suggestion(connect: Connect) -> None:
    adapter = connect(OpenAIServer())
    with pytest.raises(BackendError, match="'clever-large'"):
        ask(adapter.sampler("openai:clever-lrge"), adapter).result(30)


@pytest.mark.parametrize(("fault", "seconds"), [("busy_for_seconds", 1), ("busy_until", 1)])
def test_a_refusal_for_now_holds_all_requests_back(
    connect: Connect, fault: str, seconds: int
) -> None:
    server = OpenAIServer(fault)
    adapter = connect(server, concurrency=4)
    samplers = [adapter.sampler(f"openai:{name}") for name in ("clever-large", "clever-small")]
    first = ask(samplers[0], adapter, "first")
    wait_until(lambda: server.bodies)
    others = [ask(samplers[at % 2], adapter, f"other {at}") for at in range(12)]
    results = [future.result(30) for future in [first, *others]]
    assert all(len(result) == 1 for result in results)
    late = [time for time in server.times if time - server.times[0] >= 0.9 * seconds]
    assert len(late) >= len(others) - 3, "at most 3 were under way already"


def test_a_long_refusal_is_an_error_at_once(connect: Connect) -> None:
    adapter = connect(OpenAIServer("busy_for_a_day"), patience=5)
    with pytest.raises(ApiError, match="86400") as caught:
        ask(adapter.sampler("openai:clever-large"), adapter).result(30)
    assert caught.value.status == 429


def test_the_time_in_an_error_is_readable(connect: Connect) -> None:
    adapter = connect(OpenAIServer("busy_without_end"))
    with pytest.raises(ApiError) as caught:
        ask(adapter.sampler("openai:clever-large"), adapter).result(30)
    assert len(str(caught.value)) < 400


def test_slow_answers_do_not_use_up_patience(connect: Connect) -> None:
    server = OpenAIServer("held", "busy")
    adapter = connect(server, timeout=1.0, patience=0.9)
    [sampled] = ask(adapter.sampler("openai:clever-large"), adapter).result(30)
    assert sampled.stop_reason == "stop"
    assert len(server.bodies) == 3


def test_a_pause_without_length_is_doubled() -> None:
    now = 0.0
    hold_back = HoldBack(0.5, lambda: now)
    pauses = []
    for seconds in (0.0, None, 0.0, 3.0, 0.0):
        hold_back.refuse(seconds)
        pauses.append(hold_back.seconds)
        now += hold_back.seconds
    assert pauses == [0.5, 1.0, 2.0, 3.0, 4.0]


def test_no_backoff_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"sampling\.backoff is 0, .*above 0"):
        OpenAISampling(FakeHub(), backoff=0)


def test_a_slow_answer_is_asked_for_again(connect: Connect) -> None:
    server = OpenAIServer("held")
    adapter = connect(server, timeout=0.3)
    [sampled] = ask(adapter.sampler("openai:clever-large"), adapter).result(30)
    assert sampled.stop_reason == "stop"
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("fault", "text"),
    [("refusal", "I cannot help with that."), ("filtered", "so"), ("no_content", "")],
)
def test_a_refused_or_cut_answer_is_incomplete(connect: Connect, fault: str, text: str) -> None:
    adapter = connect(OpenAIServer(fault))
    sampler = adapter.sampler("openai:clever-large")
    [sampled] = ask(sampler, adapter).result(30)
    assert texts(adapter, [sampled]) == [text]
    assert sampled.stop_reason == "length"
    sampler.close()


def test_missing_choices_are_asked_for_with_other_seeds(connect: Connect) -> None:
    server = OpenAIServer("fewer", "fewer")
    adapter = connect(server)
    sampled = ask(adapter.sampler("openai:clever-large"), adapter, count=4).result(30)
    assert [body["n"] for body in server.bodies] == [4, 3, 2]
    assert len({body["seed"] for body in server.bodies}) == 3
    assert len(set(texts(adapter, sampled))) == 4


def test_an_ignored_token_limit_is_an_error(connect: Connect) -> None:
    server = OpenAIServer("too_long")
    adapter = connect(server)
    with pytest.raises(BackendError, match="limit_field"):
        ask(adapter.sampler("openai:clever-large"), adapter).result(30)
    assert len(server.bodies) == 1


def test_answers_in_flight_survive_the_failure_of_one(connect: Connect) -> None:
    server = OpenAIServer("held", "no_key", "held")
    adapter = connect(server, concurrency=2)
    sampler = adapter.sampler("openai:clever-large")
    good = ask(sampler, adapter, "good")
    server.held.wait(30)
    with pytest.raises(ApiError):
        ask(sampler, adapter, "bad").result(30)
    sent, queued = ask(sampler, adapter, "sent"), ask(sampler, adapter, "queued")
    wait_until(lambda: len(server.bodies) == 3)
    sampler.close()
    server.gate.set()
    with pytest.raises(RunFailed):
        queued.result(30)
    answers = texts(adapter, [*good.result(30), *sent.result(30)])
    resumed = adapter.sampler("openai:clever-large")
    futures = [ask(resumed, adapter, text) for text in ("good", "sent")]
    assert texts(adapter, [future.result(30)[0] for future in futures]) == answers
    assert len(server.bodies) == 3, "nothing is asked for twice"


def test_cancelling_an_equal_request_leaves_the_other(connect: Connect) -> None:
    server = OpenAIServer("held")
    adapter = connect(server, concurrency=1)
    first, second = (adapter.sampler("openai:clever-large") for _ in range(2))
    blocking = ask(first, adapter, "blocking")
    server.held.wait(30)
    kept, cancelled = ask(first, adapter, "equal"), ask(second, adapter, "equal")
    cancelled.cancel()
    with pytest.raises(RunFailed):
        cancelled.result(30)
    second.close()
    server.gate.set()
    assert [len(future.result(30)) for future in (blocking, kept)] == [1, 1]


def test_a_request_equal_to_a_cancelled_one_is_sent(connect: Connect) -> None:
    server = OpenAIServer("held")
    adapter = connect(server)
    sampler = adapter.sampler("openai:clever-large")
    cancelled = ask(sampler, adapter)
    server.held.wait(30)
    cancelled.cancel()
    equal = [ask(sampler, adapter) for _ in range(3)]
    assert len({texts(adapter, future.result(30))[0] for future in equal}) == 1
    assert len(server.bodies) == 2


def test_exit_waits_for_no_request_that_is_held_back(
    mounted: tuple[MountedServers, str], tmp_path: Path
) -> None:
    server = OpenAIServer("busy_for_a_day")
    servers, url = mounted
    limits = Limits(patience=1e6)
    cache = AnswerCache(tmp_path)
    connection = Connection(f"{url}{servers.mount(server)}", "OPENAI_API_KEY", limits, cache)
    request = Request("completions", {"model": "m", "prompt": "hi"}, Requester(), None)
    future = connection.submit(lambda: connection.post(request, lambda answer: answer))
    wait_until(lambda: connection.seconds_held_back > 0)
    exit_handler = Thread(target=connection.finish, daemon=True)
    exit_handler.start()
    exit_handler.join(EXIT_GRACE / 2)
    assert not exit_handler.is_alive()
    future.cancel()


@pytest.mark.parametrize("port", ["99999", "0", "x"])
def test_an_address_that_cannot_be_used_is_a_config_error(port: str) -> None:
    adapter = OpenAISampling(FakeHub(), base_url=f"http://127.0.0.1:{port}/v1")
    with pytest.raises(ConfigError, match="65535"):
        adapter.find("openai:m")
    with pytest.raises(ConfigError, match="65535"):
        ask(adapter.sampler("openai:m"), adapter).result(30)


@pytest.mark.parametrize("key", ["sk-schlüssel", "sk-one two", "sk-\x07bell"])
def test_a_key_that_is_none_is_a_config_error(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    adapter = connect(OpenAIServer())
    for ask_for in (adapter.find, lambda model: ask(adapter.sampler(model), adapter).result(30)):
        with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
            ask_for("openai:clever-large")
        assert key not in str(caught.value)
