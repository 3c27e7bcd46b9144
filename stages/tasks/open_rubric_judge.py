"""The stage that opens the judge of `reward=rubric`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain

from kitchen.artifacts.weights import find_weights
from kitchen.ports import BlobStore, ModelCatalog, TrainingClient
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.token_table import MarkedTokens, token_table
from stages.tasks.rewards import Question, judge_prompts, judged_questions
from stages.tasks.rubric import RubricConfig
from stages.tasks.rubric_judge import RubricJudge
from stages.tasks.tasks import Tasks


class OpenRubricJudge(Stage):
    """Open the judge that scores answers by a rubric; a resumed run must find the same weights."""

    model: str  # a name of weights
    config: RubricConfig = RubricConfig()
    seed: int = 0

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> tuple[Tasks, Facts]:
        judge, facts = open_judge(self.model, self.config, self.seed, client, models, blobs)
        return with_judge(tasks, judge), facts

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tasks: Tasks,
        blobs: BlobStore | None = None,
    ) -> tuple[Tasks, Table, Table]:
        judge = planned_judge(self.model, self.config, self.seed, client, models, blobs)
        judged = with_judge(tasks, judge)
        first = next(judged_questions(judged.train), None)
        prompts = [] if first is None else judge_prompts(first)
        shown = [MarkedTokens.of_prompt(prompt) for prompt in prompts[:1]]
        tokens = token_table("The judge's first prompt", shown, judge.model.tokenizer)
        held_out = sum(1 for _ in judged_questions(chain.from_iterable(tasks.held_out.values())))
        label = "calls per evaluation of all held-out answers"
        return judged, self.config.summary(self.model, label, held_out), tokens

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.model, client, blobs)


def open_judge(
    model: str,
    config: RubricConfig,
    seed: int,
    client: TrainingClient,
    models: ModelCatalog,
    blobs: BlobStore | None,
) -> tuple[RubricJudge, Facts]:
    """Open a judge by the name of its weights, with the facts that identify them."""
    weights = find_weights(model, client, blobs)
    tokenizer, sampler = weights.tokenizer(models), client.sampler(weights.source)
    facts = Facts({**weights.facts(client, "rubric"), "rubric.model": weights.model})
    return RubricJudge.of(config, tokenizer, sampler, seed), facts


def planned_judge(
    model: str,
    config: RubricConfig,
    seed: int,
    client: TrainingClient,
    models: ModelCatalog,
    blobs: BlobStore | None,
) -> RubricJudge:
    """Return the judge of a plan, which has a tokenizer and asks nothing."""
    tokenizer = find_weights(model, client, blobs).tokenizer(models)
    return RubricJudge.of(config, tokenizer, None, seed)


def with_judge(tasks: Tasks, judge: RubricJudge) -> Tasks:
    """Return the problems with the judge in those that are rewarded by a rubric."""
    sets = {
        name: tuple(map(partial(_with, judge), problems)) for name, problems in tasks.sets().items()
    }
    return replace(tasks, train=sets.pop(""), held_out=sets, judge=judge)


def _with(judge: RubricJudge, task: Task) -> Task:
    if not isinstance(task, Question) or task.rubric is None:
        return task
    return replace(task, rubric=replace(task.rubric, judge=judge))
