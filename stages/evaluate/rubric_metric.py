"""A rubric as the metric of an evaluation: a judge scores the answers."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.artifacts.weights import find_weights
from kitchen.backend.work import gather_counted
from kitchen.errors import ConfigError, DataError, RunFailed
from kitchen.ports import BlobStore, ModelCatalog, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.conversations import Conversation
from stages.chat.prompts import prefill_text, prompt_dicts, reference_answers
from stages.data.dataset import HeldOut
from stages.evaluate.metric_functions import MAX_FAILED, METRIC
from stages.tasks.grading import GradingConfig
from stages.tasks.open_rubric_judge import open_judge, planned_judge
from stages.tasks.rubric import RUBRIC, RubricConfig
from stages.tasks.rubric_judge import RubricJudge, RubricReward, Verdict


async def judged_answers(
    judge: RubricJudge, answers: Sequence[tuple[Conversation, str]], grading: GradingConfig
) -> list[Verdict]:
    """Ask a judge about all answers at once; raises RunFailed if too many have no score."""
    asked = (_verdict(judge, *answer, grading) for answer in answers)
    verdicts = await gather_counted(asked, "judged answers")
    failed = [at for at, verdict in enumerate(verdicts) if verdict.reward is None]
    if len(failed) > MAX_FAILED * len(answers):
        raise RunFailed(
            f"{answers[failed[0]][0].where}: {METRIC}={RUBRIC}: {len(failed)} of {len(answers)} "
            f"answers have no score, more than {MAX_FAILED:.0%}. The first error: "
            f"{verdicts[failed[0]].problem}"
        )
    return verdicts


async def _verdict(
    judge: RubricJudge, row: Conversation, text: str, grading: GradingConfig
) -> Verdict:
    """Return the verdict about one answer; one that is too long to judge has none."""
    references = tuple(filter(None, reference_answers(row)))
    rubric = RubricReward(1.0, False, references, prefill_text(row), grading, judge)
    try:
        return await rubric.score(prompt_dicts(row), row.inputs, text)
    except DataError as error:
        return Verdict(None, {}, problem=str(error))


class OpenMetricJudge(Stage):
    """Open the judge of `evaluation.metric=rubric`; a resumed run must find the same weights."""

    model: str  # a name of weights
    config: RubricConfig
    seed: int = 0
    tries: int = 1  # answers per problem

    def run(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None = None
    ) -> tuple[RubricJudge, Facts]:
        return open_judge(self.model, self.config, self.seed, client, models, blobs)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[RubricJudge, Table]:
        judge = planned_judge(self.model, self.config, self.seed, client, models, blobs)
        answers = self.tries * sum(map(len, held_out.sets.values()))
        return judge, judge.config.summary(self.model, "calls in all", answers)

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.model, client, blobs)


def metric_judge(metric: str, rubric: RubricConfig, seed: int, tries: int) -> Sequence[Stage]:
    """Return the stage that opens the judge of an evaluation, if there is one.

    Raises ConfigError for settings without effect, and for a judge that is not named.
    """
    if metric != RUBRIC:
        if rubric != RubricConfig():
            raise ConfigError(
                "the settings of rubric have no effect without evaluation.metric=rubric: set it, "
                "or leave them out"
            )
        return ()
    if rubric.model is None:
        raise ConfigError(
            "evaluation.metric=rubric needs a judge: set rubric.model to its weights, such as "
            "openai:MODEL"
        )
    return (OpenMetricJudge(rubric.model, rubric, seed, tries),)
