"""Teachers of on-policy distillation: one for each data set, optionally with a system prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain

import numpy as np

from kitchen.backend.work import gather_counted
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Need, Stage
from kitchen.types import Array, Facts, Metrics, Tokens
from stages.chat.conversations import Conversation, with_system_prompt
from stages.chat.prompts import check_system_prompt, whole_prompt_tokens
from stages.chat.render import RenderDataset
from stages.chat.template import DEFAULT_RENDERING, PromptRendering
from stages.data.dataset import DEFAULT_DATASET
from stages.evaluate.reference import (
    PROMPT_LOGPROBS,
    open_reference,
    verify_reference,
    weights_facts,
)
from stages.rl.policy_gradient import RolloutLogprobs, reference_kl
from stages.rl.rollouts import Episode, Rollouts
from stages.tasks.tasks import TaskBatch, prompt_of_task

TeacherNames = Mapping[str, str]  # names of weights by data set; "" stands for all data sets


@dataclass(frozen=True)
class TeacherInput:
    """An answer of the student, with the prompt that its teacher reads."""

    teacher: Sampler
    tokens: Tokens
    episode: Episode
    start: int  # index of the answer's first token in `tokens`

    def aligned(self, values: Array) -> Array:
        """Shift values of the teacher's tokens to the student's, (T, ...); 0 before the answer."""
        at = int(np.argmax(self.episode.action_mask))
        zeros = np.zeros((at, *values.shape[1:]), values.dtype)
        return np.concatenate([zeros, values[self.start :]])


@dataclass(frozen=True)
class Teachers:
    """Open samplers of the teachers, whose tokenizer is the student's."""

    samplers: Mapping[str, Sampler]
    instruction: str
    tokenizer: Tokenizer
    render: PromptRendering = DEFAULT_RENDERING

    async def inputs(self, batch: TaskBatch, rollouts: Rollouts) -> list[TeacherInput]:
        """Return all answers of a batch with the teachers' prompts, in the order of episodes."""
        inputs = []
        for task, group in zip(batch.tasks, rollouts.groups, strict=True):
            teacher = self.samplers[task.tag if task.tag in self.samplers else ""]
            prompt = self._prompt(await prompt_of_task(task))
            for episode in chain.from_iterable(rollout.episodes for rollout in group):
                answer = episode.tokens[int(np.argmax(episode.action_mask)) :]
                tokens = np.concatenate([prompt, answer])
                inputs.append(TeacherInput(teacher, tokens, episode, len(prompt)))
        return inputs

    def _prompt(self, prompt: Conversation) -> Tokens:
        prompted = with_system_prompt(prompt, self.instruction)
        return whole_prompt_tokens(prompted, self.tokenizer, self.render)

    def close(self) -> None:
        with ExitStack() as stack:
            for sampler in self.samplers.values():
                stack.enter_context(closing(sampler))


class OpenTeachers(Stage):
    """Open the teachers; a resumed run must find the same weights under their names."""

    names: TeacherNames
    instruction: str = ""  # a system prompt that only the teachers read
    render: PromptRendering = DEFAULT_RENDERING
    model: str = ""  # the one that is trained, for a check before the run

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        blobs: BlobStore | None = None,
    ) -> tuple[Teachers, Facts]:
        check_system_prompt(self.instruction, self.render.tokenizer(tokenizer))
        samplers = dict[str, Sampler]()
        facts = Facts()
        try:
            for tag, name in self.names.items():
                role = _role(tag)
                facts |= weights_facts(name, role, client, blobs)
                samplers[tag] = open_reference(name, role, client, models, tokenizer, blobs)
        except BaseException:
            Teachers(samplers, "", tokenizer).close()
            raise
        return Teachers(samplers, self.instruction, tokenizer, self.render), facts

    def verify(
        self,
        client: TrainingClient,
        models: ModelCatalog | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        for tag, name in self.names.items():
            verify_reference(name, _role(tag), self.model, client, models, blobs)


def _role(tag: str) -> str:
    return f"teacher.{tag}" if tag else "teacher"


class ComputeTeacherLogprobs(Stage):
    """Compute each teacher's log-probabilities of the answers to its data set's prompts."""

    async def run(
        self, teachers: Teachers, batch: TaskBatch, rollouts: Rollouts
    ) -> tuple[RolloutLogprobs, Metrics]:
        inputs = await teachers.inputs(batch, rollouts)
        requests = [answer.teacher.logprobs(answer.tokens) for answer in inputs]
        logprobs = await gather_counted(requests, "sequences")
        aligned = [answer.aligned(lp) for answer, lp in zip(inputs, logprobs, strict=True)]
        return reference_kl(rollouts, aligned, "teacher")

    def needs(self) -> Iterable[Need]:
        return [PROMPT_LOGPROBS]


def check_chat(rendering: RenderDataset) -> None:
    """Raise ConfigError if held-out rows would be rendered differently from training prompts."""
    if rendering.chat is not None:
        raise ConfigError(
            f"rendering.chat={str(rendering.chat).lower()}: training prompts use the chat template "
            "if the model has one, and held-out rows must be rendered alike. Leave it out."
        )


def teacher_names(
    teacher: str | None, teachers: TeacherNames | None, model: str, instruction: str, dataset: str
) -> TeacherNames:
    """Return the name of each data set's teacher from the settings; raises ConfigError."""
    if teachers is not None and (teacher is not None or dataset != DEFAULT_DATASET):
        raise ConfigError(
            "teachers.DATASET=WEIGHTS sets the data sets and a teacher for each: leave "
            f"{'dataset' if teacher is None else 'teacher'} out."
        )
    if teachers is not None and not teachers:
        raise ConfigError(
            "teachers names no data set: set one for each, as in teachers.ingredients=run:ID."
        )
    if teachers is None and teacher is None and not instruction:
        raise ConfigError(
            "there is no teacher: set teacher=WEIGHTS; or teachers.DATASET=WEIGHTS for each data "
            "set; or instruction=TEXT, a system prompt that makes the model its own teacher."
        )
    return {"": teacher or model} if teachers is None else teachers
