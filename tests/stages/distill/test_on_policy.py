"""Training data from a teacher, against the formulas."""

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
from kitchen.types import Array, Sampled
from stages.chat.conversations import parse_conversation
from stages.chat.prompts import prompt_tokens
from stages.chat.render import RenderDataset
from stages.data.dataset import DEFAULT_DATASET, HeldOut
from stages.distill.on_policy import Prompt, TopKTargets, divergence_steps
from stages.distill.teachers import ComputeTeacherLogprobs, OpenTeachers, Teachers, teacher_names
from stages.evaluate.kl import MeasureKL, MeasureKLBefore, measure_kl
from stages.evaluate.reference import OpenReference, same_tokens, sample_answers
from stages.preference.comparisons import Pairs
from stages.preference.pair_stages import PrecomputeReferenceLogprobs
from stages.rl.policy_gradient import ComputeAdvantages
from stages.rl.rollouts import Rollouts
from stages.tasks.tasks import TaskBatch
from stages.train.session import FinalWeights
from tests.support.bigram_policy import BigramPolicy, datums_of
from tests.support.no_chat_template import PlainTokenizer


class FixedTeacher:
    """A teacher with fixed probabilities of each token."""

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
    return FixedTeacher(np.exp(raw) / np.exp(raw).sum())


BATCH = TaskBatch(
    (Prompt(({"role": "user", "content": "A longer question than the student reads"},)),)
)


def only(teacher: Any, instruction: str = "") -> Teachers:
    return Teachers({"": teacher}, instruction, ByteTokenizer())


def test_gradient_of_the_reverse_kl(student: BigramPolicy, teacher: Any) -> None:
    probs, rollouts = student.probabilities(), student.rollouts()
    logprobs, metrics = asyncio.run(
        ComputeTeacherLogprobs().run(only(teacher, "Be brief."), BATCH, rollouts)
    )
    assert metrics["kl_teacher"] == pytest.approx(
        float((np.log(probs) - teacher.values).mean()), rel=1e-5
    )
    often = student.weighted_by_probability(ComputeAdvantages(penalty=1.0).run(rollouts, logprobs))
    student.session.forward_backward(often, "importance_sampling").result()
    for token in (5, 66, 200):
        expected = student.finite_difference(
            token, lambda chances: chances @ (np.log(chances) - teacher.values)
        )
        assert student.gradient(token) == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_gradient_of_the_forward_kl(student: BigramPolicy, teacher: Any) -> None:
    rollouts, target = student.rollouts(), np.exp(teacher.values)
    data, metrics = asyncio.run(TopKTargets(student.vocabulary).run(only(teacher), BATCH, rollouts))
    output = student.session.forward_backward(datums_of(data)).result()
    kl = float(target @ (teacher.values - np.log(student.probabilities())))
    assert output.metrics["loss:sum"] - metrics["teacher_entropy"] == pytest.approx(kl, rel=1e-4)
    assert metrics["teacher_mass"] == pytest.approx(1.0, rel=1e-5)
    for token in (5, 66, 200):
        expected = student.finite_difference(
            token, lambda chances: target @ (teacher.values - np.log(chances))
        )
        assert student.gradient(token) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("instruction", ["", "A long system prompt that only the teacher reads."])
def test_kl_is_measured_on_the_answer_tokens(
    instruction: str,
) -> None:
    """The teacher's probabilities depend only on the token, so only alignment matters."""
    raw = np.random.default_rng(1).normal(size=VOCABULARY)
    teacher: Any = FixedTeacher(np.exp(raw) / np.exp(raw).sum())
    how = MeasureKL("its", RenderDataset(), max_tokens=9, seed=3, instruction=instruction)
    rows = tuple(
        parse_conversation({"prompt": "?" * n, "completion": "!"}, f"rows:{n}") for n in (1, 4)
    )
    student = FakeTraining().sampler("fake")
    found, _ = asyncio.run(
        measure_kl(student, teacher, ByteTokenizer(), HeldOut({"held": rows}), how)
    )
    prompts = [prompt_tokens(row, ByteTokenizer(), how.render) for row in rows]
    seeds = [3, crc32(b"kl"), crc32(b"")]
    sampled = asyncio.run(sample_answers(student, prompts, seeds, max_tokens=9))
    answers = [sampled[0][0], sampled[1][0]]
    differences = [teacher.values[one.tokens] - one.logprobs for one in answers]
    estimates = [float((np.exp(each) - 1 - each).sum()) for each in differences]
    assert found["kl"] == pytest.approx(np.mean(estimates), rel=1e-6)
    assert found["kl_per_token"] == pytest.approx(
        sum(estimates) / sum(len(one.tokens) for one in answers), rel=1e-6
    )


def test_the_kl_estimate_is_unbiased_and_never_negative() -> None:
    """A student and a teacher whose probabilities depend only on the token: KL = sum p log p/q."""
    draw = np.random.default_rng(2)
    raw = draw.normal(size=VOCABULARY)
    for scale in (0.003, 0.03, 0.3):
        shifted = raw + scale * draw.normal(size=VOCABULARY)
        student: Any = FixedTeacher(np.exp(raw) / np.exp(raw).sum())
        teacher: Any = FixedTeacher(np.exp(shifted) / np.exp(shifted).sum())
        chances = np.exp(student.values)
        exact = float(chances @ (student.values - teacher.values))
        estimates = [kl_of(student, teacher, seed) for seed in range(40)]
        spread = float(np.std([estimate for estimate, _ in estimates]))
        mean = float(np.mean([estimate for estimate, _ in estimates]))
        assert mean == pytest.approx(exact, abs=4 * spread / 40**0.5)
        assert spread < 0.2 * exact, "the mean log-ratio has a spread of about sqrt(2 exact / n)"
        assert min(low for _, low in estimates) >= 0


def kl_of(student: Any, teacher: Any, seed: int) -> tuple[float, float]:
    """Return the KL per token and the lower end of the interval of the KL per answer."""
    chances = np.exp(student.values) / np.exp(student.values).sum()
    tokens = np.random.default_rng(seed).choice(len(chances), (32, 30), p=chances)
    answers = [Sampled(row, student.values[row].astype(np.float32), "length") for row in tokens]
    rows = tuple(
        parse_conversation({"prompt": "?" * n, "completion": "!"}, f"rows:{n}")
        for n in range(1, 33)
    )
    weights = FixedAnswers(student, answers)
    how = MeasureKL("its", RenderDataset(), max_tokens=30, seed=seed)
    held_out = HeldOut({"held": rows})
    found, table = asyncio.run(measure_kl(weights, teacher, ByteTokenizer(), held_out, how))
    return found["kl_per_token"], float(table.rows[0][1].split("[")[1].split(",")[0])


class FixedAnswers:
    """A sampler that returns these answers in turn, and scores as another one."""

    def __init__(self, scorer: Any, answers: list[Sampled]) -> None:
        self.logprobs, self._answers = scorer.logprobs, iter(answers)

    def sample(self, prompt: Any, **options: Any) -> Any:
        return Done([next(self._answers)])


def test_top_k_is_at_most_the_vocabulary(student: BigramPolicy, teacher: Any) -> None:
    with pytest.raises(ConfigError, match="top_k=9999 is more than"):
        asyncio.run(TopKTargets(9999).run(only(teacher), BATCH, student.rollouts()))


def test_top_k_probabilities_are_normalised(student: BigramPolicy, teacher: Any) -> None:
    examples, metrics = asyncio.run(TopKTargets(2).run(only(teacher), BATCH, student.rollouts()))
    data = datums_of(examples)
    first, likeliest = data[0], np.argsort(-teacher.values)[:2]
    assert first.targets[1].tolist() == likeliest.tolist()
    mass = np.exp(teacher.values[likeliest]).sum()
    assert metrics["teacher_mass"] == pytest.approx(mass, rel=1e-5)
    np.testing.assert_allclose(
        first.loss_inputs["weights"] * student.vocabulary,
        [[0, 0], np.exp(teacher.values[likeliest]) / mass],
        rtol=1e-5,
    )
    assert sum(float(one.loss_inputs["weights"].sum()) for one in data) == pytest.approx(
        1.0, rel=1e-5
    )


class Other:
    """A tokenizer that differs from another in one letter."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.vocabulary = inner, inner.vocabulary

    def encode(self, text: str, *, special: bool = False) -> Any:
        return self.inner.encode(text.replace("q", "k"))


def test_a_teacher_with_another_tokenizer_is_an_error() -> None:
    client: Any = FakeTraining()
    tokenizer = client.tokenizer("any")
    assert same_tokens(tokenizer, client.tokenizer("other"))
    with pytest.raises(ConfigError, match="teacher='any'"):
        OpenTeachers({"": "any"}).run(client, client, Other(tokenizer))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reference='any'"):
        OpenReference("any").run(client, client, Other(tokenizer))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reference='any'"):
        asyncio.run(
            PrecomputeReferenceLogprobs("any").run(client, client, Other(tokenizer), Pairs((), {}))
        )  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reference='any'"):
        MeasureKL("any", RenderDataset(), 4).open_reference(client, client, Other(tokenizer), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"teacher\.chats='any'"):
        OpenTeachers({"chats": "any"}).run(client, client, Other(tokenizer))  # type: ignore[arg-type]


class ClosableSampler:
    """A sampler that records whether it was closed."""

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
def test_the_reference_is_closed_if_other_weights_fail(stage: Any) -> None:
    reference, opened, client = ClosableSampler(), list[Any](), FakeTraining()

    def sampler(weights: Any) -> Any:
        opened.append(weights)
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
    assert len(opened) == 2
    assert reference.closed


def test_options_of_the_other_divergence_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"coefficient=2\.0, discount=0\.5.*divergence=forward"):
        divergence_steps("forward", 2.0, 0.5, None)
    with pytest.raises(ConfigError, match=r"top_k=3.*divergence=reverse"):
        divergence_steps("reverse", None, None, 3)
    with pytest.raises(ConfigError, match="divergence='forwards'"):
        divergence_steps("forwards", None, None, None)  # type: ignore[arg-type]
    assert divergence_steps("reverse", None, None, None)[0][1] == ComputeAdvantages(penalty=1.0)
    assert divergence_steps("forward", None, None, None)[0] == (TopKTargets(20),)


class RecordingTeacher(FixedTeacher):
    """A teacher that records its inputs as text."""

    def __init__(self, values: Array) -> None:
        super().__init__(values)
        self.inputs: list[str] = []

    def logprobs(self, tokens: Any) -> Any:
        self.inputs.append(ByteTokenizer().decode(tokens))
        return super().logprobs(tokens)


def test_prompts_go_to_the_teacher_of_their_data_set(student: BigramPolicy) -> None:
    even = np.full(student.vocabulary, 1 / student.vocabulary)
    here, there = RecordingTeacher(even), RecordingTeacher(even)
    batch = TaskBatch(
        tuple(
            Prompt(({"role": "user", "content": text},), text) for text in ("here", "there", "here")
        )
    )
    [group] = student.rollouts().groups
    rollouts = Rollouts((group[65:67], group[67:68], group[68:69]))
    teachers = Teachers({"here": here, "there": there}, "Be brief.", ByteTokenizer())  # type: ignore[dict-item]
    result, _ = asyncio.run(ComputeTeacherLogprobs().run(teachers, batch, rollouts))
    assert here.inputs == ["Be brief.hereA", "Be brief.hereB", "Be brief.hereD"]
    assert there.inputs == ["Be brief.thereC"]
    assert [len(each) for each in result.logprobs] == [3] * 4, (
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
def test_teacher_names(
    teacher: Any, teachers: Any, instruction: str, expected: dict[str, str]
) -> None:
    assert teacher_names(teacher, teachers, "model", instruction, DEFAULT_DATASET) == expected


@pytest.mark.parametrize(
    ("teacher", "teachers", "dataset", "words"),
    [
        (None, None, DEFAULT_DATASET, "there is no teacher"),
        (None, {}, DEFAULT_DATASET, r"as in teachers\.ingredients=run:ID"),
        ("t", {"d": "t"}, DEFAULT_DATASET, "leave teacher out"),
        (None, {"d": "t"}, "arithmetic", "leave dataset out"),
    ],
)
def test_contradicting_teacher_settings(
    teacher: Any, teachers: Any, dataset: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        teacher_names(teacher, teachers, "model", "", dataset)


def test_an_instruction_needs_a_chat_template() -> None:
    client: Any = FakeTraining()
    with pytest.raises(ConfigError, match="needs a chat template"):
        OpenTeachers({"": "any"}, "Be brief.").run(client, client, PlainTokenizer())
