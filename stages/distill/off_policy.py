"""Off-policy distillation: a teacher answers once, and its answers replace those in the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic import NonNegativeFloat, PositiveInt

from kitchen.artifacts.weights import find_weights
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import ConfigError, DataError
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Metrics, Sampled, Samples, Table, Tokens, Tries
from stages.chat.conversations import Conversation, Message, TrainRows, with_system_prompt
from stages.chat.prompts import (
    check_system_prompt,
    prompt_messages,
    prompt_tokens,
    prompts_with_room,
)
from stages.chat.render import RenderDataset
from stages.chat.token_cost import AT_MOST, EpochSize
from stages.chat.token_table import MarkedTokens, token_table
from stages.data.dataset import HeldOut
from stages.evaluate.checkpoint_eval import evaluation_report
from stages.evaluate.evaluation import (
    GREEDY,
    UNSAMPLED,
    EvalConfig,
    check_tries,
    evaluate,
    metrics_by_set,
    sample_records,
)
from stages.evaluate.reference import same_tokens, sample_answers

log = structlog.get_logger("stages.distill.off_policy")


@dataclass(frozen=True)
class GenerationConfig:
    """Sampling of the teacher's answers."""

    tries: Tries = 1  # answers sampled per row, all of which are trained on
    temperature: NonNegativeFloat = 1.0  # sampling temperature; 0 for greedy decoding
    max_tokens: PositiveInt = 64  # maximum tokens per answer; a truncated answer is not used

    def __post_init__(self) -> None:
        check_tries(self.tries, self.temperature)


def teacher_of(teacher: str | None, model: str, instruction: str) -> str:
    """Return the name of the teacher's weights; raises ConfigError if there is no teacher."""
    if teacher is None and not instruction:
        raise ConfigError(
            "the student has no teacher: set teacher=WEIGHTS, or instruction=TEXT, a system prompt "
            "that makes the model its own teacher."
        )
    return teacher or model


@dataclass(frozen=True)
class TeacherAnswers:
    """The teacher's answers to each row, without those that were truncated or empty."""

    texts: tuple[tuple[str, ...], ...]
    unusable: int  # number of answers that were truncated or empty


@dataclass(frozen=True)
class TeacherRows:
    """Conversations to train on, with the teacher's answers."""

    conversations: Sequence[Conversation]


class GenerateTeacherAnswers(Stage):
    """Sample the teacher's answers to the training rows once; a resumed run reuses them."""

    memoize = True
    teacher: str  # a name of weights
    config: GenerationConfig
    render: RenderDataset
    instruction: str = ""  # a system prompt that only the teacher reads
    seed: int = 0

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        rows: TrainRows,
        blobs: BlobStore | None = None,
    ) -> tuple[TeacherAnswers, Samples]:
        weights = find_weights(self.teacher, client, blobs)
        teachers = weights.tokenizer(models)
        stage = replace(self, render=_teacher_rendering(self.render, teachers, tokenizer))
        prompts = stage.prompts(rows, teachers)
        with closing(client.sampler(weights.source)) as sampler:
            answers = await self._answers(sampler, prompts)
        by_row = (answers.get(at, ()) for at in range(len(rows.conversations)))
        texts = tuple(stage._texts(tries, teachers) for tries in by_row)
        count = sum(map(len, answers.values()))
        return TeacherAnswers(texts, count - sum(map(len, texts))), _samples(texts)

    async def _answers(
        self, sampler: Sampler, prompts: Mapping[int, Tokens]
    ) -> dict[int, Sequence[Sampled]]:
        """Return the sampled answers to each prompt, by index of the row."""
        answers = await sample_answers(
            sampler,
            list(prompts.values()),
            [self.seed],
            count=self.config.tries,
            max_tokens=self.config.max_tokens,
            temperature=self.config.temperature,
        )
        return dict(zip(prompts, answers, strict=True))

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.teacher, client, blobs)

    def preview(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        rows: TrainRows,
        tokenizer: Tokenizer,
        blobs: BlobStore | None = None,
    ) -> tuple[EpochSize, Table]:
        tries = self.config.tries
        teachers = find_weights(self.teacher, client, blobs).tokenizer(models)
        prompts = list(self.prompts(rows, teachers).values())
        tokens = [
            len(prompt_tokens(row, tokenizer, self.render)) + self.config.max_tokens
            for row in rows.conversations
        ]
        size = EpochSize(len(tokens) * tries, "answers", sum(tokens) * tries, AT_MOST)
        first = [MarkedTokens.of_prompt(prompt) for prompt in prompts[:1]]
        return size, token_table("The teacher's first prompt", first, teachers)

    def prompts(self, rows: TrainRows, tokenizer: Tokenizer) -> dict[int, Tokens]:
        """Return the teacher's prompts by row, without those left out by rendering.overlong."""
        templated = self.render.tokenizer(tokenizer)
        check_system_prompt(self.instruction, templated, self.render.chat)
        prompted = [with_system_prompt(row, self.instruction) for row in rows.conversations]
        limit = self.config.max_tokens
        return prompts_with_room(prompted, tokenizer, self.render, limit, "writing.max_tokens")

    def _texts(self, answers: Sequence[Sampled], tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the answers as text, without those that were truncated or are empty."""
        texts = [
            self.render.answer_text(tokenizer.decode(answer.tokens), tokenizer)
            for answer in answers
            if answer.stop_reason != "length"
        ]
        return tuple(text for text in texts if text.strip())


def _teacher_rendering(
    render: RenderDataset, teacher: Tokenizer, student: Tokenizer
) -> RenderDataset:
    """Return the rendering for a teacher: one with other tokens keeps its own chat template."""
    if render.template is None or not teacher.chat or same_tokens(teacher, student):
        return render
    return replace(render, template=None)


def _samples(texts: Sequence[Sequence[str]]) -> Samples:
    records: list[dict[str, Any]] = []
    for at, answers in enumerate(texts):
        records += [{"when": "teacher answer", "row": at, "text": text} for text in answers]
    return Samples(tuple(records))


class ReplaceAnswers(Stage):
    """Replace the answers in the data by the teacher's; rows without any are dropped."""

    def run(self, rows: TrainRows, teacher: TeacherAnswers) -> tuple[TeacherRows, Metrics]:
        conversations: list[Conversation] = []
        for row, texts in zip(rows.conversations, teacher.texts, strict=True):
            conversations += [_with_answer(row, text) for text in texts]
        if not conversations:
            raise DataError(
                f"nothing to train on: all {teacher.unusable} answers of the teacher were "
                "truncated or empty. Allow longer ones (writing.max_tokens)."
            )
        return TeacherRows(conversations), Metrics(
            {
                "data/teacher_answers": float(len(conversations)),
                "data/unusable_answers": float(teacher.unusable),
            }
        )


def _with_answer(row: Conversation, text: str) -> Conversation:
    messages = (*prompt_messages(row), Message("assistant", text))
    return replace(row, messages=messages, sampled=True)


class EvaluateTeacher(Stage):
    """Evaluate the teacher, with its system prompt, on the held-out sets."""

    memoize = True
    teacher: str  # a name of weights
    evaluation: EvalConfig
    render: RenderDataset
    instruction: str = ""  # a system prompt that only the teacher reads
    seed: int = 0

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[Metrics, Table, Samples]:
        weights = find_weights(self.teacher, client, blobs)
        student, tokenizer = tokenizer, weights.tokenizer(models)
        held_out = self._measured(held_out, tokenizer)
        prompted = {name: self._prompted(rows) for name, rows in held_out.sets.items()}
        stage = replace(self, render=_teacher_rendering(self.render, tokenizer, student))
        render = stage._with_room(held_out.sets, prompted, tokenizer)
        sampler = client.sampler(weights.source)
        evaluation = await evaluate(sampler, tokenizer, self.evaluation, render, HeldOut(prompted))
        metrics, table = evaluation_report("The teacher", evaluation, suffix="_teacher")
        return metrics, table, sample_records(evaluation, held_out, "teacher")

    def _measured(self, held_out: HeldOut, tokenizer: Tokenizer) -> HeldOut:
        """Return the sets by whose metric the teacher can be measured: without scores, not all."""
        if not isinstance(tokenizer, TextTokenizer):
            return held_out
        metrics = metrics_by_set(held_out, self.evaluation, GREEDY)
        graded = {
            name: rows for name, rows in held_out.sets.items() if metrics[name] not in UNSAMPLED
        }
        if left_out := sorted(set(held_out.sets) - set(graded)):
            log.warning(
                "the teacher gives text only, so its loss is not measured; "
                "evaluation.metric=text compares answers",
                sets=", ".join(left_out),
            )
        return HeldOut(graded)

    def _prompted(self, rows: Sequence[Conversation]) -> tuple[Conversation, ...]:
        return tuple(with_system_prompt(row, self.instruction) for row in rows)

    def _with_room(
        self,
        rows: Mapping[str, Sequence[Conversation]],
        prompted: Mapping[str, Sequence[Conversation]],
        tokenizer: Tokenizer,
    ) -> RenderDataset:
        """Return the rendering with max_tokens raised by the length of the instruction."""
        if not self.instruction:
            return self.render
        lengths: list[int] = []
        for name, rows_of_set in rows.items():
            for short, long in zip(rows_of_set, prompted[name], strict=True):
                short_tokens = prompt_tokens(short, tokenizer, self.render)
                long_tokens = prompt_tokens(long, tokenizer, self.render)
                lengths.append(len(long_tokens) - len(short_tokens))
        return replace(self.render, max_tokens=self.render.max_tokens + max(lengths, default=0))
