"""The OpenAI API without streaming: models, completions, chats, keys and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.tokenizer import END, ByteTokenizer
from adapters.fake.training import FakeTraining
from adapters.server.limits import Limits
from adapters.server.openai.errors import OpenAIError
from adapters.server.openai.fields import IGNORED, NEUTRAL
from adapters.server.openai.prompts import completion_prompts
from adapters.server.openai.requests import CompletionRequest
from adapters.server.openai.weights import ServedWeights
from adapters.server.serve import TinkerServer
from kitchen.types import Checkpoint, Tokens
from tests.adapters.server.openai.conftest import OpenAIClient
from tests.support.tinker_server import KEY, MODELS, application

ROOT = Path(__file__).resolve().parents[4]
HELLO = ByteTokenizer().encode("hello", special=True)


def test_models_are_listed_under_both_paths(client: OpenAIClient) -> None:
    for prefix in ("/v1", "/oai/api/v1"):
        listed = client.http.get(f"{prefix}/models").json()
        assert [model["id"] for model in listed["data"]] == ["tiny", "other"]
        tiny = client.http.get(f"{prefix}/models/tiny").json()
        assert tiny["max_model_len"] == 4096
        assert tiny["sha256"] == FakeTraining().sha256("tiny")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"authorization": "", "x-api-key": KEY}, 200),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": ""}, 401),
    ],
)
def test_key_is_sent_as_bearer(client: OpenAIClient, headers: dict[str, str], status: int) -> None:
    answer = client.http.get("/v1/models", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_completions_are_those_of_the_sampler(client: OpenAIClient) -> None:
    answer = client.complete("hello", n=2, temperature=0.7, top_p=0.9)
    sampled = (
        FakeTraining()
        .sampler("tiny")
        .sample(HELLO, count=2, max_tokens=8, temperature=0.7, top_p=0.9, seed=1)
    )
    texts = [ByteTokenizer().decode(one.tokens) for one in sampled.result()]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 16, "total_tokens": 22}
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}


def test_all_forms_of_prompts_mean_the_same(client: OpenAIClient) -> None:
    [one] = client.complete("hello")["choices"]
    ids = HELLO.tolist()
    for prompt in (["hello"], ids, [ids]):
        assert client.complete(prompt)["choices"] == [one]
    both = client.complete([ids, [5]], n=2)["choices"]
    assert [choice["index"] for choice in both] == [0, 1, 2, 3]
    assert both[0] == one
    assert both[2]["text"] == client.complete([5])["choices"][0]["text"]


def test_echo_scores_the_prompt_without_sampling(client: OpenAIClient) -> None:
    ids = HELLO.tolist()
    [choice] = client.complete(ids, max_tokens=0, echo=True, logprobs=2, prompt_logprobs=1)[
        "choices"
    ]
    sampler = FakeTraining().sampler("tiny")
    expected = sampler.logprobs(HELLO).result()
    top_ids, top = sampler.top_logprobs(HELLO, 2).result()
    scores = choice["logprobs"]
    assert choice["text"] == "hello"
    assert scores["tokens"] == ["<|end|>", *"hello"]
    assert scores["text_offset"] == [0, 0, 1, 2, 3, 4]
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    np.testing.assert_allclose(scores["token_logprobs"][1:], expected[1:], rtol=1e-6)
    assert max(scores["top_logprobs"][3].values()) == pytest.approx(top[3][0])
    first, second, *_ = choice["prompt_logprobs"]
    assert first is None
    assert second[str(top_ids[1][0])]["rank"] == 1
    assert second[str(ord("h"))]["logprob"] == pytest.approx(expected[1])


def test_token_ids_of_prompt_and_completion(client: OpenAIClient) -> None:
    fields: dict[str, Any] = {"n": 2, "stop_token_ids": [101], "seed": 3}
    choices = client.complete("hello", return_token_ids=True, **fields)["choices"]
    sampled = (
        FakeTraining().sampler("tiny").sample(HELLO, count=2, max_tokens=8, stop=[101], seed=3)
    )
    assert [choice["token_ids"] for choice in choices] == [
        one.tokens.tolist() for one in sampled.result()
    ]
    assert [choice["prompt_token_ids"] for choice in choices] == [HELLO.tolist()] * 2
    streamed = client.events("completions", prompt="hello", return_token_ids=True, **fields)
    assert sorted(chunk["choices"][0]["token_ids"] for chunk in streamed) == sorted(
        choice["token_ids"] for choice in choices
    )
    assert "token_ids" not in client.complete("hello")["choices"][0]


@pytest.mark.parametrize("temperature", [0, 0.5, 1])
def test_logprobs_are_those_of_the_model(client: OpenAIClient, temperature: float) -> None:
    answer = client.chat("hello", logprobs=True, top_logprobs=3, temperature=temperature)
    [choice] = answer["choices"]
    alone = client.chat("hello", logprobs=True, temperature=temperature)["choices"][0]
    assert choice["message"] == alone["message"]
    for entry, other in zip(
        choice["logprobs"]["content"], alone["logprobs"]["content"], strict=True
    ):
        assert len(entry["top_logprobs"]) == 3
        assert entry["logprob"] == pytest.approx(other["logprob"], abs=1e-6)
        assert entry["logprob"] <= entry["top_logprobs"][0]["logprob"]
    if temperature == 0:
        assert (
            choice["logprobs"]["content"][0]["top_logprobs"][0]["token"]
            == (choice["logprobs"]["content"][0]["token"])
        )


def test_stop_string_ends_the_text_and_is_not_in_it(client: OpenAIClient) -> None:
    whole = client.complete("hello", max_tokens=400)["choices"][0]["text"]
    stop = next(character for character in whole[5:] if character.isascii())
    [choice] = client.complete("hello", max_tokens=400, stop=[stop, "never there"])["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("names", [("max_tokens",), ("max_completion_tokens",)])
def test_chat_counts_the_rendered_prompt(client: OpenAIClient, names: tuple[str]) -> None:
    system = {"role": "developer", "content": "Be brief."}
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}],
    }
    answer = client.post(
        "chat/completions", model="tiny", messages=[system, parts], **dict.fromkeys(names, 5)
    ).json()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    rendered = ByteTokenizer().render(messages, answer=True)
    assert answer["usage"]["prompt_tokens"] == len(rendered)
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["choices"][0]["message"]["role"] == "assistant"


CHAT = {"messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"role": "assistant", "content": ""}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat/completions", {**CHAT, "response_format": {"type": "json_schema"}}, "response_format"),
    ("chat/completions", {**CHAT, "logit_bias": {"5": 1}}, "logit_bias"),
    ("chat/completions", {**CHAT, "presence_penalty": 0.5}, "presence_penalty"),
    ("chat/completions", {**CHAT, "tool_choice": "required"}, "tool_choice"),
    ("chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {**CHAT, "temperatur": 0.5}, "temperatur"),
    ("chat/completions", {**CHAT, "temperature": -1}, "temperature"),
    ("chat/completions", {**CHAT, "n": 0}, "n"),
    ("chat/completions", {**CHAT, "max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ("chat/completions", {**CHAT, "chat_template_kwargs": {"thinking": 1}}, "messages"),
    ("chat/completions", {**CHAT, "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ("chat/completions", {}, "messages"),
    ("chat/completions", {"messages": [IMAGE]}, "messages[0].content[0]"),
    ("chat/completions", {"messages": [{"role": "usr", "content": ""}]}, "messages[0].role"),
    ("completions", {"prompt": "hello", "suffix": "x"}, "suffix"),
    ("completions", {"prompt": "hello", "best_of": 2}, "best_of"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": [2**70]}, "prompt"),
    ("completions", {"prompt": 5}, "prompt"),
    ("completions", {"prompt": ["x", 5]}, "prompt"),
    ("completions", {"prompt": [[]]}, "prompt"),
    ("completions", {"prompt": "x", "stop": [5]}, "stop"),
    ("completions", {"prompt": "x", "temperature": "1"}, "temperature"),
    ("completions", {"prompt": "x", "seed": -(2**64)}, "seed"),
    ("completions", {"prompt": [END, -1]}, "prompt"),
    ("completions", {"prompt": "x" * 5000}, "prompt"),
    ("completions", {"prompt": ["x"] * 3000, "n": 2}, "prompt"),
    ("completions", {"prompt": "x", "stop": [""]}, "stop"),
    ("completions", {"prompt": "x", "stop": ["a"], "stop_token_ids": [1]}, "stop_token_ids"),
    ("completions", {"prompt": "x", "stop": ["a"] * 65}, "stop"),
    ("completions", {"prompt": "x", "stop": "a" * 1001}, "stop"),
    ("completions", {"prompt": "x", "stop_token_ids": [2**70]}, "stop_token_ids"),
    ("completions", {"prompt": "x", "temperature": 10**400}, "temperature"),
    ("completions", {"prompt": "x", "temperature": math.inf}, "temperature"),
    ("completions", {"prompt": "x", "temperature": math.nan}, "temperature"),
    ("completions", {"prompt": "x", "top_p": math.nan}, "top_p"),
    ("completions", {"prompt": "x", "top_k": 2**70}, "top_k"),
    ("completions", {"prompt": ["x", "\ud83d"]}, "prompt"),
    ("completions", {"prompt": "x", "\ud83d": 1}, r"\ud83d"),
    ("completions", {"prompt": "x", "user": "\ud83d"}, "user"),
    ("chat/completions", {"messages": [{"role": "user", "content": "\ude00"}]}, "messages"),
    ("chat/completions", {"messages": [{"role": "user", "\ude00": "x"}]}, "messages"),
    ("chat/completions", {"messages": [{**ANSWER, "tool_calls": 5}]}, "messages[0].tool_calls"),
    ("chat/completions", {"messages": [{**ANSWER, "tool_calls": "x"}]}, "messages[0].tool_calls"),
    ("chat/completions", {"messages": [{**ANSWER, "name": [1]}]}, "messages[0].name"),
]


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED)
def test_refusals_name_the_field(
    client: OpenAIClient, path: str, fields: dict[str, Any], param: str
) -> None:
    body = json.dumps({"model": "tiny", **fields})  # also NaN, which httpx does not send
    answer = client.http.post(f"/v1/{path}", content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] in (param, f"{param}.0")
    assert error["type"] == "invalid_request_error"


class Faulty(FakeTraining):
    """A training backend whose samplers cannot be opened, by a mistake in the program."""

    def sampler(self, weights: str | Checkpoint) -> Any:
        raise KeyError("/home/me/secret")


@pytest.mark.parametrize("stream", [True, False])
def test_faults_are_errors_that_pages_can_read(stream: bool) -> None:
    blobs = FakeBlobs()
    server = TinkerServer(Faulty(blobs), FakeHub(MODELS), blobs)
    client = OpenAIClient(server.app(["tiny"], {}, KEY, cors=["*"]))
    body = {"model": "tiny", "prompt": "x", "stream": stream}
    answer = client.http.post("/v1/completions", json=body, headers={"origin": "http://a.example"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    assert answer.headers["access-control-allow-origin"] == "*"


def test_unsupported_fields_are_in_the_docs() -> None:
    page = (ROOT / "docs/openai-api.md").read_text()
    assert [name for name in (*NEUTRAL, *IGNORED) if f"`{name}" not in page] == []


def test_text_that_cannot_fit_is_not_encoded() -> None:
    class Refusing(ByteTokenizer):
        def encode(self, text: str, *, special: bool = False) -> Tokens:
            assert len(text) <= 4096
            return super().encode(text, special=special)

    weights = ServedWeights("m", "m", Refusing(), "m", 4096, {}, chat=True)
    fields: list[dict[str, Any]] = [{"prompt": "x" * 10**6}, {"prompt": ["x", "x" * 5000]}]
    for long in fields:
        with pytest.raises(OpenAIError, match="characters, which cannot fit"):
            completion_prompts(CompletionRequest(model="m", **long), weights)
    [prompt] = completion_prompts(CompletionRequest(model="m", prompt="x" * 4096), weights)
    assert len(prompt.tokens) == 4097
    assert completion_prompts(CompletionRequest(model="m", prompt="x"), weights)[0].text == "x"


def test_long_conversations_are_measured_as_rendered(client: OpenAIClient) -> None:
    long = [{"role": "user", "content": "x" * 3000}] * 2
    answer = client.post("chat/completions", model="tiny", messages=long)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "characters" in answer.json()["error"]["message"]


def test_offsets_are_those_of_whole_characters(client: OpenAIClient) -> None:
    [choice] = client.complete("a😀b", max_tokens=0, echo=True, logprobs=0)["choices"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2]
    [both] = client.complete("a😀b", max_tokens=1, echo=True, logprobs=0)["choices"]
    assert both["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 3]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_stop_token_is_not_in_the_text(
    client: OpenAIClient, stream: bool, logprobs: int | None
) -> None:
    sampler = FakeTraining().sampler("tiny")
    [whole] = sampler.sample(HELLO, max_tokens=40, seed=1).result()
    drawn = whole.tokens.tolist()
    place = next(place for place in range(3, 40) if drawn[place] not in drawn[:place])
    fields = {"max_tokens": 40, "stop_token_ids": [drawn[place]], "logprobs": logprobs}
    if stream:
        parts = client.events("completions", prompt="hello", **fields)
        choices = [choice for part in parts for choice in part["choices"]]
    else:
        choices = client.complete("hello", **fields)["choices"]
    text = "".join(choice["text"] for choice in choices)
    assert text == ByteTokenizer().decode(drawn[:place])
    assert choices[-1]["finish_reason"] == "stop"


def test_nulls_and_negative_seeds_are_accepted(client: OpenAIClient) -> None:
    function = {"name": "timer", "description": None, "parameters": None, "strict": None}
    tools = [{"type": "function", "function": function}]
    bare = [{"type": "function", "function": {"name": "timer"}}]
    options = {"include_usage": None}
    answer = client.chat("hello", tools=tools, stream_options=options, seed=-1)
    assert answer["choices"] == client.chat("hello", tools=bare, seed=2**63 - 1)["choices"]


def test_harmless_and_neutral_fields_are_accepted(client: OpenAIClient) -> None:
    plain = client.chat("hello")["choices"]
    fields = {"user": "me", "store": True, "metadata": {"a": "b"}, "presence_penalty": 0.0}
    more = {"response_format": {"type": "text"}, "logit_bias": None, "tool_choice": "none"}
    assert client.chat("hello", **fields, **more)["choices"] == plain


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tin", "did you mean 'tiny'"),
        ("run:basil", "there is no run 'basil'"),
        ("run:basil@bset", "did you mean 'best'"),
        ("tinker://nothing/weights/x", "there are no weights"),
        ("path:/etc", "is not served here"),
        ("basil", "is not served here"),
        ("run:" + "a" * 300, "too long"),
        ("model:" + "é" * 120, "no model"),
        ("tinker://s/weights/" + "a" * 300, "there are no weights"),
        ("model:herb", "there is no model 'herb'"),
    ],
)
def test_unknown_models_get_404(client: OpenAIClient, name: str, words: str) -> None:
    for answer in (
        client.post("completions", model=name, prompt="x"),
        client.http.get(f"/v1/models/{name}"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 5000])
def test_bodies_that_are_no_objects_are_refused(client: OpenAIClient, body: bytes) -> None:
    answer = client.http.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_no_name_leaves_the_store(client: OpenAIClient) -> None:
    for name in ("../../etc", "run:../etc", "run:..", "tinker://../weights/x", "\0"):
        assert client.post("completions", model=name, prompt="x").status_code == 404


def test_clients_with_too_many_prompts_must_wait() -> None:
    blobs = FakeBlobs()
    limits = Limits(unfetched_results=2)
    client = OpenAIClient(application(FakeTraining(blobs), blobs, limits=limits))
    with client.http:
        answer = client.post("completions", model="tiny", prompt=["a", "b", "c"])
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        for _ in range(3):  # those that have ended do not count
            client.complete(["a", "b"])


def test_unknown_paths_have_errors_of_the_same_form(client: OpenAIClient) -> None:
    answer = client.http.get("/v1/embeddings")
    assert answer.status_code == 404
    assert "/v1/embeddings" in answer.json()["error"]["message"]
