"""A language model that is asked for replies of a fixed form, and asked again for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

from kitchen.ports import Sampler, Tokenizer, arrival
from kitchen.types import Tokens
from stages.chat.model_limits import has_room
from stages.chat.prompts import render_prompt

# returns the number that a reply stands for, or the reason why it stands for none
Reader = Callable[[str], tuple[float | None, str]]


@dataclass(frozen=True)
class Reply:
    """One reply of a model, and the number that it stands for, if it has the form asked for."""

    text: str
    score: float | None
    problem: str  # the reason why there is none
    tokens: int  # that the model sampled


@dataclass(frozen=True)
class Judgement:
    """The replies of a judge about one answer by one criterion."""

    criterion: str  # its name
    prompt: str  # of the first attempt
    replies: tuple[Reply, ...]  # of all draws, each with the attempts before it
    score: float | None  # mean over the draws, 0..1; None if one of them has no score
    problem: str = ""  # the reason why one of them has none


@dataclass(eq=False)
class AskedModel:
    """A language model, and the limits of its replies.

    The seed of a reply follows from the seed of the run and the prompt, so that the same prompt
    gets the same reply.
    """

    tokenizer: Tokenizer
    sampler: Sampler | None  # None in a plan, where nothing is asked, and once it is closed
    max_tokens: int  # maximum tokens of a reply
    setting: str  # that sets max_tokens
    temperature: float = 0.0
    retries: int = 0  # times that it is asked again
    seed: int = 0

    async def judge(
        self, criterion: str, prompt: str, draws: int, read: Reader, form: str
    ) -> Judgement:
        """Ask for several replies by one criterion, and return their mean score."""
        asked = (self.ask(prompt, draw, read, form) for draw in range(draws))
        drawn = await asyncio.gather(*asked)
        replies = tuple(chain.from_iterable(drawn))
        scores: list[float] = []
        for attempts in drawn:
            last = attempts[-1]
            if last.score is None:
                problem = (
                    f"the judge gave no score for {criterion!r} in {len(attempts)} replies: "
                    f"{last.problem}"
                )
                return Judgement(criterion, prompt, replies, None, problem)
            scores.append(last.score)
        return Judgement(criterion, prompt, replies, sum(scores) / len(scores))

    async def ask(self, prompt: str, draw: int, read: Reader, form: str) -> list[Reply]:
        """Ask until a reply has the form that is described, at most retries + 1 times.

        Raises DataError for a prompt that leaves no room for a reply in the model's context.
        """
        replies: list[Reply] = []
        text = prompt
        for attempt in range(self.retries + 1):
            replies.append(await self._reply(text, [draw, attempt], read))
            if replies[-1].score is not None:
                break
            text = (
                f"{prompt}\n\nAn earlier reply was not accepted, because {replies[-1].problem}. "
                f"{form} This is attempt {attempt + 2}."
            )
        return replies

    async def _reply(self, text: str, place: Sequence[int], read: Reader) -> Reply:
        assert self.sampler is not None, "a plan asks no model"
        prompt = self.tokens(text)
        has_room(prompt, self.max_tokens, self.setting, self.tokenizer, "the judge's prompt")
        digest = sha256(repr([self.seed, *place, text]).encode()).digest()
        [sampled] = await arrival(
            self.sampler.sample(
                prompt,
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                seed=int.from_bytes(digest[:4]) >> 1,  # below 2^31, as every server accepts
            )
        )
        reply, score = self.tokenizer.decode(sampled.tokens), None
        if sampled.stop_reason == "length":
            problem = f"it was truncated at {self.setting}={self.max_tokens}, or refused"
        else:
            score, problem = read(reply)
        return Reply(reply, score, problem, len(sampled.tokens))

    def tokens(self, text: str) -> Tokens:
        """Return the (T,) tokens of a prompt."""
        return render_prompt([{"role": "user", "content": text}], self.tokenizer)

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.close()
        self.sampler = None
