"""Sessions opened on the weights of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen, Lora
from kitchen.artifacts.weights import Weights
from kitchen.config.order import Order
from kitchen.engine.preview import verify
from kitchen.errors import ConfigError, QualityError, ResumeError
from kitchen.runs.execute import execute
from kitchen.runs.reports.records import read_run_record
from kitchen.types import FullWeights
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from stages.train.session import OpenSession, rendering_notes

CHATS = [
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "{}"}]}
] * 8
DATA = FakeDatasets({"chats": {"train": CHATS, "held": CHATS[:2]}})
LORA = Lora(4, alpha=8.0)


def cooked(blobs: FakeBlobs, run: str, **settings: Any) -> FakeTraining:
    training = FakeTraining(blobs)
    recipe = SlBasic(
        **{
            "model": "tiny",
            "dataset": "chats",
            "batch_size": 2,
            "lora_rank": 4,
            "max_steps": 4,
            "learning_rate": 0.5,
            "warmup_steps": 0,
            "eval_every": 0,
            **settings,
        }
    )
    order = Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json"))
    execute(order, recipe, Kitchen(training, DATA, None, blobs), run)
    return training


@pytest.fixture
def blobs() -> FakeBlobs:
    return FakeBlobs()


def test_session_starts_from_the_weights_of_a_run(blobs: FakeBlobs) -> None:
    training = cooked(blobs, "first")
    session, _, facts = OpenSession("run:first", LORA).run(training, blobs)
    tokens = np.arange(30, 60)
    saved = (
        training.sampler(training.checkpoints("first/weights/final")[0]).logprobs(tokens).result()
    )
    np.testing.assert_array_equal(
        session.snapshot().result().logprobs(tokens).result()[1:], saved[1:]
    )
    assert facts["model"] == "tiny"
    assert facts["weights"] == "run:first@final"
    assert len(facts["weights.sha256"]) == 64


@pytest.mark.parametrize(
    ("rendering", "names"),
    [
        ({}, ""),
        ({"chat": False}, "rendering.chat"),
        ({"chat": False, "separator": "\n"}, "rendering.chat and rendering.separator"),
    ],
)
def test_rendering_that_is_not_taken_over_is_noted(
    blobs: FakeBlobs, rendering: dict[str, Any], names: str
) -> None:
    training = cooked(blobs, "first", rendering=rendering)
    stage = OpenSession("run:first", LORA)
    _, _, table = stage.preview(training, training, blobs)
    notes = [value for name, value in table.rows if name == "note"]
    with capture_logs() as logs:
        stage.run(training, blobs)
    expected = [f"run:first@final was trained with {names}, which"] if names else []
    assert [note[: len(expected[0])] for note in notes] == expected
    assert [entry["event"] for entry in logs] == notes


@pytest.mark.parametrize(
    "rendering",
    [{"template": "{{ messages }}"}, {"chat_template_kwargs": {"enable_thinking": False}}],
)
def test_template_of_a_run_is_noted(rendering: dict[str, Any]) -> None:
    weights = Weights("run:a", "", "tiny", "a", {"rendering": rendering})
    [note] = rendering_notes(weights)
    assert f"rendering.{next(iter(rendering))}" in note
    assert rendering_notes(Weights("tiny", "tiny", "tiny")) == []


def test_other_lora_shapes_are_refused_before_loading(blobs: FakeBlobs) -> None:
    training = cooked(blobs, "first")
    ports = Kitchen(training, DATA, None, blobs).ports()
    for lora in (Lora(8, alpha=8.0), Lora(4), Lora(4, alpha=8.0, train_mlp=False)):
        [problem] = verify(OpenSession("run:first", lora), ports)
        assert isinstance(problem, ConfigError)
        assert (
            "its LoRA weights have rank 4, alpha 8, layers attn mlp, but this session would have "
            in str(problem)
        )
    assert verify(OpenSession("run:first", LORA), ports) == []


def test_check_finds_an_unknown_run(blobs: FakeBlobs) -> None:
    [problem] = verify(
        OpenSession("run:frist"), Kitchen(cooked(blobs, "first"), DATA, None, blobs).ports()
    )
    assert "there is no run 'frist'; did you mean 'first'?" in str(problem)


def test_resume_requires_the_same_initial_weights(blobs: FakeBlobs) -> None:
    again: dict[str, Any] = {
        "model": "run:first",
        "learning_rate": 1e-6,
        "evaluation": {"at_least": 1.0},
    }
    cooked(blobs, "first", learning_rate=1e-6)
    for _ in range(2):
        with pytest.raises(QualityError):
            cooked(blobs, "second", **again)
    for name in blobs.list("first/"):
        blobs.delete(name)
    cooked(blobs, "first", learning_rate=0.1)
    with pytest.raises(ResumeError, match="'second' began with weights"):
        cooked(blobs, "second", **again)


def test_alpha_dropout_and_layers_are_settings() -> None:
    recipe = SlBasic(lora_rank=4, lora_alpha=2.0, lora_dropout=0.1, lora_layers="attention")
    assert recipe.lora == Lora(4, alpha=2.0, dropout=0.1, train_mlp=False)
    assert SlBasic(lora_rank=4).lora == Lora(4, alpha=8.0)
    needs = [need.capability for need in OpenSession("m", recipe.lora).needs()]
    assert needs == ["lora_alpha", "lora_dropout", "lora_targets"]


def test_kinds_of_lora_are_settings_and_needs(blobs: FakeBlobs) -> None:
    assert SlBasic(lora_rank=4, lora_kind="rslora").lora == Lora(4, alpha=8.0, kind="rslora")
    assert SlBasic(lora_rank=4, lora_kind="dora").lora == Lora(4, alpha=8.0, kind="dora")
    own = SlBasic(lora_rank=4, lora_kind="rslora", lora_alpha=3.0)
    assert own.lora == Lora(4, alpha=3.0, kind="rslora")
    [need, _] = OpenSession("m", own.lora).needs()
    assert (need.capability, need.required) == ("rslora", True)
    assert "lora_kind=lora" in need.alternative
    training = cooked(blobs, "first", lora_kind="rslora")
    ports = Kitchen(training, DATA, None, blobs).ports()
    [problem] = verify(OpenSession("run:first", LORA), ports)
    assert "rslora, rank 4, alpha 8, layers attn mlp, but this session would" in str(problem)
    assert verify(OpenSession("run:first", replace(LORA, kind="rslora")), ports) == []


def test_all_weights_are_trained_on_request(blobs: FakeBlobs) -> None:
    training = cooked(blobs, "whole", lora_rank=16, train="full")
    facts = read_run_record(blobs, "whole").record["facts"]
    assert facts["trained"] == "all weights"
    assert "lora" not in facts
    ports = Kitchen(training, DATA, None, blobs).ports()
    assert verify(OpenSession("run:whole", FullWeights()), ports) == []
    [problem] = verify(OpenSession("run:whole", LORA), ports)
    assert "all weights of its model were trained" in str(problem)
    cooked(blobs, "first")
    [problem] = verify(OpenSession("run:first", FullWeights()), ports)
    assert "kitchen export run:first@final FOLDER --merged" in str(problem)
    [need] = OpenSession("m", FullWeights()).needs()
    assert (need.capability, need.required) == ("full_weights", True)
    assert "train=lora" in need.alternative


def test_settings_of_lora_are_refused_with_all_weights() -> None:
    assert SlBasic(train="full", learning_rate=1e-4).trainable == FullWeights()
    with pytest.raises(ConfigError, match="lora_rank and lora_layers would have no effect"):
        SlBasic(train="full", learning_rate=1e-4, lora_rank=4, lora_layers="mlp")
    with pytest.raises(ConfigError, match=r"set learning_rate=0\.0001"):
        SlBasic(train="full")
    assert SlBasic(**SlBasic(train="full", learning_rate=1e-4).model_dump()).train == "full"
    with pytest.raises(ConfigError, match="lora_rank would have no effect"):
        Rlhf(train="full", learning_rate=1e-4, lora_rank=4, judge={"epochs": 0})
