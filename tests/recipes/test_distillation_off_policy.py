"""distillation_off_policy on the fake: the student learns the answers of its teacher."""

from __future__ import annotations

from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.engine.preview import preview
from kitchen.errors import DataError, KitchenError
from kitchen.ports import Sampler
from kitchen.types import Checkpoint
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.sl_basic import SlBasic
from stages.chat.conversations import Conversation, Message, with_system_prompt
from tests.support.recording import RecordingObserver

ROWS = [{"prompt": "?", "completion": "{}"}] * 6
WRONG = [{"prompt": "?", "completion": "no idea"}] * 6
DATA = FakeDatasets(
    {"right": {"train": ROWS, "held": ROWS[:2]}, "wrong": {"train": WRONG, "held": ROWS[:2]}}
)


class PromptRecorder(FakeTraining):
    """A client that records the prompts of its samplers."""

    def __init__(self, blobs: FakeBlobs) -> None:
        super().__init__(blobs)
        self.prompts: list[str] = []

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        sampler, tokenizer = super().sampler(weights), self.tokenizer("any")
        inner_sample = sampler.sample

        def sample(prompt: Any, **options: Any) -> Any:
            self.prompts.append(tokenizer.decode(prompt))
            return inner_sample(prompt, **options)

        sampler.sample = sample  # type: ignore[method-assign]
        return sampler


@pytest.fixture(scope="module")
def blobs() -> FakeBlobs:
    """Return a store with a run that has learnt the answer."""
    blobs = FakeBlobs()
    recipe = SlBasic(
        model="any",
        dataset="right",
        batch_size=6,
        epochs=60,
        learning_rate=0.2,
        eval_every=0,
        schedule="constant",
        warmup_steps=0,
    )
    kitchen.run(recipe, training=FakeTraining(blobs), datasets=DATA, blobs=blobs, name="taught")
    return blobs


def cook(
    blobs: FakeBlobs, name: str, training: FakeTraining | None = None, **settings: Any
) -> RecordingObserver:
    seen = RecordingObserver()
    defaults = {
        "model": "any",
        "dataset": "wrong",
        "batch_size": 6,
        "epochs": 40,
        "learning_rate": 0.2,
        "warmup_steps": 0,
        "eval_every": 0,
        "evaluation": {"max_tokens": 4},
        "writing": {"max_tokens": 4},
    }
    kitchen.run(
        DistillationOffPolicy(**{**defaults, **settings}),
        training=training or FakeTraining(blobs),
        datasets=DATA,
        blobs=blobs,
        name=name,
        observers=[seen],
    )
    return seen


def test_it_imitates_the_teacher_and_not_the_data(blobs: FakeBlobs) -> None:
    seen = cook(blobs, "student", teacher="run:taught", writing={"tries": 2, "max_tokens": 4})
    assert seen.series("held/exact_match_teacher") == [1.0]
    assert (seen.series("held/exact_match_before"), seen.series("held/exact_match_after")) == (
        [0.0],
        [1.0],
    )
    taught = seen.sampled_texts("teacher answer")
    assert len(taught) == seen.series("data/teacher_answers")[0] > 6
    assert taught.count("{}") > 0.8 * len(taught)


def test_answers_that_are_cut_are_left_out(blobs: FakeBlobs) -> None:
    with pytest.raises(DataError, match=r"6 answers of the teacher.*writing\.max_tokens"):
        cook(blobs, "cut", teacher="run:taught", writing={"max_tokens": 1})


def test_the_instruction_is_read_by_the_teacher_alone(blobs: FakeBlobs) -> None:
    training = PromptRecorder(blobs)
    cook(blobs, "instructed", training, model="run:taught", instruction="Be brief.", epochs=1)
    instructed = [prompt for prompt in training.prompts if "Be brief." in prompt]
    assert len(instructed) == 6 + 2, "of the training rows, and of the teacher's evaluation"
    assert len(training.prompts) == 6 + 2 + 2 + 2


def test_the_instruction_does_not_shorten_answers(blobs: FakeBlobs) -> None:
    seen = cook(
        blobs,
        "roomy",
        instruction="Answer as JSON. " * 9,
        model="run:taught",
        epochs=1,
        rendering={"max_tokens": 24},
        evaluation={"metric": "loss", "max_tokens": 4},
    )
    assert seen.series("held/loss_teacher")[0] == pytest.approx(
        seen.series("held/loss_before")[0]
    ), "of a bigram"


def test_a_teacher_or_an_instruction_is_required(blobs: FakeBlobs) -> None:
    with pytest.raises(KitchenError, match="instruction=TEXT"):
        cook(blobs, "untaught")


def test_the_instruction_precedes_an_existing_system_prompt() -> None:
    user, system = Message("user", "?"), Message("system", "Old.")
    assert with_system_prompt(Conversation((user,), ""), "New.").messages == (
        Message("system", "New."),
        user,
    )
    assert with_system_prompt(Conversation((system, user), ""), "New.").messages == (
        Message("system", "New.\n\nOld."),
        user,
    )
    assert with_system_prompt(Conversation((system, user), ""), "").messages == (system, user)


def test_only_the_teachers_last_turn_is_trained_on(blobs: FakeBlobs) -> None:
    data = FakeDatasets({"chats": {"train": TURNS, "held": TURNS[:1]}})
    seen = RecordingObserver()
    kitchen.run(
        DistillationOffPolicy(
            model="any",
            dataset="chats",
            teacher="run:taught",
            batch_size=2,
            max_steps=1,
            eval_every=0,
            evaluation={"metric": "loss"},
            writing={"max_tokens": 4},
        ),
        training=FakeTraining(blobs),
        datasets=data,
        blobs=blobs,
        name="turns",
        observers=[seen],
    )
    assert seen.series("data/trained_tokens") == [3.0 * seen.series("data/teacher_answers")[0]], (
        "two braces and the stop token"
    )
    assert seen.series("held/loss_teacher")[0] > 0


TURNS = [
    {
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "a long first answer"},
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "and a second"},
        ]
    }
] * 2


def test_the_teacher_answers_the_previewed_number_of_rows(blobs: FakeBlobs) -> None:
    settings: Any = {
        "model": "any",
        "dataset": "wrong",
        "teacher": "run:taught",
        "batch_size": 2,
        "max_steps": 2,
    }
    recipe = DistillationOffPolicy(**settings, writing={"tries": 2, "max_tokens": 4})
    ports = Kitchen(FakeTraining(blobs), DATA, None, blobs).ports()
    shown = {row[0]: row[-1] for table in preview(recipe.workflow(), ports) for row in table.rows}
    assert (shown["answers in an epoch"], shown["optimiser steps in all"]) == (
        "at most 4",
        "at most 2",
    )
    assert "the first datum" not in " ".join(shown).lower()
    training = PromptRecorder(blobs)
    cook(
        blobs,
        "two",
        training,
        teacher="run:taught",
        max_steps=2,
        batch_size=2,
        epochs=1,
        writing={"tries": 2, "max_tokens": 4},
    )
    assert len(training.prompts) == 2 + 2 + 2 + 2, (
        "two training rows, and two held-out ones for the teacher, before and after"
    )
