"""Teachers that write: their answers take the place of those in the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import NonNegativeFloat, PositiveInt

from kitchen.artifacts.weights import find_weights
from kitchen.errors import DataError
from kitchen.ports import BlobStore, ModelCatalog, Tokenizer, TrainingClient
from kitchen.stage import Stage
from kitchen.types import Metrics, Sampled, Samples, Table
from stages.chat.conversations import Conversation, Message, TrainRows, with_system_prompt
from stages.chat.prompts import check_system_prompt, prompt_messages, prompt_tokens
from stages.chat.render import RenderDataset
from stages.chat.token_cost import AT_MOST, EpochSize
from stages.data.dataset import HeldOut
from stages.evaluate.checkpoint_eval import evaluation_report
from stages.evaluate.evaluation import EvalConfig, check_tries, evaluate, sample_records
from stages.evaluate.reference import sample_answers


@dataclass(frozen=True)
class Writing:
    """How a teacher's answers are drawn."""

    tries: PositiveInt = 1  # answers to each row, all of which are learnt from
    temperature: NonNegativeFloat = 1.0  # 0 is greedy
    max_tokens: PositiveInt = 64  # per answer; one that is cut there is not learnt from

    def __post_init__(self) -> None:
        check_tries(self.tries, self.temperature)


@dataclass(frozen=True)
class Written:
    """What the teacher wrote to each row, without what was cut."""

    texts: tuple[tuple[str, ...], ...]
    cut: int


@dataclass(frozen=True)
class TaughtRows:
    """The conversations to train on, with the teacher's answers."""

    conversations: Sequence[Conversation]


class WriteAnswers(Stage):
    """Have a teacher answer the rows to train on, once; a resumed run finds the answers in the
    record.
    """

    memoize = True
    teacher: str  # a name of weights
    render: RenderDataset
    how: Writing = Writing()
    instruction: str = ""  # a system prompt that the teacher alone reads
    seed: int = 0

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        rows: TrainRows,
        blobs: BlobStore | None = None,
    ) -> tuple[Written, Samples]:
        found = find_weights(self.teacher, client, blobs)
        reads = models.tokenizer(found.model)
        check_system_prompt(self.instruction, reads, self.render.chat)
        prompts = [
            prompt_tokens(with_system_prompt(each, self.instruction), reads, self.render)
            for each in rows.conversations
        ]
        sampler, how = client.sampler(found.source), self.how
        try:
            came = await sample_answers(
                sampler,
                prompts,
                [self.seed],
                count=how.tries,
                max_tokens=how.max_tokens,
                temperature=how.temperature,
            )
        finally:
            sampler.close()
        texts = tuple(
            tuple(
                self.render.answer_text(reads.decode(one.tokens), reads)
                for one in some
                if _whole(one)
            )
            for some in came
        )
        return (
            Written(texts, sum(not _whole(one) for some in came for one in some)),
            Samples(
                tuple(
                    {"when": "taught", "row": at, "text": text}
                    for at, some in enumerate(texts)
                    for text in some
                )
            ),
        )

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.teacher, client, blobs)

    def preview(self, rows: TrainRows, tokenizer: Tokenizer) -> EpochSize:
        each = [
            len(prompt_tokens(row, tokenizer, self.render)) + self.how.max_tokens
            for row in rows.conversations
        ]
        return EpochSize(len(each) * self.how.tries, "answers", sum(each) * self.how.tries, AT_MOST)


def _whole(one: Sampled) -> bool:
    return one.stop_reason != "length" and len(one.tokens) > 0


class TakeAnswers(Stage):
    """The teacher's answers in the place of those in the data; rows to which it wrote none are left
    out.
    """

    def run(self, rows: TrainRows, written: Written) -> tuple[TaughtRows, Metrics]:
        found = [
            replace(
                each, messages=(*prompt_messages(each), Message("assistant", text)), sampled=True
            )
            for each, some in zip(rows.conversations, written.texts, strict=True)
            for text in some
        ]
        if not found:
            raise DataError(
                f"nothing to train on: none of the teacher's {written.cut} answers came to an end; "
                "let "
                "them be longer (writing.max_tokens)"
            )
        return TaughtRows(found), Metrics(
            {"data/taught": float(len(found)), "data/cut": float(written.cut)}
        )


class EvaluateTeacher(Stage):
    """What the teacher, with its system prompt, makes of the held-out sets."""

    memoize = True
    teacher: str
    how: EvalConfig
    render: RenderDataset
    instruction: str = ""
    seed: int = 0

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[Metrics, Table, Samples]:
        sets = HeldOut(
            {
                name: tuple(with_system_prompt(each, self.instruction) for each in some)
                for name, some in held_out.sets.items()
            }
        )
        weights = find_weights(self.teacher, client, blobs)
        reads = models.tokenizer(weights.model)
        render = self._longer(held_out, sets, reads)
        found = await evaluate(client.sampler(weights.source), reads, self.how, render, sets)
        return *evaluation_report(
            "The teacher", found, self.seed, suffix="_teacher"
        ), sample_records(found, when="teacher")

    def _longer(self, plain: HeldOut, told: HeldOut, tokenizer: Tokenizer) -> RenderDataset:
        """With room for the instruction, where it is longest, beside what the student may read."""
        if not self.instruction:
            return self.render
        more = max(
            (
                len(prompt_tokens(long, tokenizer, self.render))
                - len(prompt_tokens(short, tokenizer, self.render))
                for name, some in plain.sets.items()
                for short, long in zip(some, told.sets[name], strict=True)
            ),
            default=0,
        )
        return replace(self.render, max_tokens=self.render.max_tokens + more)
