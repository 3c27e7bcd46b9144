"""Answers of servers of token ids that cannot be right: they are refused, and never kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from adapters.fake.hub import FakeHub
from adapters.fake.tokenizer import END, END_OF_TURN, ByteTokenizer
from adapters.openai.client import OpenAISampling
from adapters.openai.token_server import KITCHEN
from kitchen.errors import BackendError
from kitchen.ports import Tokenizer
from kitchen.types import Tokens
from tests.support.openai_server import KEY, Body, MountedServers
from tests.support.token_app import Change, TokenApp

PROMPT = np.array([70, 71, 72])
NAN, INF = float("nan"), float("inf")
ConnectIds = Callable[..., OpenAISampling]


class ByteOpenAI(OpenAISampling):
    """An adapter whose server reads bytes."""

    read_by: type[Tokenizer] = ByteTokenizer

    def tokenizer(self, model: str) -> Tokenizer:
        return self.read_by()


class NamedTokenizer(ByteTokenizer):
    """Reads the names of special tokens as those tokens, as tokenizers of real models do."""

    names: ClassVar = {"<|end|>": END, "<|end_of_turn|>": END_OF_TURN}

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        parts = re.split("(<[|]end[|]>|<[|]end_of_turn[|]>)", text)
        return np.concatenate([self._ids(part) for part in parts])

    def _ids(self, part: str) -> Tokens:
        if part in self.names:
            return np.array([self.names[part]])
        return super().encode(part)


class OtherNamesTokenizer(NamedTokenizer):
    """Has its end tokens the other way round."""

    names: ClassVar = {"<|end|>": END_OF_TURN, "<|end_of_turn|>": END}


@pytest.fixture
def connect_ids(mounted: tuple[MountedServers, str]) -> ConnectIds:
    servers, url = mounted
    addresses: dict[int, str] = {}

    def connect(app: TokenApp, **settings: Any) -> OpenAISampling:
        if id(app) not in addresses:
            addresses[id(app)] = f"{url}{servers.mount(app)}"
        fixed = {"tokenizer": "tiny", "backoff": 0.01, "retries": 1}
        return ByteOpenAI(FakeHub(), **{"base_url": addresses[id(app)], **fixed, **settings})

    return connect


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "openai").rglob("*.json"))


def scores_with(value: Any) -> Change:
    def change(choice: Body, body: Body) -> None:
        choice["prompt_logprobs"][1] = {"71": {"logprob": value, "rank": 1}}

    return change


def fields(**changed: Any) -> Change:
    return lambda choice, body: choice.update(changed)


def sampled_scores(*values: Any) -> Change:
    return fields(logprobs={"token_logprobs": list(values)})


@pytest.mark.parametrize("value", [NAN, INF, -INF, 3.5, True, "-0.5", None, 10**400, -1e300])
def test_a_value_that_is_no_score_is_refused(
    connect_ids: ConnectIds, tmp_path: Path, value: Any
) -> None:
    app = TokenApp(scores_with(value))
    sampler = connect_ids(app).sampler("openai:m")
    with pytest.raises(BackendError, match="cannot be used"):
        sampler.logprobs(PROMPT).result(30)
    assert len(app.bodies) == 2, "it was asked for again"
    assert not entries(tmp_path)
    app.change = scores_with(-2.0)
    np.testing.assert_array_equal(sampler.logprobs(PROMPT).result(30), [np.nan, -2, -1])


ODD_COMPLETIONS: dict[str, Change] = {
    "score NaN": sampled_scores(NAN, -1),
    "score true": sampled_scores(True, -1),
    "score above 0": sampled_scores(5.0, -1),
    "score too small": sampled_scores(-INF, -1),
    "number of scores": sampled_scores(-1),
    "too many tokens": fields(
        token_ids=[65] * 5, logprobs={"token_logprobs": [-1.0] * 5}, finish_reason="length"
    ),
    "negative id": fields(token_ids=[66, -3]),
    "id outside the vocabulary": fields(token_ids=[66, 1_000_000]),
    "id beyond 64 bits": fields(token_ids=[66, 10**30]),
    "reason is a list": fields(finish_reason=["stop"]),
    "prompt beyond 64 bits": fields(prompt_token_ids=[10**30, 71, 72]),
}


@pytest.mark.parametrize("change", ODD_COMPLETIONS.values(), ids=ODD_COMPLETIONS.keys())
def test_a_completion_that_cannot_be_right_is_refused(
    connect_ids: ConnectIds, tmp_path: Path, change: Change
) -> None:
    app = TokenApp(change)
    with pytest.raises(BackendError, match="cannot be used"):
        connect_ids(app).sampler("openai:m").sample(PROMPT, max_tokens=4).result(30)
    assert len(app.bodies) == 2
    assert not entries(tmp_path)


@pytest.mark.parametrize("entry", [3, {"71": -1.0}, {"72": {"logprob": -1}}, {"71": {}}, None])
def test_scores_of_another_form_are_refused(connect_ids: ConnectIds, entry: Any) -> None:
    app = TokenApp(fields(prompt_logprobs=[None, entry, entry]))
    with pytest.raises(BackendError, match="cannot be used"):
        connect_ids(app).sampler("openai:m").logprobs(PROMPT).result(30)


@pytest.mark.parametrize("value", [None, -INF, -9999.0, -20_000])
def test_impossible_tokens_may_be_among_the_likeliest(connect_ids: ConnectIds, value: Any) -> None:
    def entry(token: str) -> Body:
        return {token: {"logprob": -0.5, "rank": 1}, "99": {"logprob": value, "rank": 2}}

    app = TokenApp(fields(prompt_logprobs=[None, entry("71"), entry("72")]))
    ids, values = connect_ids(app).sampler("openai:m").top_logprobs(PROMPT, 2).result(30)
    assert ids[1:].tolist() == [[71, 99], [72, 99]]
    assert values[1:].tolist() == [[-0.5, -9999.0]] * 2


def test_the_tokenizer_is_compared_with_the_server_of_now(connect_ids: ConnectIds) -> None:
    app = TokenApp()
    connect_ids(app).sampler("openai:m").logprobs(PROMPT).result(30)
    app.encode = lambda text: ByteTokenizer().encode(text) + 1  # another model behind the name
    later = connect_ids(app)
    with pytest.raises(BackendError, match="another tokenizer"):
        later.online("openai:m")
    with pytest.raises(BackendError, match="another tokenizer"):
        later.sampler("openai:m").logprobs(PROMPT).result(30)


@pytest.mark.parametrize("other", [ByteTokenizer, OtherNamesTokenizer])
def test_special_tokens_are_compared_as_well(
    connect_ids: ConnectIds, other: type[ByteTokenizer]
) -> None:
    app = TokenApp()
    app.encode = NamedTokenizer().encode
    adapter = connect_ids(app)
    assert isinstance(adapter, ByteOpenAI)
    adapter.read_by = NamedTokenizer
    assert "has m" in adapter.online("openai:m")
    adapter.read_by = other
    with pytest.raises(BackendError, match=r"another tokenizer.*<\|end"):
        adapter.online("openai:m")


def test_what_a_server_lacks_is_reported_online(connect_ids: ConnectIds) -> None:
    assert "likeliest" in connect_ids(TokenApp(owner="sglang")).online("openai:m")
    assert "likeliest" not in connect_ids(TokenApp(owner="vllm")).online("openai:m")


def test_other_weights_are_asked_again(connect_ids: ConnectIds) -> None:
    app = TokenApp(scores_with(-1.0))
    for value, sha256 in ((-1.0, "1" * 64), (-2.0, "2" * 64), (-1.0, "1" * 64)):
        app.sha256 = sha256
        app.change = scores_with(value)
        own = connect_ids(app).sampler("openai:m").logprobs(PROMPT).result(30)
        np.testing.assert_array_equal(own, [np.nan, value, -1])
    assert len(app.bodies) == 2, "the third answer was kept"


@pytest.mark.parametrize(("owner", "sha256"), [("vllm", "1" * 64), (KITCHEN, None)])
def test_without_a_digest_of_weights_nothing_is_kept(
    connect_ids: ConnectIds, tmp_path: Path, owner: str, sha256: str | None
) -> None:
    app = TokenApp(owner=owner)
    app.sha256 = sha256
    for _ in range(2):
        connect_ids(app).sampler("openai:m").sample(PROMPT, max_tokens=4).result(30)
    assert len(app.bodies) == 2
    assert not entries(tmp_path)


def test_a_key_in_an_answer_is_masked(connect_ids: ConnectIds, tmp_path: Path) -> None:
    app = TokenApp(fields(text=f"the key is {KEY}", note={KEY: [KEY]}))
    connect_ids(app).sampler("openai:m").sample(PROMPT, max_tokens=4).result(30)
    [entry] = entries(tmp_path)
    assert KEY not in entry.read_text()
    assert "the key is ***" in entry.read_text()
