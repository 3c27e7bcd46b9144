"""A judge that is used as it is, without training: by its log-probabilities, or by its replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kitchen import Step
from kitchen.artifacts.weights import find_weights
from kitchen.backend.sampling_router import is_sampled_elsewhere
from kitchen.ports import BlobStore, ModelCatalog, SamplingClient, TrainingClient
from kitchen.stage import Need, Stage
from kitchen.types import Table, Trainable
from stages.chat.messages import messages_from_dicts
from stages.chat.prompts import render_prompt
from stages.judge.judge import Judge, JudgeConfig, asked_prompt
from stages.judge.judge_rewards import EvaluateBaseJudge
from stages.judge.judge_training import OpenJudge, train_judge
from stages.tasks.rewards import Prompt, Question
from stages.tasks.tasks import Tasks


class OpenAskedJudge(Stage):
    """Open a judge that is not trained."""

    model: str  # a name of weights
    config: JudgeConfig
    seed: int = 0
    rollouts: int = 0  # that it judges in training
    answer_tokens: int = 0  # maximum tokens of an answer

    def run(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None = None
    ) -> Judge:
        weights = find_weights(self.model, client, blobs)
        tokenizer = weights.tokenizer(models)
        return Judge(client.sampler(weights.source), tokenizer, self.config, self.seed, self.model)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> Table:
        model = find_weights(self.model, client, blobs).model
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
            *self._tokens_read(tasks, models, model, total),
            ("tokens that the judge writes", written),
        )
        return Table("The judge", ("quantity", "value"), rows)

    def _tokens_read(
        self, tasks: Tasks, models: ModelCatalog, model: str, calls: int
    ) -> Iterator[tuple[str, str]]:
        """Yield the row of the tokens read, from the longest prompt, if a judge is asked."""
        known = [task for task in tasks.train if isinstance(task, Question | Prompt)]
        if not self.config.draws or not known:
            return
        longest = max(known, key=lambda task: len(str(task.messages)))
        request = messages_from_dicts(longest.messages)
        prompt = asked_prompt(request, "", "", longest.inputs)
        tokenizer = self.config.rendering.tokenizer(models.tokenizer(model))
        size = len(render_prompt([{"role": "user", "content": prompt}], tokenizer))
        yield (
            "tokens that the judge reads",
            f"at most about {calls * (size + 2 * self.answer_tokens):,}",
        )

    def needs(self) -> Iterable[Need]:
        if self.config.draws or not is_sampled_elsewhere(self.model):
            return []
        fix = "set judge.says=letter, and judge.draws to 1 or more, so that the judge is asked"
        return [Need(SamplingClient, "prompt_logprobs", alternative=fix)]

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.model, client, blobs)


def judge_steps(
    config: JudgeConfig,
    model: str,
    trainable: Trainable,
    seed: int,
    save_every: int,
    rollouts: int,
    answer_tokens: int,
) -> Sequence[Step]:
    """Return the steps that train and open a judge, or that open one as it is.

    Raises ConfigError for weights that cannot be trained, unless the judge is asked.
    """
    config.check_weights(model)
    if config.asked:
        return (OpenAskedJudge(model, config, seed, rollouts, answer_tokens),)
    return (
        EvaluateBaseJudge(model, config),
        train_judge(config, model, trainable, seed, save_every),
        OpenJudge(model, config),
    )
