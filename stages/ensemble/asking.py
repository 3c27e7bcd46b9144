"""Questions to the members of an ensemble: in which order they are asked, and when no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

from kitchen.backend.work import gather_counted
from kitchen.ports import BlobStore, TrainingClient
from kitchen.types import Sampled, Tokens
from stages.ensemble.config import EnsembleConfig, Request
from stages.ensemble.grouping import AnswerGroups, GroupedAnswer
from stages.ensemble.members import Member, NoAnswer, mean_logprob
from stages.ensemble.voting import Outcome, Vote
from stages.evaluate.reference import spawn_seeds

NO_ROOM = "the prompt leaves no room for an answer in the context of this member"


@dataclass(frozen=True)
class Reply:
    """One answer that a member was asked for, or the reason why there is none."""

    member: int  # index among the members
    draw: int  # index among the answers of this member
    sampled: Sampled | None = None
    text: str = ""
    no_answer: NoAnswer | None = None
    prompt_tokens: int = 0  # of the request, counted for its first answer only

    @property
    def answer_tokens(self) -> int:
        """The number of tokens of the answer; 0 if there is none."""
        return 0 if self.sampled is None else len(self.sampled.tokens)


@dataclass
class Problem:
    """A problem that members are asked, with their replies so far."""

    prompts: Mapping[int, Tokens]  # by index of the member; one whose context is too short has none
    groups: AnswerGroups
    entropy: tuple[int, ...]  # for the seeds of its answers
    prefill: str = ""  # the text before an answer that is compared with it
    reads_truncated: bool = False  # whether a truncated answer is as good as any other
    replies: list[Reply] = field(default_factory=list)
    skipped: list[Request] = field(default_factory=list)  # that a cascade saved
    votes: Sequence[Vote] = ()  # of the replies with an answer, in their order
    outcome: Outcome = field(default_factory=lambda: Outcome(None))

    @property
    def texts(self) -> list[str]:
        """The answers as they are compared, with the prefill."""
        return [self.prefill + reply.text for reply in self.answered]

    @property
    def answered(self) -> list[Reply]:
        """The replies with an answer, in the order of asking."""
        return [reply for reply in self.replies if reply.no_answer is None]


@dataclass(frozen=True)
class Ensemble:
    """The members of an ensemble, who are asked problems and vote."""

    config: EnsembleConfig
    members: Sequence[Member]
    weights: Sequence[float]  # of the members' votes, with vote=weighted
    max_tokens: int
    stop: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # further ones of `Sampler.sample`

    async def answer(
        self,
        problems: Sequence[Problem],
        client: TrainingClient,
        blobs: BlobStore | None,
        *,
        keep_open: bool = False,
    ) -> None:
        """Ask all problems, and write replies, votes and outcomes into them.

        Members that are asked one after another are not open at the same time, unless they are
        kept open for further problems.
        """
        rounds = self.config.rounds()
        try:
            for at, requests in enumerate(rounds):
                missing = list(chain.from_iterable(rounds[at:]))
                asked = self._unsettled(requests, problems, missing)
                for request in requests if asked else ():
                    self.members[request.member].open(client, blobs)
                await self._ask(requests, asked)
                later = {request.member for request in chain.from_iterable(rounds[at + 1 :])}
                self._close(() if keep_open else {each.member for each in requests} - later)
        finally:
            self._close(() if keep_open else range(len(self.members)))
        if self.config.mode != "cascade":  # whose votes are counted after each round
            await self._count_votes(problems)
        for problem in problems:
            skipped = sum(request.count for request in problem.skipped)
            problem.outcome = self.config.rule.decide(problem.votes, len(problem.replies), skipped)

    def _close(self, members: Iterable[int]) -> None:
        for at in members:
            self.members[at].close()

    def _unsettled(
        self, requests: Sequence[Request], problems: Sequence[Problem], missing: Sequence[Request]
    ) -> Sequence[Problem]:
        """Return the problems that are not settled, and note for others that requests are skipped.

        `missing` are these requests and those of later rounds.
        """
        asked = []
        for problem in problems:
            if self._is_settled(problem, missing):
                problem.skipped += requests
            else:
                asked.append(problem)
        return asked

    async def _ask(self, requests: Sequence[Request], asked: Sequence[Problem]) -> None:
        """Send the requests of a round for all these problems."""
        pairs = list(product(asked, requests))
        replies = await gather_counted(
            (self._reply(problem, request) for problem, request in pairs), "requests"
        )
        for (problem, _), new in zip(pairs, replies, strict=True):
            problem.replies += new
        if self.config.mode == "cascade":
            await self._count_votes(asked)

    def _is_settled(self, problem: Problem, missing: Sequence[Request]) -> bool:
        if self.config.mode != "cascade" or not problem.replies:
            return False
        rule, failed = self.config.rule, len(problem.replies) - len(problem.votes)
        weights = [rule.largest_weight(self.weights[request.member]) for request in missing]
        return rule.is_settled(problem.votes, weights, self.config.enough, failed)

    async def _reply(self, problem: Problem, request: Request) -> list[Reply]:
        """Send one request; returns a reply for each of its answers."""
        at, draws = request.member, range(request.draw, request.draw + request.count)
        prompt = problem.prompts.get(at)
        if prompt is None:
            missing = NoAnswer(NO_ROOM, sent=False)
            return [Reply(at, draw, no_answer=missing) for draw in draws]
        answers = await self.members[at].ask(
            prompt,
            seed=spawn_seeds([*problem.entropy, at, request.draw], 1)[0],
            count=request.count,
            max_tokens=self.max_tokens,
            temperature=self.config.temperature,
            stop=self.stop,
            **self.options,
        )
        if isinstance(answers, NoAnswer):
            replies = [Reply(at, draw, no_answer=answers) for draw in draws]
            was_read = answers.read_prompt
        else:
            pairs = zip(draws, answers, strict=True)
            replies = [self._answered(at, draw, answer) for draw, answer in pairs]
            was_read = True
        return [replace(replies[0], prompt_tokens=len(prompt) * was_read), *replies[1:]]

    def _answered(self, at: int, draw: int, answer: Sampled) -> Reply:
        text = self.members[at].tokenizer.decode(answer.tokens)
        reply = Reply(at, draw, answer, text)
        if self.config.vote == "confidence" and math.isnan(mean_logprob(answer)):
            return replace(reply, no_answer=NoAnswer("it has no log-probabilities"))
        return reply

    async def _count_votes(self, problems: Sequence[Problem]) -> None:
        """Group the answers that are equal, and turn them into votes."""
        by_groups: dict[int, list[Problem]] = {}
        for problem in problems:
            by_groups.setdefault(id(problem.groups), []).append(problem)
        for same in by_groups.values():
            texts = [problem.texts for problem in same]
            grouped = await same[0].groups.group(texts)
            for problem, answers in zip(same, grouped, strict=True):
                pairs = zip(problem.answered, answers, strict=True)
                problem.votes = [self._vote(problem, *pair) for pair in pairs]

    def _vote(self, problem: Problem, reply: Reply, grouped: GroupedAnswer) -> Vote:
        assert reply.sampled is not None
        complete = problem.reads_truncated or reply.sampled.stop_reason != "length"
        return Vote(
            self.config.labels[reply.member],
            reply.draw,
            reply.text,
            grouped.group,
            grouped.readable and complete,
            mean_logprob(reply.sampled),
            self.weights[reply.member],
        )
