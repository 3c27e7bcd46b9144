"""A judge that is used as it is, without training: by its log-probabilities, or by its replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kitchen import Lora, Step
from kitchen.artifacts.weights import find_weights
from kitchen.backend.sampling_router import is_sampled_elsewhere
from kitchen.ports import BlobStore, ModelCatalog, SamplingClient, TrainingClient
from kitchen.stage import Need, Stage
from kitchen.types import Table
from stages.judge.judge import Judge, JudgeConfig
from stages.judge.judge_rewards import EvaluateBaseJudge
from stages.judge.judge_training import OpenJudge, train_judge


class OpenAskedJudge(Stage):
    """Open a judge that is not trained."""

    model: str  # a name of weights
    config: JudgeConfig
    seed: int = 0
    rollouts: int = 0  # that it judges in training

    def run(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None = None
    ) -> Judge:
        weights = find_weights(self.model, client, blobs)
        tokenizer = models.tokenizer(weights.model)
        return Judge(client.sampler(weights.source), tokenizer, self.config, self.seed, self.model)

    def preview(self, client: TrainingClient, blobs: BlobStore | None = None) -> Table:
        find_weights(self.model, client, blobs)
        calls = 2 * self.config.draws
        if calls:
            use = "asked in both orders, not trained"
            total = self.rollouts * calls
            written = f"at most {total * self.config.reply_tokens:,}"
        else:
            use = "log-probabilities, not trained"
            total, written = self.rollouts * 2, "none"
        rows = (
            ("weights", self.model),
            ("use", use),
            ("calls per answer", str(calls or 2)),
            ("calls in training", f"at most {total:,}"),
            ("tokens that the judge writes", written),
        )
        return Table("The judge", ("quantity", "value"), rows)

    def needs(self) -> Iterable[Need]:
        if self.config.draws or not is_sampled_elsewhere(self.model):
            return []
        fix = "set judge.says=letter, and judge.draws to 1 or more, so that the judge is asked"
        return [Need(SamplingClient, "prompt_logprobs", alternative=fix)]

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.model, client, blobs)


def judge_steps(
    config: JudgeConfig, model: str, lora: Lora, seed: int, save_every: int, rollouts: int
) -> Sequence[Step]:
    """Return the steps that train and open a judge, or that open one as it is.

    Raises ConfigError for weights that cannot be trained, unless the judge is asked.
    """
    config.check_weights(model)
    if config.asked:
        return (OpenAskedJudge(model, config, seed, rollouts),)
    return (
        EvaluateBaseJudge(model, config),
        train_judge(config, model, lora, seed, save_every),
        OpenJudge(model, config),
    )
