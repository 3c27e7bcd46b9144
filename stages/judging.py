"""A judge: a language model that is asked which of two answers is better, A or B, so that its word can be a reward."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Lora, Step, for_each, sequence
from kitchen.ports import BlobStore, Future, Sampler, Tokenizer, TrainingClient, TrainingSession, arrival, start
from kitchen.stage import Stage
from kitchen.types import Checkpoint, Metrics, RunId, Table
from kitchen.weights import find_weights
from stages.conversations import Conversation, Message, TrainRows, heard
from stages.data import Epochs, ShuffledBatches
from stages.evaluation import question, read_before, wanted
from stages.optimise import ForwardBackward, OptimStep, ReportStep
from stages.playing import PlayedAfter, PlayedBefore
from stages.preferences import Comparison, Comparisons
from stages.render import RenderDataset
from stages.rollouts import Playing, Rollout, Rollouts, alive
from stages.schedules import schedule
from stages.scoring import Reference
from stages.sessions import OpenSession, saved_as
from stages.statistics import interval, paired_permutation, wilson
from stages.tasks import TaskBatch, Tasks

EVEN = 0.5  # how far a judge prefers an answer to itself


@dataclass(frozen=True)
class Judging:
    """How the judge is trained."""

    model: str | None = None  # weights of any name to begin with; null for those that the policy begins with
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 16  # questions of an optimiser step; of each comparison there are two, one in each order
    learning_rate: PositiveFloat = 1e-3  # the highest, at the end of warm-up
    warmup_steps: NonNegativeInt = 10  # optimiser steps
    max_tokens: PositiveInt = 1024  # of a question, with its answer; a longer one is not learnt from

    @property
    def rendering(self) -> RenderDataset:
        return RenderDataset("last_assistant_message", self.max_tokens, "drop")

    @property
    def optim(self) -> OptimStep:
        return OptimStep(schedule("linear", self.learning_rate, self.warmup_steps))


def learn_to_judge(how: Judging, model: str, lora: Lora, seed: int, save_every: int) -> tuple[Step, ...]:
    """A phase of its own, of which the judge's weights come, and then the judge, as good as it is."""
    model = how.model or model
    return (
        sequence(OpenSession(model, lora, "judge"), AskBothWays(), how.rendering,
                 for_each(Epochs(how.epochs, how.batch_size))(
                     for_each(ShuffledBatches(how.batch_size, seed), ahead=1, save=save_every)(
                         ForwardBackward(), how.optim, ReportStep("judge"))),
                 SaveJudge(), leaves=(JudgeWeights,)),
        OpenJudge(model, how.rendering), MeasureJudge())


@dataclass(frozen=True)
class JudgeWeights(Checkpoint):
    """Of a judge, when its training is over."""

    policy: ClassVar[bool] = False


def asked(request: Sequence[Message], first: str, second: str, letter: str) -> Conversation:
    """What a judge reads, and what it may answer."""
    said = request[0].content if len(request) == 1 else "\n".join(f"{each.role}: {each.content}" for each in request)
    text = (f"Which answer to this request is better?\n\n{said}\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\n"
            "Reply with A or B.")
    return Conversation((Message("user", text), Message("assistant", letter)), "what the judge is asked", plain=True)


class AskBothWays(Stage):
    """Comparisons as questions to the judge, in both orders, so that it cannot learn to prefer a place."""

    def run(self, comparisons: Comparisons) -> TrainRows:
        return TrainRows([replace(each, where=one.chosen.where) for one in comparisons.train
                          for each in _both(*answers(one))])

    preview = run


def _both(request: Sequence[Message], answer: str, other: str) -> tuple[Conversation, Conversation]:
    return asked(request, answer, other, "A"), asked(request, other, answer, "B")


def answers(one: Comparison) -> tuple[Sequence[Message], str, str]:
    """The request, the answer that is wanted, and the other."""
    assert one.rejected is not None, "whoever made the comparison for a judge gave it both"
    return question(one.chosen), wanted(one.chosen), wanted(one.rejected)


class SaveJudge(Stage):
    """Export the weights of the judge."""

    def run(self, session: TrainingSession, run: RunId) -> Future[JudgeWeights]:
        return start(saved_as(JudgeWeights, session.save_weights(f"{run.id}/weights/judge", overwrite=True)))


@dataclass(frozen=True)
class Judge:
    """A language model that answers A or B."""

    sampler: Sampler
    tokenizer: Tokenizer
    render: RenderDataset

    async def prefers(self, request: Sequence[Message], answer: str, other: str) -> float:
        """How far it prefers `answer`, 0..1, and an answer to itself 0.5.

        The mean of both orders (Zheng et al., 2023, arXiv:2306.05685): how likely it says A where `answer` is A, and
        that it does not where `other` is. An answer that leaves no room for the question is worth 0.
        """
        both = self._says_first(request, answer, other), self._says_first(request, other, answer)
        first, second = await asyncio.gather(*both)
        return 0.0 if first is None or second is None else EVEN + (first - second) / 2

    async def _says_first(self, request: Sequence[Message], first: str, second: str) -> float | None:
        """How likely it answers A; None for what is too long for it."""
        data = self.render.datums(asked(request, first, second, "A"), self.tokenizer)
        if not data:
            return None
        [datum] = data
        nats = await arrival(self.sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
        return math.exp(nats[1:].astype(np.float64) @ datum.loss_inputs["weights"].astype(np.float64))

    def close(self) -> None:
        self.sampler.close()


class OpenJudge(Stage):
    """The trained judge, which does not change any more."""

    model: str  # a name of weights, those that it began with
    render: RenderDataset

    def run(self, client: TrainingClient, weights: JudgeWeights, blobs: BlobStore | None = None) -> Judge:
        tokenizer = client.tokenizer(find_weights(self.model, client, blobs).model)
        return Judge(client.sampler(weights), tokenizer, self.render)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


RULES: Mapping[str, Callable[[str], float]] = MappingProxyType({"shorter": lambda text: -len(text), "json": _is_json})


class MeasureJudge(Stage):
    """How often the judge agrees with held-out comparisons, and how often rules would that need no judge, set by set.

    By a rule the shorter answer wins, or the one that is valid JSON; where it cannot say, it is right half of the time.
    """

    kept = True

    async def run(self, judge: Judge, comparisons: Comparisons) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, some in comparisons.held_out.items():
            if not some:
                continue
            sides = [answers(one) for one in some]
            said = await asyncio.gather(*(judge.prefers(*side) for side in sides))
            right, count = sum(each > EVEN for each in said), len(some)
            low, high = wilson(right, count)
            metrics |= {f"{name}/judge_accuracy": right / count, f"{name}/judge_preference": float(np.mean(said))}
            rows.append((name, str(count), "judge", f"{right / count:.3f} [{low:.3f}, {high:.3f}]"))
            for rule, worth in RULES.items():
                share = float(np.mean([np.sign(worth(one) - worth(other)) / 2 + EVEN for _, one, other in sides]))
                metrics[f"{name}/{rule}_wins"] = share
                rows.append((name, str(count), f"{rule} wins", f"{share:.3f}"))
        columns = ("held-out set", "comparisons", "by", "right")
        return metrics, Table("The judge on held-out comparisons, 95 % intervals", columns, tuple(rows))


class JudgeRollouts(Stage):
    """Rewards by the judge, in the place of what the answers are worth: how far it prefers them to the reference's.

    That is what the reference answers to the same problem, greedily. An answer that was cut is worth 0.
    """

    playing: Playing
    known: bool = True  # whether the data says what answers are worth: `true_reward` is the mean of what was replaced

    async def run(
        self, judge: Judge, reference: Reference, tokenizer: Tokenizer, batch: TaskBatch, rollouts: Rollouts
    ) -> tuple[Rollouts, Metrics]:
        before = [each.reward for each in alive(rollouts.all())]
        said = [await task.env().begin() for task in batch.tasks]
        drawn = [reference.sample(read_before(each, tokenizer), max_tokens=self.playing.max_tokens, temperature=0.0)
                 for each in said]
        others = [tokenizer.decode(one.tokens) for [one] in await asyncio.gather(*map(arrival, drawn))]
        groups = await asyncio.gather(*(judged(judge, heard(messages), group, other) for messages, group, other in
                                        zip(said, rollouts.groups, others, strict=True)))
        metrics = Metrics(true_reward=float(np.mean(before))) if self.known and before else Metrics()
        return Rollouts(tuple(groups)), metrics


async def judged(
    judge: Judge, request: Sequence[Message], group: Sequence[Rollout], other: str
) -> tuple[Rollout, ...]:
    """The same rollouts with the judge's word as rewards; the same answers are judged once."""
    texts = list(dict.fromkeys(each.text for each in group if not each.failed and not each.truncated))
    said = await asyncio.gather(*(judge.prefers(request, text, other) for text in texts))
    found = dict(zip(texts, said, strict=True))
    return tuple(replace(each, reward=0.0 if each.failed or each.truncated else found[each.text]) for each in group)


class JudgePlayed(Stage):
    """How far the judge prefers what the saved weights answer to held-out problems to what was answered before.

    An answer that was cut, or whose rollout failed, is worth less than one that was not.
    """

    kept = True
    seed: int = 0

    async def run(
        self, judge: Judge, tasks: Tasks, before: PlayedBefore, after: PlayedAfter
    ) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, some in tasks.held_out.items():
            requests = [heard(await task.env().begin()) for task in some]
            said = await asyncio.gather(*(_preferred(judge, *each) for each in zip(
                requests, after.answers[name], before.answers[name], strict=True)))
            found = interval(said, self.seed)
            metrics |= {f"{name}/preferred": found.estimate, f"{name}/preferred_low": found.low,
                        f"{name}/preferred_p": paired_permutation([EVEN] * len(said), said, self.seed)}
            rows.append((name, str(len(said)), f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"))
        return metrics, Table("How far the judge prefers new answers to old ones, 95 % intervals",
                              ("held-out set", "n", "0.5 is no difference"), tuple(rows))


async def _preferred(judge: Judge, request: Sequence[Message], new: str | None, old: str | None) -> float:
    if new is None or old is None:
        return EVEN + ((new is not None) - (old is not None)) / 2
    return await judge.prefers(request, new, old)
