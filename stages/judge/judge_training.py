"""Training of a judge on comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from kitchen import Step, for_each, sequence
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
from kitchen.types import FullWeights, Metrics, RunId, Table, Trainable
from stages.chat.conversations import Conversation, Message, TrainRows
from stages.chat.model_limits import length_limit
from stages.chat.render import RenderDataset
from stages.chat.template import TemplateInputs
from stages.chat.token_cost import EpochSize
from stages.chat.token_table import pair_table
from stages.data.dataset import Epochs, ShuffledBatches
from stages.judge.judge import (
    Judge,
    JudgeConfig,
    JudgeWeights,
    letter_conversation,
    request_and_answers,
)
from stages.preference.comparisons import Comparisons, pair_of
from stages.preference.dpo_losses import PairLoss
from stages.preference.pair_stages import PAIRS, PairData, ShuffledPairs
from stages.tasks.rewards import Prompt, Question
from stages.tasks.tasks import Tasks
from stages.train.optim import ForwardBackward, OptimStep, ReportStep
from stages.train.schedules import make_schedule
from stages.train.session import OpenSession, retype_checkpoint
from stages.train.suggested_lr import LORA_FACTOR

LORA_RATE = 1e-4  # default learning rate of a judge with LoRA weights


class CheckReadable(Stage):
    """Check that the judge can read the prompts, before any answer is sampled.

    With says=answer, a judge without a chat template can only read prompts of one message.
    """

    model: str  # a name of weights
    config: JudgeConfig

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> None:
        model = find_weights(self.model, client, blobs).model
        tokenizer = self.config.rendering.tokenizer(models.tokenizer(model))
        if self.config.says == "letter" or tokenizer.chat:
            return
        for name, problems in tasks.sets().items():
            for task in problems:
                if isinstance(task, Question | Prompt) and len(task.messages) > 1:
                    roles = ", ".join(message["role"] for message in task.messages)
                    raise DataError(
                        f"{name or 'train'}: a prompt has several messages ({roles}), but the "
                        f"judge {model} has no chat template to render them. Choose an instruct "
                        "model (judge.model), a judge that reads both answers as text "
                        "(judge.says=letter), or a data set with prompts of one message."
                    )

    preview = run


def train_judge(
    config: JudgeConfig, model: str, trainable: Trainable, seed: int, save_every: int
) -> Step:
    """Return the phase that trains a judge on comparisons, from weights `model`, and saves it."""
    optim = _optim(config, trainable)
    if config.says == "letter":
        steps = _train_on_letters(config, optim, seed, save_every)
    else:
        steps = _train_on_answers(config, optim, seed, save_every)
    opened = OpenSession(model, trainable, "judge")
    return sequence(opened, *steps, SaveJudge(), outputs=(JudgeWeights,))


def _train_on_letters(
    config: JudgeConfig, optim: OptimStep, seed: int, save_every: int
) -> tuple[Step, ...]:
    """Return the stages that train a judge to reply A or B."""
    batches = ShuffledBatches(config.batch_size, seed)
    return (
        BuildJudgeQuestions(),
        config.rendering,
        for_each(Epochs(config.epochs, config.batch_size))(
            for_each(batches, ahead=1, save=save_every)(
                ForwardBackward("cross_entropy"), optim, ReportStep("judge")
            )
        ),
    )


def _train_on_answers(
    config: JudgeConfig, optim: OptimStep, seed: int, save_every: int
) -> tuple[Step, ...]:
    """Return the stages that train a judge to give the better answer a higher likelihood."""
    batches = ShuffledPairs(config.batch_size, seed)
    loss = PairLoss("simpo", config.beta, imitation=config.imitation, target_margin=0.0)
    return (
        BuildJudgePairs(config.rendering),
        for_each(Epochs(config.epochs, config.batch_size).using(PAIRS))(
            for_each(batches, ahead=1, save=save_every)(
                ForwardBackward(loss), optim, ReportStep("judge")
            )
        ),
    )


def _optim(config: JudgeConfig, trainable: Trainable) -> OptimStep:
    """Return the optimiser step of a judge; the default learning rate depends on the weights."""
    default = LORA_RATE / LORA_FACTOR if isinstance(trainable, FullWeights) else LORA_RATE
    rate = default if config.learning_rate is None else config.learning_rate
    return OptimStep(make_schedule("linear", rate, config.warmup_steps))


class BuildJudgePairs(Stage):
    """Render comparisons to pairs of datums; drop those that the judge cannot read."""

    render: RenderDataset

    def run(self, comparisons: Comparisons, tokenizer: Tokenizer) -> tuple[PairData, Metrics]:
        rows = comparisons.train
        rendered = [pair_of(row.chosen, row.rejected, tokenizer, self.render) for row in rows]
        pairs = tuple(pair for pair in rendered if pair is not None)
        if not pairs:
            limit, fix = length_limit(self.render.max_tokens, tokenizer, "judge.max_tokens")
            raise DataError(
                f"the judge can read none of the {len(rows)} comparisons: they do not fit into "
                f"{limit} ({fix}), or the judge's chat template changes all answers."
            )
        return PairData(pairs), Metrics({"data/unread": float(len(rows) - len(pairs))})

    def preview(self, comparisons: Comparisons, tokenizer: Tokenizer) -> tuple[EpochSize, Table]:
        pairs = self.run(comparisons, tokenizer)[0].data
        tokens = sum(len(datum.tokens) for datum in chain.from_iterable(pairs))
        size = EpochSize(len(pairs), "pairs", tokens)
        return size, pair_table("The judge's first pair", *pairs[0], tokenizer)


class BuildJudgeQuestions(Stage):
    """Turn comparisons into questions in both orders, so that the judge learns no position bias."""

    def run(self, comparisons: Comparisons) -> TrainRows:
        questions = []
        for row in comparisons.train:
            for question in _in_both_orders(*request_and_answers(row), row.chosen.inputs):
                questions.append(replace(question, where=row.chosen.where))
        return TrainRows(questions)

    preview = run


def _in_both_orders(
    request: Sequence[Message], better: str, worse: str, inputs: TemplateInputs
) -> tuple[Conversation, Conversation]:
    return (
        letter_conversation(request, better, worse, "A", inputs),
        letter_conversation(request, worse, better, "B", inputs),
    )


class SaveJudge(Stage):
    """Export the weights of the judge."""

    def run(self, session: TrainingSession, run: RunId) -> Future[JudgeWeights]:
        saved = session.save_weights(f"{run.id}/weights/judge", overwrite=True)
        return start(retype_checkpoint(JudgeWeights, saved))


class OpenJudge(Stage):
    """Open the trained judge, whose weights no longer change."""

    model: str  # name of the weights that its training started from
    config: JudgeConfig

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        weights: JudgeWeights,
        blobs: BlobStore | None = None,
    ) -> Judge:
        tokenizer = models.tokenizer(find_weights(self.model, client, blobs).model)
        return Judge(
            client.sampler(weights), tokenizer, self.config, name=f"trained from {self.model}"
        )
