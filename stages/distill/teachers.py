"""Teachers that say what they would have said: each of its own data set, and with a system prompt
of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from kitchen import ports
from kitchen.artifacts.weights import find_weights
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient, arrival
from kitchen.stage import Stage
from kitchen.types import Array, Facts, Metrics, Tokens
from stages.chat.conversations import Conversation, messages_from_dicts, with_system_prompt
from stages.chat.prompts import check_system_prompt, message_to_dict, render_prompt
from stages.chat.render import RenderDataset
from stages.data.dataset import DEFAULT_DATASET
from stages.evaluate.reference import open_reference, weights_facts
from stages.rl.policy_gradient import ReferenceScores, straying
from stages.rl.rollouts import Episode, Rollouts
from stages.tasks.tasks import TaskBatch

TeacherNames = Mapping[str, str]  # of weights, by data set; one under "" teaches all


@dataclass(frozen=True)
class Heard:
    """An answer of the student as its teacher reads it."""

    teacher: Sampler
    tokens: Tokens
    episode: Episode
    start: int  # where the answer begins in `tokens`

    def aligned(self, found: Array) -> Array:
        """(T, ...) what was said of the teacher's tokens, at the student's; 0 before the answer."""
        at = int(np.argmax(self.episode.acted))
        return np.concatenate([np.zeros((at, *found.shape[1:]), found.dtype), found[self.start :]])


@dataclass(frozen=True)
class Teachers:
    """Open weights that read the same tokens as the student."""

    samplers: Mapping[str, Sampler]
    instruction: str
    tokenizer: Tokenizer

    async def hear(self, batch: TaskBatch, rollouts: Rollouts) -> list[Heard]:
        """All answers of a batch, in the order of its episodes."""
        found = []
        for task, group in zip(batch.tasks, rollouts.groups, strict=True):
            teacher = self.samplers[task.tag if task.tag in self.samplers else ""]
            asked = self._read(await task.env().reset())
            for one in (episode for rollout in group for episode in rollout.episodes):
                answer = one.tokens[int(np.argmax(one.acted)) :]
                found.append(Heard(teacher, np.concatenate([asked, answer]), one, len(asked)))
        return found

    def _read(self, messages: Sequence[ports.Message]) -> Tokens:
        said = with_system_prompt(Conversation(messages_from_dicts(messages), ""), self.instruction)
        return render_prompt(list(map(message_to_dict, said.messages)), self.tokenizer)

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self.samplers.values():
                stack.enter_context(closing(each))


class OpenTeachers(Stage):
    """Open weights to learn from; they must be the same when the run is gone on with."""

    names: TeacherNames
    instruction: str = ""  # a system prompt that teachers alone read

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        blobs: BlobStore | None = None,
    ) -> tuple[Teachers, Facts]:
        check_system_prompt(self.instruction, tokenizer)
        samplers, facts = dict[str, Sampler](), Facts()
        try:
            for tag, name in self.names.items():
                what = f"teacher.{tag}" if tag else "teacher"
                facts |= weights_facts(name, what, client, blobs)
                samplers[tag] = open_reference(name, what, client, models, tokenizer, blobs)
        except BaseException:
            Teachers(samplers, "", tokenizer).close()
            raise
        return Teachers(samplers, self.instruction, tokenizer), facts

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        for name in self.names.values():
            find_weights(name, client, blobs)


class ScoreByTeachers(Stage):
    """Ask each teacher for its log-probabilities of the answers to its own questions."""

    async def run(
        self, teachers: Teachers, batch: TaskBatch, rollouts: Rollouts
    ) -> tuple[ReferenceScores, Metrics]:
        heard = await teachers.hear(batch, rollouts)
        found = await asyncio.gather(
            *[arrival(each.teacher.logprobs(each.tokens)) for each in heard]
        )
        return straying(
            rollouts,
            [each.aligned(nats) for each, nats in zip(heard, found, strict=True)],
            "teacher",
        )


def check_chat(rendering: RenderDataset) -> None:
    """Raise ConfigError where held-out rows would be read otherwise than the questions that are
    learnt from.
    """
    if rendering.chat is not None:
        raise ConfigError(
            f"rendering.chat={str(rendering.chat).lower()}: questions are asked through the chat "
            "template where there is one, those that are learnt from too; leave it out"
        )


def names_of(
    teacher: str | None, teachers: TeacherNames | None, model: str, instruction: str, dataset: str
) -> TeacherNames:
    """Who teaches what, as settings have it; raises ConfigError."""
    if teachers is not None and (teacher is not None or dataset != DEFAULT_DATASET):
        raise ConfigError(
            "teachers.DATASET=WEIGHTS says who teaches, and which data sets are read: leave "
            f"{'dataset' if teacher is None else 'teacher'} out"
        )
    if teachers is not None and not teachers:
        raise ConfigError(
            "teachers names no data set: say who teaches which, as in teachers.ingredients=run:ID"
        )
    if teachers is None and teacher is None and not instruction:
        raise ConfigError(
            "nobody teaches: set teacher=WEIGHTS; or teachers.DATASET=WEIGHTS for each data set; "
            "or "
            "instruction=TEXT, a system prompt that makes the model its own teacher"
        )
    return {"": teacher or model} if teachers is None else teachers
