"""Answers of chat servers that are odd: how they end, what they lack, and how they are streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.openai.client import OpenAISampling
from kitchen.artifacts.completions import StreamingSampler
from kitchen.backend.tool_calls import ToolCall, parse_tool_calls
from kitchen.errors import BackendError
from kitchen.types import Sampled
from tests.adapters.openai.conftest import Connect
from tests.adapters.openai.test_faults import ask, texts
from tests.support.openai_server import OpenAIServer

MODEL = "openai:clever-large"


class OddServer(OpenAIServer):
    """A server that answers each request with one body, or with chunks if it is to stream."""

    def __init__(
        self, answer: Mapping[str, Any] | None = None, chunks: Sequence[Any] = (), pause: float = 0
    ) -> None:
        super().__init__()
        self._body = dict(answer or {})
        self._chunks = [each if isinstance(each, str) else json.dumps(each) for each in chunks]
        self._pause = pause  # seconds before each chunk

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._body

    async def _stream(self, body: dict[str, Any], send: Any, *, breaks: bool = False) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in (*self._chunks, "[DONE]"):
            await asyncio.sleep(self._pause)
            data = f"data: {chunk}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def answer(content: Any, reason: Any = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def chunk(content: Any, reason: Any = None, **more: Any) -> dict[str, Any]:
    delta = {"content": content, **more}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def one(adapter: OpenAISampling, **options: Any) -> tuple[str, str]:
    """Return the text of an answer, and why it ended."""
    [sampled] = ask(adapter.sampler(MODEL), adapter, **options).result(30)
    return texts(adapter, [sampled])[0], sampled.stop_reason


def stream(adapter: OpenAISampling, shown: list[int], max_tokens: int = 16) -> Sampled:
    sampler = adapter.sampler(MODEL)
    assert isinstance(sampler, StreamingSampler)
    prompt = adapter.tokenizer(MODEL).render([{"role": "user", "content": "hi"}], answer=True)
    future = sampler.stream(prompt, lambda _, token: shown.append(token), max_tokens=max_tokens)
    return future.result(30)[0]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        *((reason, "stop") for reason in ("stop", "tool_calls", "function_call", "end_turn")),
        *((reason, "stop") for reason in ("eos", "eos_token", "stop_sequence", "STOP")),
        *((reason, "length") for reason in ("length", "MAX_TOKENS", "repetition", ["length"])),
    ],
)
def test_only_known_reasons_end_a_whole_answer(
    connect: Connect, reason: Any, expected: str
) -> None:
    assert one(connect(OddServer(answer("so", reason)))) == ("so", expected)
    shown: list[int] = []
    streamed = stream(connect(OddServer(chunks=[chunk("so"), chunk(None, reason)])), shown)
    assert streamed.stop_reason == expected
    assert streamed.tokens[: len(shown)].tolist() == shown


@pytest.mark.parametrize(("key", "shown"), [("ollama", "ollama"), ("k" * 16, "***")])
def test_only_a_long_key_is_masked_in_answers(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, key: str, shown: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert one(connect(OddServer(answer(f"install {key}"))))[0] == f"install {shown}"


@pytest.mark.parametrize("reason", [None, "error", "ABORT"])
def test_a_failed_answer_is_asked_for_again(connect: Connect, reason: Any) -> None:
    server = OddServer(answer("so", reason), [chunk("so"), chunk(None, reason)])
    with pytest.raises(BackendError, match="finish_reason"):
        one(connect(server))
    assert len(server.bodies) == 3, "retries=2"
    with pytest.raises(BackendError, match=r"cannot be used.*finish_reason"):
        stream(connect(server), [])
    assert len(server.bodies) == 4, "a part of it has been shown"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (answer(""), "empty"),
        (answer(" \n"), "empty"),
        (answer(None, reasoning_content="hm"), "empty"),
        (answer([{"type": "text", "text": None}]), "empty"),
        (answer(None, refusal="no"), "refused or cut by a filter"),
        (answer("so", "repetition"), 'ended with finish_reason "repetition"'),
        (answer("so", "Content_Filter"), "refused or cut by a filter"),
    ],
)
def test_an_answer_with_a_flaw_is_reported(
    connect: Connect, body: dict[str, Any], why: str
) -> None:
    adapter = connect(OddServer(body))
    sampler = adapter.sampler(MODEL)
    [sampled] = ask(sampler, adapter).result(30)
    assert sampled.stop_reason == "length"
    assert "None" not in texts(adapter, [sampled])[0]
    with capture_logs() as logs:
        sampler.close()
    assert [(row["log_level"], row["answers"], row["why"]) for row in logs] == [("warning", 1, why)]


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("so"), {"choices": [{"index": 1, "delta": {"content": "x"}}]}],
        [chunk("so"), {"choices": [{"index": None, "delta": {"content": "x"}}]}],
        [chunk("so"), {"choices": 5}],
        [chunk("so"), {"choices": [5]}],
        [chunk("so"), {"choices": [{"index": 0, "delta": 5}]}],
        [chunk("so"), {"error": {"message": "overloaded"}}],
        [chunk("so"), '{"choices": [{"ind'],
        [chunk("so"), chunk(5)],
        [chunk("so"), chunk(None, tool_calls=5)],
        [chunk("so"), chunk(None, tool_calls=[5])],
        [chunk("so", "stop"), chunk("more")],
        [chunk("so")],
        [],
    ],
)
def test_a_malformed_stream_is_a_backend_error(connect: Connect, chunks: list[Any]) -> None:
    with pytest.raises(BackendError, match="an answer that cannot be used") as caught:
        stream(connect(OddServer(chunks=chunks)), [])
    assert caught.value.exit_code == 4


def test_chunks_without_choices_are_skipped(connect: Connect) -> None:
    usage = {"completion_tokens": 1}
    last = {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}
    chunks = [
        {"choices": []},
        chunk("so"),
        last,
        {"choices": None, "usage": usage},
        {"usage": usage},
    ]
    adapter = connect(OddServer(chunks=chunks))
    assert texts(adapter, [stream(adapter, [])]) == ["so"]


def test_streamed_text_is_put_together(connect: Connect) -> None:
    halves = [chunk("a \ud83d"), chunk("\ude00 b\u2028 \ud83d", "stop")]
    adapter, shown = connect(OddServer(chunks=halves)), []  # type: ignore[var-annotated]
    sampled = stream(adapter, shown)
    assert texts(adapter, [sampled]) == ["a \U0001f600 b\u2028 \ufffd"]
    assert sampled.tokens[:-1].tolist() == shown


def test_streamed_tool_calls_are_part_of_the_text(connect: Connect) -> None:
    parts = [
        {"index": 0, "function": {"name": "add", "arguments": '{"a": 1,'}},
        {"index": 1, "function": {"name": "now", "arguments": ""}},
        {"index": 0, "function": {"arguments": ' "b": 2}'}},
    ]
    chunks = [chunk("wait"), *(chunk(None, tool_calls=[part]) for part in parts)]
    adapter, shown = connect(OddServer(chunks=[*chunks, chunk(None, "tool_calls")])), []  # type: ignore[var-annotated]
    sampled = stream(adapter, shown)
    [text] = texts(adapter, [sampled])
    assert text.startswith("wait\n")
    assert parse_tool_calls(text) == [ToolCall("add", {"a": 1, "b": 2}), ToolCall("now", {})]
    assert sampled.tokens[:-1].tolist() == shown


@pytest.mark.parametrize(
    "usage", [None, *({"completion_tokens": each} for each in ("10000", 0, 1e4))]
)
def test_an_ignored_limit_is_found_without_usage(connect: Connect, usage: Any) -> None:
    long = "word " * 1000
    with pytest.raises(BackendError, match="limit_field"):
        one(connect(OddServer({**answer(long), "usage": usage})), max_tokens=16)
    with pytest.raises(BackendError, match="limit_field"):
        stream(connect(OddServer(chunks=[chunk(long), chunk(None, "stop")])), [])
    assert one(connect(OddServer(answer(long))), max_tokens=400)[1] == "stop"


def test_a_dense_text_within_its_limit_is_whole(connect: Connect) -> None:
    dense = answer("=" * 8000)
    assert one(connect(OddServer({**dense, "usage": {"completion_tokens": 30}})))[1] == "stop"
    with pytest.raises(BackendError, match="limit_field"):
        one(connect(OddServer(dense)))


def test_the_timeout_of_a_stream_is_that_of_a_piece(connect: Connect) -> None:
    chunks = [*map(chunk, "abcdef"), chunk(None, "stop")]
    adapter = connect(OddServer(chunks=chunks, pause=0.15), timeout=0.5)
    assert texts(adapter, [stream(adapter, [])]) == ["abcdef"]
    with pytest.raises(BackendError, match=r"sampling\.timeout"):
        stream(connect(OddServer(chunks=chunks, pause=0.15), timeout=0.1, retries=0), [])
