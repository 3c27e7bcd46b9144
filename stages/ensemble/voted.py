"""Voted answers: the answer of an ensemble to each problem, with all votes and their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kitchen.ports import Tokenizer
from stages.chat.conversations import Conversation
from stages.chat.prompts import item_of
from stages.ensemble.asking import Problem, Reply
from stages.ensemble.members import mean_logprob
from stages.ensemble.voting import Outcome, disagreement
from stages.evaluate.evaluation import EvalConfig
from stages.evaluate.graded_answers import GradedAnswer, grade_samples, unanswered


@dataclass(frozen=True)
class GradedVote:
    """One answer that a member was asked for, with its scores, or the reason why there is none."""

    member: int  # index among the members
    draw: int  # index among the answers of this member
    text: str
    group: int | None  # equal for equal answers; None if there is no answer
    readable: bool  # whether it has the format of the metric, and was not truncated
    logprob: float  # mean of its tokens, in nats; NaN if it is not known
    prompt_tokens: int  # of the request, counted for its first answer only
    answer_tokens: int
    scores: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""  # why there is no answer, or why it has no score
    late: bool = False  # whether there is none because it took too long


@dataclass(frozen=True)
class SkippedVote:
    """A vote that a cascade did not ask for."""

    member: int
    draw: int
    prompt_tokens: int


@dataclass(frozen=True)
class VotedProblem:
    """The answer of an ensemble to a problem, and the votes."""

    item: str  # digest of what was asked and what was wanted
    answer: GradedAnswer  # has no score if no vote arrived, and scores 0 if the vote abstained
    votes: tuple[GradedVote, ...]
    skipped: tuple[SkippedVote, ...]
    outcome: Outcome
    disagreement: float  # 0..1: share of pairs of votes that differ

    @property
    def arrived(self) -> Sequence[GradedVote]:
        """The votes with an answer."""
        return [vote for vote in self.votes if vote.group is not None]

    @property
    def has_no_votes(self) -> bool:
        """True if all votes failed, so that there was nothing to decide."""
        return not self.arrived and not self.skipped

    @property
    def abstained(self) -> bool:
        """True if the votes were decided, and no answer won."""
        return not self.answer.answered and not self.has_no_votes

    def record(self, labels: Sequence[str]) -> Mapping[str, Any]:
        """Return what a line of samples.jsonl shows besides item and scores."""
        votes = [_vote_record(vote, labels[vote.member]) for vote in self.votes]
        return {
            **self.answer.record(),
            "abstained": self.outcome.reason if self.abstained else "",
            "share": self.outcome.share,
            "decided_by": self.outcome.decided_by,
            "disagreement": self.disagreement,
            "votes": votes,
            "not_asked": [labels[vote.member] for vote in self.skipped],
        }


def _vote_record(vote: GradedVote, label: str) -> Mapping[str, Any]:
    return {
        "member": label,
        "try": vote.draw,
        "text": vote.text,
        "answer": vote.group,
        "readable": vote.readable,
        "logprob": None if vote.logprob != vote.logprob else vote.logprob,
        "tokens": vote.answer_tokens,
        "scores": dict(vote.scores),
        "failed": vote.failed,
    }


@dataclass(frozen=True)
class VotedAnswers:
    """The answers of an ensemble to all problems of an evaluation."""

    members: tuple[str, ...]  # labels, in the order of asking
    sets: Mapping[str, tuple[VotedProblem, ...]]
    is_cascade: bool = False

    def answers(self) -> Mapping[str, tuple[GradedAnswer, ...]]:
        """Return the answers of the ensemble by set."""
        answers: dict[str, tuple[GradedAnswer, ...]] = {}
        for name, problems in self.sets.items():
            answers[name] = tuple(problem.answer for problem in problems)
        return answers


async def grade_votes(
    metric: str,
    problems: Mapping[int, Problem],
    rows: Sequence[Conversation],
    tokenizers: Sequence[Tokenizer],
    config: EvalConfig,
) -> tuple[VotedProblem, ...]:
    """Grade every vote on the problems of a set, given by index of the row.

    The answer of the ensemble is that of the vote that won, so it has the same scores.
    """
    grades: dict[tuple[int, int, int], GradedAnswer] = {}
    for at, tokenizer in enumerate(tokenizers):
        places, samples = [], []
        for row, problem in problems.items():
            for reply in problem.answered:
                if reply.member == at and reply.sampled is not None:
                    places.append((row, at, reply.draw))
                    samples.append((rows[row], reply.sampled))
        graded = await grade_samples(metric, samples, tokenizer, grading=config) if samples else []
        grades |= dict(zip(places, graded, strict=True))
    return tuple(
        _voted(metric, row, rows[row], problem, grades) for row, problem in problems.items()
    )


def _voted(
    metric: str,
    row: int,
    conversation: Conversation,
    problem: Problem,
    grades: Mapping[tuple[int, int, int], GradedAnswer],
) -> VotedProblem:
    answered = problem.answered
    groups: dict[tuple[int, int], tuple[int, bool]] = {}
    for reply, vote in zip(answered, problem.votes, strict=True):
        groups[reply.member, reply.draw] = vote.group, vote.readable
    votes = []
    for reply in problem.replies:
        place = reply.member, reply.draw
        votes.append(_graded_vote(reply, groups.get(place), grades.get((row, *place))))
    outcome = problem.outcome
    if outcome.winner is None:
        answer = unanswered(metric, conversation, outcome.reason)
        if answered or problem.skipped:
            answer = _abstention(answer)
    else:
        winner = answered[list(problem.votes).index(outcome.winner)]
        answer = grades[row, winner.member, winner.draw]
    skipped = [
        SkippedVote(each.member, each.draw, len(problem.prompts.get(each.member, ())))
        for each in problem.skipped
    ]
    return VotedProblem(
        item_of(conversation),
        replace(answer, row=row),
        tuple(votes),
        tuple(skipped),
        outcome,
        disagreement(problem.votes),
    )


def _abstention(answer: GradedAnswer) -> GradedAnswer:
    """Return an answer that counts as wrong; without a lowest score, it has none."""
    worst = answer.bounds[0]
    return replace(answer, failed="", score=worst) if math.isfinite(worst) else answer


def _graded_vote(
    reply: Reply, grouped: tuple[int, bool] | None, grade: GradedAnswer | None
) -> GradedVote:
    group, readable = (None, False) if grouped is None else grouped
    missing = reply.no_answer
    failed = "" if grade is None else grade.failed
    return GradedVote(
        member=reply.member,
        draw=reply.draw,
        text=reply.text,
        group=group,
        readable=readable,
        logprob=float("nan") if reply.sampled is None else mean_logprob(reply.sampled),
        prompt_tokens=reply.prompt_tokens,
        answer_tokens=reply.answer_tokens,
        scores={} if grade is None else dict(grade.scores),
        failed=failed if missing is None else missing.reason,
        late=missing is not None and missing.late,
    )
