"""Late requests to a server of the OpenAI API are sent again, and have one answer."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from adapters.openai.client import OpenAISampling
from kitchen.backend.hedging.hedged import HedgeCounts, Hedged
from kitchen.errors import ConfigError
from kitchen.ports.sampling import Sampler
from tests.adapters.openai.conftest import Connect
from tests.support.openai_server import OpenAIServer

MODEL = "openai:clever-large"


def ask(adapter: OpenAISampling, sampler: Sampler, **options: Any) -> str:
    """Return the text of one answer."""
    tokenizer = adapter.tokenizer(MODEL)
    prompt = tokenizer.render([{"role": "user", "content": "hello"}], answer=True)
    [sampled] = sampler.sample(prompt, **{"max_tokens": 32, "seed": 3, **options}).result(30)
    return tokenizer.decode(sampled.tokens)


def test_late_request_is_sent_again_and_has_one_answer(connect: Connect) -> None:
    """A server that gives another answer each time, as hosted models do."""
    numbers = itertools.count(1)
    server = OpenAIServer("", "held", write=lambda body, index: f"answer {next(numbers)}")
    adapter = connect(server, hedge="fixed:1.0", hedge_extra=1.0)
    sampler = adapter.sampler(MODEL)
    assert ask(adapter, sampler, seed=1) == "answer 1"  # the connection is open now
    assert ask(adapter, sampler) == "answer 2"
    server.gate.set()
    assert isinstance(sampler, Hedged)
    assert sampler.hedging.counts.requests == 2
    assert ask(adapter, sampler) == "answer 2"  # from the cache
    assert sampler.hedging.counts.requests == 2
    _, first, second = server.bodies
    assert first == second
    assert (sampler.hedging.counts.extra, sampler.hedging.counts.won) == (1, 1)
    sampler.close()


def test_answers_from_the_cache_teach_no_delay(connect: Connect) -> None:
    """A resumed run reads its earlier answers in milliseconds; its server takes longer."""
    server = OpenAIServer("", "held")
    adapter = connect(server, hedge="percentile:0.5", hedge_extra=1.0)
    sampler = adapter.sampler(MODEL)
    assert len({ask(adapter, sampler, seed=1) for _ in range(9)}) == 1
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask, adapter, sampler, seed=2)
        assert server.held.wait(10)
        time.sleep(0.3)  # in which no extra request goes out, as one latency is too few
        server.gate.set()
        answer.result(10)
    assert len(server.bodies) == 2
    assert isinstance(sampler, Hedged)
    assert sampler.hedging.counts == HedgeCounts(requests=2)


def test_server_that_holds_back_gets_no_extra_request(connect: Connect) -> None:
    server = OpenAIServer("busy_for_seconds")
    adapter = connect(server, hedge="fixed:0.3", hedge_extra=1.0)
    adapter.online(MODEL)  # the import of the SDK takes longer than the delay
    sampler = adapter.sampler(MODEL)
    assert ask(adapter, sampler).startswith("clever-large")
    assert len(server.bodies) == 2  # the refused one, and its repetition
    assert isinstance(sampler, Hedged)
    assert sampler.hedging.counts.extra == 0


def test_text_has_no_scores_with_a_hedge_either(connect: Connect) -> None:
    sampler = connect(OpenAIServer(), hedge="adaptive").sampler(MODEL)
    with pytest.raises(Exception, match="gives text only"):
        sampler.logprobs(np.arange(3)).result(10)


@pytest.mark.parametrize(
    "settings",
    [{"hedge": "quick"}, {"hedge": "adaptive", "hedge_extra": 2}, {"hedge_extra": 0.05}],
)
def test_wrong_hedges_are_refused(connect: Connect, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.hedge"):
        connect(OpenAIServer(), **settings)
