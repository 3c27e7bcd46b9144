"""Conversations: from the third turn on what is new alone is read, and what is written stays what it would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft import fused, said
from adapters.peft.decoder import Decoder
from adapters.peft.sampler import PeftSampler
from adapters.peft.session import PeftSession
from kitchen.types import Adam, Datum, Sampled, Tokens

GAMES, TURNS = 7, 5
Answers = Sequence[Sequence[Sampled]]


@pytest.fixture
def session(opened: Callable[..., PeftSession], weighted: list[Datum]) -> PeftSession:
    session = opened()
    for _ in range(3):
        session.forward_backward(weighted)
        session.optim_step(Adam(0.01))
    return session


@pytest.fixture
def sampler(session: PeftSession) -> Iterator[Any]:
    sampler = session.snapshot().result()
    yield sampler
    sampler.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of prompts were read, batch by batch."""
    counts, reading = list[int](), fused.Fused._read_some

    def counted(self: Any, places: Sequence[Any]) -> torch.Tensor:
        embed = Decoder.embed

        def embedded(self: Decoder, ids: torch.Tensor) -> torch.Tensor:
            counts.append(len(ids))
            return embed(self, ids)

        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "embed", embedded)
            return reading(self, places)

    monkeypatch.setattr(fused.Fused, "_read_some", counted)
    return counts


def begin() -> list[Tokens]:
    """Prompts of unlike lengths, of which all but three begin alike."""
    rng = np.random.default_rng(5)
    alone = [rng.integers(3, 300, size) for size in (20, 33, 41)]
    return [*alone, *(np.concatenate([np.arange(5, 30), rng.integers(3, 300, size)]) for size in range(1, GAMES - 2))]


def replies(turn: int) -> list[Tokens]:
    rng = np.random.default_rng(turn)
    return [rng.integers(3, 300, 3 + (turn + game) % 4) for game in range(GAMES)]


def asked(sampler: Any, prompts: Sequence[Tokens], turn: int) -> list[list[Sampled]]:
    """Two answers of each, of which the first is gone on from."""
    futures = [sampler.sample(prompt, count=1 + game % 2, max_tokens=4 + game % 3, seed=10 * turn + game,
                              temperature=game % 2) for game, prompt in enumerate(prompts)]
    return [list(future.result()) for future in futures]


def played(sampler: Any, once: Callable[[], Any]) -> list[tuple[Answers, Answers]]:
    """Turn by turn, what one sampler writes, and what one that has never been asked writes."""
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


@pytest.mark.parametrize("most", [said.MOST, 0.05])
def test_a_conversation_is_gone_on_with_as_if_it_were_read_anew(
    session: PeftSession, sampler: PeftSampler, monkeypatch: pytest.MonkeyPatch, most: float
) -> None:
    """With room for all of its keys, and for some."""
    monkeypatch.setattr(fused, "MOST", most)
    check(played(sampler, lambda: session.snapshot().result()))


def gone_on(prompts: Sequence[Tokens], answers: Sequence[Sequence[Sampled]], turn: int) -> list[Tokens]:
    return [np.concatenate([prompt, one[0].tokens, reply])
            for prompt, one, reply in zip(prompts, answers, replies(turn), strict=True)]


def test_from_the_third_turn_on_what_is_new_alone_is_read(sampler: Any, read: list[int]) -> None:
    prompts, before = begin(), list[Tokens]()
    for turn in range(TURNS):
        read.clear()
        answers = asked(sampler, prompts, turn)
        if turn == 1:
            assert sum(read) > sum(map(len, prompts)) / 2  # some begin alike
        elif turn:
            new = [1 + len(prompt) - len(whole) for prompt, whole in zip(prompts, before, strict=True)]
            assert sum(read) <= sum(new) + max(new)  # one may be read in two lanes
        before = [np.concatenate([prompt, one[0].tokens]) for prompt, one in zip(prompts, answers, strict=True)]
        prompts = gone_on(prompts, answers, turn)


def test_what_is_asked_once_is_not_kept(sampler: Any) -> None:
    asked(sampler, begin(), 0)
    asked(sampler, begin(), 1)
    kept = sampler._frozen.result().said._last
    assert len(kept) >= GAMES
    assert all(keys is None for keys in kept.values())


def test_two_may_go_on_from_one_and_one_from_the_middle_is_read_anew(session: PeftSession, sampler: Any) -> None:
    [first] = sampler.sample(begin()[0], max_tokens=6, seed=1).result()
    whole = np.concatenate([begin()[0], first.tokens, [7, 8, 9]])
    [second] = sampler.sample(whole, max_tokens=6, seed=2).result()
    base = np.concatenate([whole, second.tokens])
    prompts = [np.concatenate([base, [11, 12]]), np.concatenate([base, [13]]), np.concatenate([base[:-3], [14, 15]])]
    fresh: Any = session.snapshot().result()
    mine, anew = ([each.sample(prompt, max_tokens=5, seed=3) for prompt in prompts] for each in (sampler, fresh))
    check([([one.result() for one in mine], [one.result() for one in anew])])
    fresh.close()
