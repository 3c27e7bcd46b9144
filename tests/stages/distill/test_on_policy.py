"""What is learnt from a teacher, against the formulas."""

from __future__ import annotations

import asyncio
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from adapters.fake.tokenizer import VOCABULARY, ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import BackendError, ConfigError
from kitchen.ports import Done
from kitchen.types import Array
from stages.chat.conversations import parse_conversation
from stages.chat.prompts import prompt_tokens
from stages.chat.render import RenderDataset
from stages.data.dataset import DEFAULT_DATASET, HeldOut
from stages.distill.on_policy import ImitateTop, Prompt, lesson
from stages.distill.teachers import OpenTeachers, ScoreByTeachers, Teachers, names_of
from stages.evaluate.kl import MeasureKL, MeasureKLBefore, measure_kl
from stages.evaluate.reference import OpenReference, same_tokens, sample_answers
from stages.preference.comparisons import Pairs
from stages.preference.dpo import ScoreReference
from stages.rl.policy_gradient import PolicyUpdate
from stages.rl.rollouts import Rollouts
from stages.tasks.tasks import TaskBatch
from stages.train.session import FinalWeights
from tests.support.bigram_policy import BigramPolicy, datums_of
from tests.support.untemplated import Plain


class Teaching:
    """A teacher with chances of its own for the answer."""

    def __init__(self, chances: Array) -> None:
        self.values = np.log(chances)

    def logprobs(self, tokens: Any) -> Any:
        return Done(np.array([np.nan, *self.values[tokens[1:]]], np.float32))

    def top_logprobs(self, tokens: Any, k: int) -> Any:
        ids, more = np.argsort(-self.values)[:k], len(tokens) - 1
        return Done(
            (
                np.stack([np.full(k, -1), *[ids] * more]),
                np.stack([np.full(k, np.nan), *[self.values[ids]] * more]).astype(np.float32),
            )
        )


@pytest.fixture
def student() -> BigramPolicy:
    return BigramPolicy()


@pytest.fixture
def teacher(student: BigramPolicy) -> Any:
    raw = np.random.default_rng(1).normal(size=student.vocabulary)
    return Teaching(np.exp(raw) / np.exp(raw).sum())


ASKED = TaskBatch(
    (Prompt(({"role": "user", "content": "A longer question than the student reads"},)),)
)


def alone(teacher: Any, instruction: str = "") -> Teachers:
    return Teachers({"": teacher}, instruction, ByteTokenizer())


def test_the_gradient_of_the_reverse_divergence(student: BigramPolicy, teacher: Any) -> None:
    acted, rollouts = student.probabilities(), student.rollouts()
    scores, told = asyncio.run(ScoreByTeachers().run(alone(teacher, "Be brief."), ASKED, rollouts))
    assert told["kl_teacher"] == pytest.approx(
        float((np.log(acted) - teacher.values).mean()), rel=1e-5
    )
    often = student.weighted_by_probability(PolicyUpdate(penalty=1.0).run(rollouts, scores))
    student.session.forward_backward(often, "importance_sampling").result()
    for token in (5, 66, 200):
        expected = student.finite_difference(
            token, lambda chances: chances @ (np.log(chances) - teacher.values)
        )
        assert student.gradient(token) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_the_gradient_of_the_forward_divergence(student: BigramPolicy, teacher: Any) -> None:
    rollouts, right = student.rollouts(), np.exp(teacher.values)
    lessons, told = asyncio.run(ImitateTop(student.vocabulary).run(alone(teacher), ASKED, rollouts))
    found = student.session.forward_backward(datums_of(lessons)).result()
    apart = float(right @ (teacher.values - np.log(student.probabilities())))
    assert found.metrics["loss:sum"] - told["teacher_entropy"] == pytest.approx(apart, rel=1e-4)
    assert told["teacher_mass"] == pytest.approx(1.0, rel=1e-5)
    for token in (5, 66, 200):
        expected = student.finite_difference(
            token, lambda chances: right @ (teacher.values - np.log(chances))
        )
        assert student.gradient(token) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("instruction", ["", "A long system prompt that the teacher alone reads."])
def test_the_divergence_is_of_the_tokens_of_the_answers_whatever_stands_before_them(
    instruction: str,
) -> None:
    """A teacher whose chances are those of each token by itself, so that the place of the answer is
    all that counts.
    """
    raw = np.random.default_rng(1).normal(size=VOCABULARY)
    teacher: Any = Teaching(np.exp(raw) / np.exp(raw).sum())
    how = MeasureKL("its", RenderDataset(), max_tokens=9, seed=3, instruction=instruction)
    rows = tuple(
        parse_conversation({"prompt": "?" * n, "completion": "!"}, f"rows:{n}") for n in (1, 4)
    )
    student = FakeTraining().sampler("fake")
    found, _ = asyncio.run(
        measure_kl(student, teacher, ByteTokenizer(), HeldOut({"held": rows}), how)
    )
    answers = [
        asyncio.run(
            sample_answers(
                student,
                [prompt_tokens(row, ByteTokenizer(), how.render) for row in rows],
                [3, crc32(b"kl"), crc32(b"")],
                max_tokens=9,
            )
        )[at][0]
        for at in (0, 1)
    ]
    exact = [one.logprobs.sum(dtype=float) - teacher.values[one.tokens].sum() for one in answers]
    assert found["kl"] == pytest.approx(np.mean(exact), rel=1e-6)
    assert found["kl_per_token"] == pytest.approx(
        sum(exact) / sum(len(one.tokens) for one in answers), rel=1e-6
    )


def test_of_more_tokens_than_there_are_none_are_the_top(
    student: BigramPolicy, teacher: Any
) -> None:
    with pytest.raises(ConfigError, match=r"top_k=9999 is more than the \d+ tokens that there are"):
        asyncio.run(ImitateTop(9999).run(alone(teacher), ASKED, student.rollouts()))


def test_of_the_top_the_chances_are_divided_by_their_sum(
    student: BigramPolicy, teacher: Any
) -> None:
    lessons, told = asyncio.run(ImitateTop(2).run(alone(teacher), ASKED, student.rollouts()))
    data = datums_of(lessons)
    first, likeliest = data[0], np.argsort(-teacher.values)[:2]
    assert first.targets[1].tolist() == likeliest.tolist()
    mass = np.exp(teacher.values[likeliest]).sum()
    assert told["teacher_mass"] == pytest.approx(mass, rel=1e-5)
    np.testing.assert_allclose(
        first.loss_inputs["weights"] * student.vocabulary,
        [[0, 0], np.exp(teacher.values[likeliest]) / mass],
        rtol=1e-5,
    )
    assert sum(float(one.loss_inputs["weights"].sum()) for one in data) == pytest.approx(
        1.0, rel=1e-5
    )


class Other:
    """A tokenizer that is another one's, but for one letter."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.vocabulary = inner, inner.vocabulary

    def encode(self, text: str, *, special: bool = False) -> Any:
        return self.inner.encode(text.replace("q", "k"))


def test_a_teacher_that_reads_other_tokens_is_refused() -> None:
    client: Any = FakeTraining()
    tokenizer = client.tokenizer("any")
    assert same_tokens(tokenizer, client.tokenizer("other"))
    with pytest.raises(ConfigError, match="teacher='any' reads other tokens"):
        OpenTeachers({"": "any"}).run(client, client, Other(tokenizer))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reference='any' reads other tokens"):
        OpenReference("any").run(client, client, Other(tokenizer))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reference='any' reads other tokens"):
        asyncio.run(ScoreReference("any").run(client, client, Other(tokenizer), Pairs((), {})))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reference='any' reads other tokens"):
        MeasureKL("any", RenderDataset(), 4).open_reference(client, client, Other(tokenizer), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"teacher\.chats='any' reads other tokens"):
        OpenTeachers({"chats": "any"}).run(client, client, Other(tokenizer))  # type: ignore[arg-type]


class Closing:
    """A sampler that says whether it was closed; others cannot be opened beside it."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "stage",
    [
        MeasureKL("reference", RenderDataset(), 4),
        MeasureKLBefore("reference", RenderDataset(), 4, model="other"),
    ],
)
def test_a_reference_is_closed_where_the_other_weights_cannot_be_opened(stage: Any) -> None:
    reference, asked, client = Closing(), list[Any](), FakeTraining()

    def sampler(weights: Any) -> Any:
        asked.append(weights)
        if weights != "reference":
            raise BackendError("these cannot be opened")
        return reference

    client.sampler = sampler  # type: ignore[method-assign]
    more = (
        [FinalWeights("run/weights/final", 3, "weights", "0" * 64)]
        if isinstance(stage, MeasureKL)
        else []
    )
    with pytest.raises(BackendError, match="these cannot be opened"):
        asyncio.run(stage.run(client, client, client.tokenizer("any"), HeldOut({}), *more))
    assert len(asked) == 2
    assert reference.closed


def test_settings_of_the_other_divergence_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"coefficient=2\.0, discount=0\.5 means nothing with divergence=forward"
    ):
        lesson("forward", 2.0, 0.5, None)
    with pytest.raises(ConfigError, match="top_k=3 means nothing with divergence=reverse"):
        lesson("reverse", None, None, 3)
    with pytest.raises(
        ConfigError, match="divergence='forwards' is unknown; did you mean 'forward'"
    ):
        lesson("forwards", None, None, None)  # type: ignore[arg-type]
    assert lesson("reverse", None, None, None)[0][1] == PolicyUpdate(penalty=1.0)
    assert lesson("forward", None, None, None)[0] == (ImitateTop(20),)


class Listening(Teaching):
    """Keeps what it was asked."""

    def __init__(self, values: Array) -> None:
        super().__init__(values)
        self.heard: list[str] = []

    def logprobs(self, tokens: Any) -> Any:
        self.heard.append(ByteTokenizer().decode(tokens))
        return super().logprobs(tokens)


def test_each_question_goes_to_the_teacher_of_its_data_set(student: BigramPolicy) -> None:
    even = np.full(student.vocabulary, 1 / student.vocabulary)
    here, there = Listening(even), Listening(even)
    batch = TaskBatch(
        tuple(
            Prompt(({"role": "user", "content": text},), text) for text in ("here", "there", "here")
        )
    )
    [group] = student.rollouts().groups
    rollouts = Rollouts((group[65:67], group[67:68], group[68:69]))
    teachers = Teachers({"here": here, "there": there}, "Be brief.", ByteTokenizer())  # type: ignore[dict-item]
    scores, _ = asyncio.run(ScoreByTeachers().run(teachers, batch, rollouts))
    assert here.heard == ["Be brief.hereA", "Be brief.hereB", "Be brief.hereD"]
    assert there.heard == ["Be brief.thereC"]
    assert [len(each) for each in scores.logprobs] == [3] * 4, (
        "as long as the student's own sequences"
    )


@pytest.mark.parametrize(
    ("teacher", "teachers", "instruction", "expected"),
    [
        ("t", None, "", {"": "t"}),
        (None, {"d": "t"}, "", {"d": "t"}),
        (None, None, "Be brief.", {"": "model"}),
        ("t", None, "Be brief.", {"": "t"}),
    ],
)
def test_who_teaches(
    teacher: Any, teachers: Any, instruction: str, expected: dict[str, str]
) -> None:
    assert names_of(teacher, teachers, "model", instruction, DEFAULT_DATASET) == expected


@pytest.mark.parametrize(
    ("teacher", "teachers", "dataset", "words"),
    [
        (None, None, DEFAULT_DATASET, "nobody teaches"),
        (None, {}, DEFAULT_DATASET, r"as in teachers\.ingredients=run:ID"),
        ("t", {"d": "t"}, DEFAULT_DATASET, "leave teacher out"),
        (None, {"d": "t"}, "arithmetic", "leave dataset out"),
    ],
)
def test_settings_that_contradict_each_other(
    teacher: Any, teachers: Any, dataset: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        names_of(teacher, teachers, "model", "", dataset)


def test_an_instruction_needs_a_chat_template() -> None:
    client: Any = FakeTraining()
    with pytest.raises(ConfigError, match="a chat template gives a place"):
        OpenTeachers({"": "any"}, "Be brief.").run(client, client, Plain())
