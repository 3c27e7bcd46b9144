"""Cached conversations: only new tokens are prefilled, and completions stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.sampling.conversation_cache import ConversationCache
from adapters.peft.session import PeftSession
from kitchen.types import Datum, Sampled, Tokens
from tests.support.peft_sessions import trained
from tests.support.sampling import DEVICE, prefilled, record_embedded

GAMES, TURNS = 7, 5
Answers = Sequence[Sequence[Sampled]]


def begin() -> list[Tokens]:
    """Return prompts of unequal lengths, of which all but three share a prefix."""
    rng = np.random.default_rng(5)
    alone = [rng.integers(3, 300, size) for size in (20, 33, 41)]
    return [
        *alone,
        *(
            np.concatenate([np.arange(5, 30), rng.integers(3, 300, size)])
            for size in range(1, GAMES - 2)
        ),
    ]


def replies(turn: int) -> list[Tokens]:
    rng = np.random.default_rng(turn)
    return [rng.integers(3, 300, 3 + (turn + game) % 4) for game in range(GAMES)]


def asked(sampler: Any, prompts: Sequence[Tokens], turn: int) -> list[list[Sampled]]:
    """Sample one or two answers of each prompt, the first of which is continued."""
    futures = [
        sampler.sample(
            prompt,
            count=1 + game % 2,
            max_tokens=4 + game % 3,
            seed=10 * turn + game,
            temperature=game % 2,
        )
        for game, prompt in enumerate(prompts)
    ]
    return [list(future.result()) for future in futures]


def played(sampler: Any, fresh_sampler: Callable[[], Any]) -> list[tuple[Answers, Answers]]:
    """Return by turn what one sampler generates, and what a fresh one does."""
    prompts, answers_by_turn = begin(), []
    for turn in range(TURNS):
        mine, fresh = asked(sampler, prompts, turn), fresh_sampler()
        answers_by_turn.append((mine, asked(fresh, prompts, turn)))
        fresh.close()
        prompts = continued(prompts, mine, turn)
    return answers_by_turn


def assert_same_bits(sampler: Any, played_before: Sequence[tuple[Answers, Answers]]) -> None:
    """Repeat the requests of another sampler with this one, and compare each turn."""
    prompts = begin()
    for turn, (answers, _) in enumerate(played_before):
        repeated = asked(sampler, prompts, turn)
        for some, others in zip(answers, repeated, strict=True):
            assert [a.logprobs.tolist() for a in some] == [b.logprobs.tolist() for b in others]
        prompts = continued(prompts, repeated, turn)


def check(found: Sequence[tuple[Answers, Answers]]) -> None:
    for mine, fresh in found:
        for some, others in zip(mine, fresh, strict=True):
            for one, other in zip(some, others, strict=True):
                assert one.tokens.tolist() == other.tokens.tolist()
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threads": 2},
        {"sample_batch": 3},
        {"micro_batch_tokens": 40},
        {"micro_batch_tokens": 10},  # with room for the keys and values of some conversations
    ],
    ids=str,
)
def test_continued_conversations_match_a_fresh_sampler(
    opened: Callable[..., PeftSession], weighted: list[Datum], settings: dict[str, Any]
) -> None:
    """Another sampler with the same requests returns the same bits."""
    session = trained(opened(**settings), weighted)
    samplers: list[Any] = [session.snapshot().result() for _ in range(2)]
    answers_by_turn = played(samplers[0], lambda: session.snapshot().result())
    check(answers_by_turn)
    assert_same_bits(samplers[1], answers_by_turn)
    for sampler in samplers:
        sampler.close()


@pytest.mark.slow
def test_continued_conversations_in_bfloat16(
    opened: Callable[..., PeftSession], weighted: list[Datum]
) -> None:
    """Retained keys are rounded, so that now and then a neighbouring token is drawn."""
    session = trained(opened(dtype="bfloat16"), weighted)
    sampler: Any = session.snapshot().result()
    pairs = list[tuple[Any, Any]]()
    for mine, fresh in played(sampler, lambda: session.snapshot().result()):
        for some, others in zip(mine, fresh, strict=True):
            pairs += zip(some, others, strict=True)
    alike = [(a.logprobs, b.logprobs) for a, b in pairs if a.tokens.tolist() == b.tokens.tolist()]
    assert len(alike) > 0.8 * len(pairs)
    for mine, fresh in alike:
        np.testing.assert_allclose(mine, fresh, atol=0.1)
    sampler.close()


def continued(
    prompts: Sequence[Tokens], answers: Sequence[Sequence[Sampled]], turn: int
) -> list[Tokens]:
    return [
        np.concatenate([prompt, one[0].tokens, reply])
        for prompt, one, reply in zip(prompts, answers, replies(turn), strict=True)
    ]


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tokens of the path without graphs")
def test_from_turn_three_only_new_tokens_are_read(sampler: Any) -> None:
    prompts, before, embedded = begin(), list[Tokens](), record_embedded(sampler.model.result())
    for turn in range(TURNS):
        embedded.clear()
        answers = asked(sampler, prompts, turn)
        read = prefilled(embedded, list(chain.from_iterable(answers)))
        if turn == 1:
            assert read > sum(map(len, prompts)) / 2  # some share a prefix
        elif turn:
            new = [
                1 + len(prompt) - len(whole) for prompt, whole in zip(prompts, before, strict=True)
            ]
            assert read <= sum(new) + max(new)  # one may be read in two lanes
        before = [
            np.concatenate([prompt, answer[0].tokens])
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        prompts = continued(prompts, answers, turn)


def test_single_requests_are_not_cached(sampler: Any) -> None:
    asked(sampler, begin(), 0)
    answers = asked(sampler, begin(), 1)
    cached = sampler.model.result().conversations.take(continued(begin(), answers, 1))
    assert len(cached) > 1
    assert all(kv is None for kv in cached.values())


def test_two_prompts_may_continue_one_conversation(session: PeftSession, sampler: Any) -> None:
    [first] = sampler.sample(begin()[0], max_tokens=6, seed=1).result()
    whole = np.concatenate([begin()[0], first.tokens, [7, 8, 9]])
    [second] = sampler.sample(whole, max_tokens=6, seed=2).result()
    base = np.concatenate([whole, second.tokens])
    prompts = [
        np.concatenate([base, [11, 12]]),
        np.concatenate([base, [13]]),
        np.concatenate([base[:-3], [14, 15]]),
    ]
    fresh: Any = session.snapshot().result()
    mine, anew = (
        [each.sample(prompt, max_tokens=5, seed=3) for prompt in prompts]
        for each in (sampler, fresh)
    )
    check([([one.result() for one in mine], [one.result() for one in anew])])
    fresh.close()


def talked(sampler: Any) -> Tokens:
    """Play two turns of a conversation; return the prompt of the third."""
    prompt = begin()[0]
    for turn in range(2):
        [one] = sampler.sample(prompt, max_tokens=6, seed=turn).result()
        prompt = np.concatenate([prompt, one.tokens, [7, 8, 9]])
    return prompt


def test_a_shared_continuation_is_read_once(sampler: Any) -> None:
    more = np.concatenate([talked(sampler), np.arange(3, 203)])
    embedded = record_embedded(sampler.model.result())
    futures = [
        sampler.sample(np.concatenate([more, [last]]), max_tokens=2) for last in range(5, 13)
    ]
    answers = [future.result() for future in futures]
    assert prefilled(embedded, list(chain.from_iterable(answers))) < 2 * len(more)


def test_equal_completions_share_one_cache_entry(sampler: Any) -> None:
    whole = talked(sampler)
    [first, *_] = sampler.sample(whole, count=4, max_tokens=5, temperature=0.0).result()
    conversations = sampler.model.result().conversations
    next_prompt = np.concatenate([whole, first.tokens, [5]])
    cached = conversations.take([whole, next_prompt[:5], next_prompt])
    assert cached.keys() == {next_prompt.tobytes()}
    assert cached[next_prompt.tobytes()].shape[1] == len(whole) + 4
    assert conversations.take([next_prompt]) == {}


def test_the_longest_cached_prefix_is_used() -> None:
    rng = np.random.default_rng(0)
    known, whole = ConversationCache(), rng.integers(0, 9, 60)
    others = [
        np.concatenate([whole[:size], [9], rng.integers(0, 9, 20)]) for size in (18, 25, 40, 50)
    ]
    known.put(
        [
            {
                tokens.astype(np.int64).tobytes(): torch.tensor(len(tokens))
                for tokens in (whole[:10], whole[:20], whole[:30], whole, *others)
            }
        ]
    )
    cached = known.take([whole, rng.integers(0, 9, 30)])
    assert [int(keys) for keys in cached.values() if keys is not None] == [30]
