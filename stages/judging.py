"""A judge: a language model that says which of two answers is better, so that its word can be a reward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from kitchen import Lora, Step, for_each, sequence
from kitchen.errors import DataError
from kitchen.ports import BlobStore, Future, Sampler, Tokenizer, TrainingClient, TrainingSession, arrival, start
from kitchen.stage import Stage
from kitchen.types import Array, Checkpoint, Metrics, RunId, Table
from kitchen.weights import find_weights
from stages.conversations import Conversation, Message, TrainRows, heard
from stages.data import Epochs, ShuffledBatches
from stages.dpo import PairData, ShuffledPairs
from stages.evaluation import question, read_before, wanted
from stages.optimise import ForwardBackward, OptimStep, ReportStep
from stages.pair_loss import PairLoss
from stages.playing import PlayedAfter, PlayedBefore
from stages.preferences import Comparison, Comparisons, pair_of
from stages.render import RenderDataset, TrainData
from stages.rollouts import Playing, Rollout, Rollouts, alive
from stages.schedules import schedule
from stages.scoring import Reference
from stages.sessions import OpenSession, saved_as
from stages.statistics import interval, paired_permutation
from stages.tasks import TaskBatch, Tasks

EVEN = 0.5  # how far a judge prefers an answer to itself
JudgeSays = Literal["answer", "letter"]


@dataclass(frozen=True)
class Judging:
    """What the judge says, and how it is trained."""

    says: JudgeSays = "answer"  # it reads the request, and gives the better answer; letter: reads both, and says A or B
    model: str | None = None  # weights of any name to begin with; null for those that the policy begins with
    beta: PositiveFloat = 10.0  # of answer: how much surer it is by a nat per token between the two
    imitation: NonNegativeFloat = 1.0  # of answer: weight of the better answers' own cross-entropy, nats per token
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 16  # of an optimiser step: comparisons, or with letter questions, two of a comparison
    learning_rate: PositiveFloat = 1e-4  # the highest, at the end of warm-up
    warmup_steps: NonNegativeInt = 5  # optimiser steps
    max_tokens: PositiveInt = 1024  # of what it reads and says; what is longer is not learnt from

    @property
    def rendering(self) -> RenderDataset:
        return RenderDataset("last_assistant_message", self.max_tokens, "drop")

    def lessons(self, seed: int, save_every: int) -> tuple[Step, ...]:
        """From comparisons to the judge's optimiser steps."""
        epochs, size, ahead = Epochs(self.epochs, self.batch_size), self.batch_size, 1
        optim = OptimStep(schedule("linear", self.learning_rate, self.warmup_steps)), ReportStep("judge")
        if self.says == "letter":
            return AskBothWays(), self.rendering, for_each(epochs)(for_each(
                ShuffledBatches(size, seed), ahead=ahead, save=save_every)(ForwardBackward(), *optim))
        return PairAnswers(self.rendering), for_each(epochs.using({TrainData: PairData}))(for_each(
            ShuffledPairs(size, seed), ahead=ahead, save=save_every)(
                ForwardBackward(PairLoss("simpo", self.beta, imitation=self.imitation, target_margin=0.0)), *optim))


def learn_to_judge(how: Judging, model: str, lora: Lora, seed: int, save_every: int) -> tuple[Step, ...]:
    """A phase of its own, of which the judge's weights come, and then the judge, as good as it is."""
    model = how.model or model
    return (sequence(OpenSession(model, lora, "judge"), *how.lessons(seed, save_every), SaveJudge(),
                     leaves=(JudgeWeights,)),
            OpenJudge(model, how), MeasureJudge(seed))


@dataclass(frozen=True)
class JudgeWeights(Checkpoint):
    """Of a judge, when its training is over."""

    policy: ClassVar[bool] = False


def answered(request: Sequence[Message], answer: str) -> Conversation:
    """What a judge of answers reads, and an answer that it may give."""
    return Conversation((*request, Message("assistant", answer)), "what the judge is asked", plain=len(request) == 1)


def asked(request: Sequence[Message], first: str, second: str, letter: str) -> Conversation:
    """What a judge of letters reads, and what it may say."""
    said = request[0].content if len(request) == 1 else "\n".join(f"{each.role}: {each.content}" for each in request)
    text = (f"Which answer to this request is better?\n\n{said}\n\nAnswer A:\n{first}\n\nAnswer B:\n{second}\n\n"
            "Reply with A or B.")
    return Conversation((Message("user", text), Message("assistant", letter)), "what the judge is asked", plain=True)


class PairAnswers(Stage):
    """Comparisons as pairs of answers to a request; those that are too long are left out, and counted."""

    render: RenderDataset

    def run(self, comparisons: Comparisons, tokenizer: Tokenizer) -> tuple[PairData, Metrics]:
        found = [pair_of(one.chosen, one.rejected, tokenizer, self.render) for one in comparisons.train]
        pairs = tuple(two for two in found if two is not None)
        if not pairs:
            raise DataError(f"none of {len(found)} comparisons fits into judge.max_tokens={self.render.max_tokens}; "
                            "raise it")
        return PairData(pairs), Metrics({"data/too_long": float(len(found) - len(pairs))})


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
    """A language model that gives the better answer, or says A or B."""

    sampler: Sampler
    tokenizer: Tokenizer
    how: Judging

    async def prefers(self, request: Sequence[Message], answer: str, other: str) -> float | None:
        """How far it prefers `answer`, 0..1, and an answer to itself 0.5; None for what is too long for it.

        Of answers, the chance by Bradley and Terry (1952, doi:10.2307/2334029) where each is as strong as beta times
        the mean log-probability of its tokens, nats (the reward of Meng et al., 2024, arXiv:2405.14734, eq. 4). Of
        letters, the mean of both orders (Zheng et al., 2023, arXiv:2306.05685): how likely it says A where `answer` is
        A, and that it does not where `other` is.
        """
        letters = self.how.says == "letter"
        both = ((asked(request, answer, other, "A"), asked(request, other, answer, "A")) if letters else
                (answered(request, answer), answered(request, other)))
        first, second = await asyncio.gather(*map(self._nats, both))
        if first is None or second is None:
            return None
        if letters:
            return EVEN + float(np.exp(first.sum()) - np.exp(second.sum())) / 2
        return float(np.exp(-np.logaddexp(0, -self.how.beta * (first.mean() - second.mean()))))

    async def _nats(self, conversation: Conversation) -> Array | None:
        """(N,) log-probabilities of what is said last; None where there is no room for it."""
        data = self.how.rendering.datums(conversation, self.tokenizer)
        if not data:
            return None
        [datum] = data
        found = await arrival(self.sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
        said: Array = found[1:].astype(np.float64)[datum.loss_inputs["weights"] != 0]
        return said

    def close(self) -> None:
        self.sampler.close()


class OpenJudge(Stage):
    """The trained judge, which does not change any more."""

    model: str  # a name of weights, those that it began with
    how: Judging

    def run(self, client: TrainingClient, weights: JudgeWeights, blobs: BlobStore | None = None) -> Judge:
        tokenizer = client.tokenizer(find_weights(self.model, client, blobs).model)
        return Judge(client.sampler(weights), tokenizer, self.how)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


RULES: Mapping[str, Callable[[str], float]] = MappingProxyType({"shorter": lambda text: -len(text), "json": _is_json})


class MeasureJudge(Stage):
    """How often the judge agrees with held-out comparisons, and how often rules would that need no judge, set by set.

    By a rule the shorter answer wins, or the one that is valid JSON. Who cannot say is right half of the time. What is
    too long for the judge is counted, and left out.
    """

    kept = True
    seed: int = 0

    async def run(self, judge: Judge, comparisons: Comparisons) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, some in comparisons.held_out.items():
            if not some:
                continue
            sides = [answers(one) for one in some]
            said = await asyncio.gather(*(judge.prefers(*side) for side in sides))
            read = [each for each in said if each is not None]
            metrics[f"{name}/judge_unread"] = float(len(said) - len(read))
            if read:
                found = interval([_right(each, EVEN) for each in read], self.seed)
                metrics |= {f"{name}/judge_accuracy": found.estimate, f"{name}/judge_preference": float(np.mean(read))}
                rows.append((name, str(len(read)), "judge",
                             f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"))
            for rule, worth in RULES.items():
                share = float(np.mean([_right(worth(one), worth(other)) for _, one, other in sides]))
                metrics[f"{name}/{rule}_wins"] = share
                rows.append((name, str(len(some)), f"{rule} wins", f"{share:.3f}"))
        columns = ("held-out set", "comparisons", "by", "right")
        return metrics, Table("The judge on held-out comparisons, 95 % intervals", columns, tuple(rows))


def _right(better: float, worse: float) -> float:
    return float(np.sign(better - worse) / 2 + EVEN)


class JudgeRollouts(Stage):
    """Rewards by the judge, in the place of what the answers are worth: how far it prefers them to the reference's.

    That is what the reference answers to the same problem, greedily. An answer that was cut, or that the judge has no
    room for, is worth 0; `judge_unread` is the share of the latter.
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
        metrics = Metrics(judge_unread=sum(count for _, count in groups) / max(len(before), 1))
        if self.known and before:
            metrics["true_reward"] = float(np.mean(before))
        return Rollouts(tuple(group for group, _ in groups)), metrics


async def judged(
    judge: Judge, request: Sequence[Message], group: Sequence[Rollout], other: str
) -> tuple[tuple[Rollout, ...], int]:
    """The same rollouts with the judge's word as rewards, and how many it could not read.

    The same answers are judged once.
    """
    whole = [each.text for each in group if not each.failed and not each.truncated]
    texts = list(dict.fromkeys(whole))
    said = await asyncio.gather(*(judge.prefers(request, text, other) for text in texts))
    found = dict(zip(texts, said, strict=True))
    return tuple(replace(each, reward=0.0 if each.failed or each.truncated else found[each.text] or 0.0)
                 for each in group), sum(found[text] is None for text in whole)


class JudgePlayed(Stage):
    """How far the judge prefers what the saved weights answer to held-out problems to what was answered before.

    An answer that was cut, or whose rollout failed, is worth less than one that was not. What is too long for the judge
    is counted, and left out.
    """

    kept = True
    seed: int = 0

    async def run(
        self, judge: Judge, tasks: Tasks, before: PlayedBefore, after: PlayedAfter
    ) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), []
        for name, some in tasks.held_out.items():
            requests = [heard(await task.env().begin()) for task in some]
            heard_of = await asyncio.gather(*(_preferred(judge, *each) for each in zip(
                requests, after.answers[name], before.answers[name], strict=True)))
            said = [each for each in heard_of if each is not None]
            metrics[f"{name}/unread"] = float(len(heard_of) - len(said))
            if not said:
                continue
            found = interval(said, self.seed)
            metrics |= {f"{name}/preferred": found.estimate, f"{name}/preferred_low": found.low,
                        f"{name}/preferred_p": paired_permutation([EVEN] * len(said), said, self.seed)}
            rows.append((name, str(len(said)), f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}]"))
        return metrics, Table("How far the judge prefers new answers to old ones, 95 % intervals",
                              ("held-out set", "n", "0.5 is no difference"), tuple(rows))


async def _preferred(judge: Judge, request: Sequence[Message], new: str | None, old: str | None) -> float | None:
    if new is None or old is None:
        return EVEN + ((new is not None) - (old is not None)) / 2
    return await judge.prefers(request, new, old)
