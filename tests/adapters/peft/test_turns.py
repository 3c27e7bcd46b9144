"""Conversations: from the third turn on what is new alone is read, and what is written stays what
it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.model.decoder import Decoder
from adapters.peft.sampling import conversation_cache as said
from adapters.peft.sampling import fused_body as fused
from adapters.peft.session import PeftSession
from kitchen.types import Datum, Sampled, Tokens
from tests.adapters.peft.conftest import trained

GAMES, TURNS = 7, 5
Answers = Sequence[Sequence[Sampled]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of prompts were read, batch by batch."""
    counts, reading = list[int](), fused.FusedBody._read_batch

    def counted(self: Any, places: Sequence[Any]) -> torch.Tensor:
        embed = Decoder.embed

        def embedded(self: Decoder, ids: torch.Tensor) -> torch.Tensor:
            counts.append(len(ids))
            return embed(self, ids)

        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "embed", embedded)
            return reading(self, places)

    monkeypatch.setattr(fused.FusedBody, "_read_batch", counted)
    return counts


def begin() -> list[Tokens]:
    """Prompts of unlike lengths, of which all but three begin alike."""
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
    """Two answers of each, of which the first is gone on from."""
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


def played(sampler: Any, once: Callable[[], Any]) -> list[tuple[Answers, Answers]]:
    """StepResult by turn, what one sampler writes, and what one that has never been asked writes."""
    prompts, found = begin(), []
    for turn in range(TURNS):
        mine, fresh = asked(sampler, prompts, turn), once()
        found.append((mine, asked(fresh, prompts, turn)))
        fresh.close()
        prompts = gone_on(prompts, mine, turn)
    return found


def check(found: Sequence[tuple[Answers, Answers]]) -> None:
    for mine, fresh in found:
        for some, others in zip(mine, fresh, strict=True):
            for one, other in zip(some, others, strict=True):
                assert one.tokens.tolist() == other.tokens.tolist()
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize(
    ("most", "settings"),
    [
        (said.CAPACITY_FACTOR, {}),
        (0.05, {}),
        (said.CAPACITY_FACTOR, {"threads": 2}),
        (said.CAPACITY_FACTOR, {"sample_batch": 3}),
        (said.CAPACITY_FACTOR, {"micro_batch_tokens": 40}),
    ],
    ids=str,
)
def test_a_conversation_is_gone_on_with_as_if_it_were_read_anew(
    opened: Callable[..., PeftSession],
    weighted: list[Datum],
    monkeypatch: pytest.MonkeyPatch,
    most: float,
    settings: dict[str, Any],
) -> None:
    """With room for all of its keys, and for some; and to the bit as it is for another that is
    asked the same.
    """
    monkeypatch.setattr(fused, "CAPACITY_FACTOR", most)
    session = trained(opened(**settings), weighted)
    samplers: list[Any] = [session.snapshot().result() for _ in range(2)]
    one, other = (played(sampler, lambda: session.snapshot().result()) for sampler in samplers)
    check(one)
    for (mine, _), (same, _) in zip(one, other, strict=True):
        for some, others in zip(mine, same, strict=True):
            assert [a.logprobs.tolist() for a in some] == [b.logprobs.tolist() for b in others]
    for sampler in samplers:
        sampler.close()


def test_in_bfloat16_it_is_as_likely(
    opened: Callable[..., PeftSession], weighted: list[Datum]
) -> None:
    """Kept keys are those that are computed anew, rounded; a token may then be drawn instead of its
    neighbour.
    """
    session = trained(opened(dtype="bfloat16"), weighted)
    sampler: Any = session.snapshot().result()
    pairs = [
        (one, other)
        for mine, fresh in played(sampler, lambda: session.snapshot().result())
        for some, others in zip(mine, fresh, strict=True)
        for one, other in zip(some, others, strict=True)
    ]
    alike = [(a.logprobs, b.logprobs) for a, b in pairs if a.tokens.tolist() == b.tokens.tolist()]
    assert len(alike) > 0.8 * len(pairs)
    for mine, fresh in alike:
        np.testing.assert_allclose(mine, fresh, atol=0.1)
    sampler.close()


def gone_on(
    prompts: Sequence[Tokens], answers: Sequence[Sequence[Sampled]], turn: int
) -> list[Tokens]:
    return [
        np.concatenate([prompt, one[0].tokens, reply])
        for prompt, one, reply in zip(prompts, answers, replies(turn), strict=True)
    ]


def test_from_the_third_turn_on_what_is_new_alone_is_read(sampler: Any, read: list[int]) -> None:
    prompts, before = begin(), list[Tokens]()
    for turn in range(TURNS):
        read.clear()
        answers = asked(sampler, prompts, turn)
        if turn == 1:
            assert sum(read) > sum(map(len, prompts)) / 2  # some begin alike
        elif turn:
            new = [
                1 + len(prompt) - len(whole) for prompt, whole in zip(prompts, before, strict=True)
            ]
            assert sum(read) <= sum(new) + max(new)  # one may be read in two lanes
        before = [
            np.concatenate([prompt, one[0].tokens])
            for prompt, one in zip(prompts, answers, strict=True)
        ]
        prompts = gone_on(prompts, answers, turn)


def test_what_is_asked_once_is_not_kept(sampler: Any) -> None:
    asked(sampler, begin(), 0)
    asked(sampler, begin(), 1)
    kept = sampler.model.result().conversations._last
    assert len(kept) >= GAMES
    assert all(keys is None for keys in kept.values())


def test_two_may_go_on_from_one_and_one_from_the_middle_is_read_anew(
    session: PeftSession, sampler: Any
) -> None:
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
    """Two turns of a conversation, and the beginning of the third."""
    said = begin()[0]
    for turn in range(2):
        [one] = sampler.sample(said, max_tokens=6, seed=turn).result()
        said = np.concatenate([said, one.tokens, [7, 8, 9]])
    return said


def test_what_several_go_on_with_alike_is_read_once(sampler: Any, read: list[int]) -> None:
    more = np.concatenate([talked(sampler), np.arange(3, 203)])
    read.clear()
    futures = [
        sampler.sample(np.concatenate([more, [last]]), max_tokens=2) for last in range(5, 13)
    ]
    assert all(future.result() for future in futures)
    assert sum(read) < 2 * len(more)


def test_equal_rows_are_kept_once_and_of_some_none_can_be_found(sampler: Any) -> None:
    whole = talked(sampler)
    [first, *_] = sampler.sample(whole, count=4, max_tokens=5, temperature=0.0).result()
    kept = sampler.model.result().conversations
    assert [None if keys is None else keys.shape[1] for keys in kept._last.values()] == [
        len(whole) + 4
    ]
    gone_on = np.concatenate([whole, first.tokens, [5]])
    assert kept.take([whole, gone_on[:5], gone_on]).keys() == {gone_on.tobytes()}
    assert kept.take([gone_on]) == {}


def test_the_longest_beginning_is_found() -> None:
    rng = np.random.default_rng(0)
    known, whole = said.ConversationCache(), rng.integers(0, 9, 60)
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
    found = known.take([whole, rng.integers(0, 9, 30)])
    assert [int(keys) for keys in found.values() if keys is not None] == [30]
