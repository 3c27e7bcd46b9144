"""How a judge learns from comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kitchen import Lora, Step, for_each, sequence
from kitchen.artifacts.weights import find_weights
from kitchen.errors import DataError
from kitchen.ports import (
    BlobStore,
    Future,
    ModelCatalog,
    Tokenizer,
    TrainingClient,
    TrainingSession,
    start,
)
from kitchen.stage import Stage
from kitchen.types import Metrics, RunId
from stages.chat.conversations import Conversation, Message, TrainRows
from stages.chat.render import RenderDataset, TrainData
from stages.chat.token_cost import EpochSize
from stages.data.dataset import Epochs, ShuffledBatches
from stages.judge.judge import Judge, JudgeWeights, Judging, answers, asked
from stages.judge.judge_rewards import MeasureJudge, MeasureJudgeBefore
from stages.preference.comparisons import Comparisons, pair_of
from stages.preference.dpo import PairData, ShuffledPairs
from stages.preference.pair_loss import PairLoss
from stages.tasks.rewards import Prompt, Question
from stages.tasks.tasks import Tasks
from stages.train.optim import ForwardBackward, OptimStep, ReportStep
from stages.train.schedules import make_schedule
from stages.train.session import OpenSession, retype_checkpoint


class CheckReadable(Stage):
    """Before answers are ranked: what they answer can be read by the judge.

    A judge of answers that has no chat template reads questions of one message each.
    """

    model: str  # a name of weights
    how: Judging

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> None:
        model = find_weights(self.model, client, blobs).model
        if self.how.says == "letter" or models.tokenizer(model).chat:
            return
        for name, some in tasks.sets().items():
            asked = (task.messages for task in some if isinstance(task, Question | Prompt))
            if long := next((each for each in asked if len(each) > 1), None):
                who = ", ".join(message["role"] for message in long)
                raise DataError(
                    f"{name or 'train'}: a question has messages from {who}, and {model}, which is "
                    "to "
                    "judge answers to it, has no chat template: take an instruct model "
                    "(judge.model), one "
                    "that reads both answers as text (judge.says=letter), or questions of one "
                    "message"
                )

    preview = run


def learn_to_judge(
    how: Judging, model: str, lora: Lora, seed: int, save_every: int
) -> tuple[Step, ...]:
    """A phase of its own, of which the judge's weights come, and then the judge, as good as it is."""
    model = how.model or model
    return (
        MeasureJudgeBefore(model, how),
        sequence(
            OpenSession(model, lora, "judge"),
            *_lessons(how, seed, save_every),
            SaveJudge(),
            outputs=(JudgeWeights,),
        ),
        OpenJudge(model, how),
        MeasureJudge(seed),
    )


def _lessons(how: Judging, seed: int, save_every: int) -> tuple[Step, ...]:
    """From comparisons to the judge's optimiser steps."""
    epochs, size, ahead = Epochs(how.epochs, how.batch_size), how.batch_size, 1
    optim = (
        OptimStep(make_schedule("linear", how.learning_rate, how.warmup_steps)),
        ReportStep("judge"),
    )
    if how.says == "letter":
        return (
            AskBothWays(),
            how.rendering,
            for_each(epochs)(
                for_each(ShuffledBatches(size, seed), ahead=ahead, save=save_every)(
                    ForwardBackward(), *optim
                )
            ),
        )
    return PairAnswers(how.rendering), for_each(epochs.using({TrainData: PairData}))(
        for_each(ShuffledPairs(size, seed), ahead=ahead, save=save_every)(
            ForwardBackward(
                PairLoss("simpo", how.beta, imitation=how.imitation, target_margin=0.0)
            ),
            *optim,
        )
    )


class PairAnswers(Stage):
    """Comparisons as pairs of answers to a request; those that the judge cannot read are left out,
    and counted.
    """

    render: RenderDataset

    def run(self, comparisons: Comparisons, tokenizer: Tokenizer) -> tuple[PairData, Metrics]:
        found = [
            pair_of(one.chosen, one.rejected, tokenizer, self.render) for one in comparisons.train
        ]
        pairs = tuple(two for two in found if two is not None)
        if not pairs:
            raise DataError(
                f"none of {len(found)} comparisons can be read: raise judge.max_tokens="
                f"{self.render.max_tokens}, unless the chat template changes all answers"
            )
        return PairData(pairs), Metrics({"data/unread": float(len(found) - len(pairs))})

    def preview(self, comparisons: Comparisons, tokenizer: Tokenizer) -> EpochSize:
        pairs = self.run(comparisons, tokenizer)[0].data
        return EpochSize(
            len(pairs), "pairs", sum(len(datum.tokens) for pair in pairs for datum in pair)
        )


class AskBothWays(Stage):
    """Comparisons as questions to the judge, in both orders, so that it cannot learn to prefer a
    place.
    """

    def run(self, comparisons: Comparisons) -> TrainRows:
        return TrainRows(
            [
                replace(each, where=one.chosen.where)
                for one in comparisons.train
                for each in _both(*answers(one))
            ]
        )

    preview = run


def _both(request: Sequence[Message], answer: str, other: str) -> tuple[Conversation, Conversation]:
    return asked(request, answer, other, "A"), asked(request, other, answer, "B")


class SaveJudge(Stage):
    """Export the weights of the judge."""

    def run(self, session: TrainingSession, run: RunId) -> Future[JudgeWeights]:
        return start(
            retype_checkpoint(
                JudgeWeights, session.save_weights(f"{run.id}/weights/judge", overwrite=True)
            )
        )


class OpenJudge(Stage):
    """The trained judge, which does not change any more."""

    model: str  # a name of weights, those that it began with
    how: Judging

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        weights: JudgeWeights,
        blobs: BlobStore | None = None,
    ) -> Judge:
        tokenizer = models.tokenizer(find_weights(self.model, client, blobs).model)
        return Judge(client.sampler(weights), tokenizer, self.how)
