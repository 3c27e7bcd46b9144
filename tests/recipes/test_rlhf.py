"""rlhf on the fake: its three phases, with ranked samples and with a data set of preferences."""

from __future__ import annotations

from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.artifacts.weights import find_weights
from kitchen.engine.preview import preview
from kitchen.errors import KitchenError
from kitchen.runs.store import read_run
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from tests.support.judged import RlhfWithBracketJudge
from tests.support.no_chat_template import TrainingWithoutTemplate
from tests.support.recording import RecordingObserver

ROWS = [{"prompt": f"{n}?", "completion": "{}"} for n in range(8)]
PAIRS = [
    {"prompt": f"{n}?", "chosen": "{}", "rejected": text}
    for n, text in enumerate(("[1]", "no", "()", "{x}"))
]
MIXED = [{"prompt": f"{n}?", "completion": ("{}", "no", "{n}", "n")[n % 4]} for n in range(8)]
DATA = FakeDatasets(
    {
        "mixed": {"train": MIXED, "held": MIXED[:4]},
        "right": {"train": ROWS, "held": ROWS[:4]},
        "pairs": {"train": PAIRS, "held": PAIRS[:2]},
    }
)
JUDGE = {"batch_size": 4, "epochs": 5, "learning_rate": 0.1}
pytestmark = pytest.mark.usefixtures("letters")


class SamplerCounter(TrainingWithoutTemplate):
    """Training that counts the samplers that were opened."""

    count = 0

    def sampler(self, weights: Any) -> Any:
        self.count += 1
        return super().sampler(weights)


@pytest.fixture(scope="module")
def blobs() -> FakeBlobs:
    """Return a store with a run that has learnt a mixture of answers."""
    blobs = FakeBlobs()
    recipe = SlBasic(
        model="any",
        dataset="mixed",
        batch_size=8,
        epochs=30,
        learning_rate=0.02,
        eval_every=0,
        schedule="constant",
        warmup_steps=0,
    )
    kitchen.run(recipe, training=FakeTraining(blobs), datasets=DATA, blobs=blobs, name="warm-start")
    return blobs


def cook(
    blobs: FakeBlobs, name: str, recipe: type[Rlhf] = Rlhf, **settings: Any
) -> RecordingObserver:
    seen = RecordingObserver()
    defaults = {
        "model": "run:warm-start",
        "batch_size": 4,
        "group": 16,
        "steps": 12,
        "learning_rate": 0.1,
        "playing": {"max_tokens": 12},
        "judge": JUDGE,
    }
    kitchen.run(
        recipe(**{**defaults, **settings}),
        training=FakeTraining(blobs),
        datasets=DATA,
        blobs=blobs,
        name=name,
        observers=[seen],
    )
    return seen


@pytest.mark.parametrize(("recipe", "says"), [(Rlhf, "answer"), (RlhfWithBracketJudge, "letter")])
def test_a_judge_and_a_policy_learn_from_ranked_samples(
    blobs: FakeBlobs, recipe: type[Rlhf], says: str
) -> None:
    seen = cook(
        blobs,
        f"own-{says}",
        recipe,
        dataset="right",
        reward="letters",
        ranking={"pairs": 2, "tries": 8},
        judge={**JUDGE, "says": says},
    )
    assert 8 < seen.series("data/comparisons")[0] <= 16, (
        "of 8 problems, two comparisons each at most"
    )
    if says == "answer":
        certainty = seen.series("judge_margin")
    else:
        certainty = [-loss for loss in seen.series("judge_loss")]
    assert sum(certainty[-3:]) > sum(certainty[:3]) + 0.3, certainty
    assert seen.series("held/judge_accuracy")[0] > 0.8, "letters in {} are brackets"
    before = seen.series("held/judge_accuracy_before")[0]
    assert before == 0.5 if says == "letter" else before < seen.series("held/judge_accuracy")[0]
    for name in ("reward", "true_reward"):
        series = seen.series(name)
        assert len(series) == 12
        assert series[-1] > series[0] + 0.1, (name, series)
    assert seen.series("held/preferred")[0] > 0.5
    assert seen.series("held/reward_gain")[0] > 0
    titles = [table.title for table in seen.tables]
    assert titles.index("The judge on held-out comparisons, 95 % intervals") < titles.index(
        "The judge's preference for new answers over old ones, 95 % intervals"
    )


def share_of_braces(answer: str, completion: str) -> float:
    """Return the share of an answer's characters that are in the completion of the row."""
    return sum(letter in completion for letter in answer) / max(len(answer), 1)


def test_samples_are_ranked_by_a_reward_of_the_users(blobs: FakeBlobs) -> None:
    seen = cook(
        blobs,
        "by-name",
        dataset="right",
        reward=f"{__name__}:share_of_braces",
        ranking={"tries": 8},
        steps=2,
    )
    assert seen.series("data/comparisons")[0] > 0
    assert seen.series("held/judge_accuracy")[0] > 0.8
    assert all(0 < reward < 1 for reward in seen.series("true_reward"))


def test_a_bigram_judge_of_letters_learns_nothing(
    blobs: FakeBlobs,
) -> None:
    seen = cook(
        blobs,
        "bigram",
        dataset="right",
        reward="letters",
        ranking={"tries": 8},
        steps=2,
        judge={**JUDGE, "says": "letter"},
    )
    assert seen.series("held/judge_accuracy") == [0.5]
    assert seen.series("held/judge_preference") == [0.5]
    assert len(seen.series("reward")) == 2


def test_a_data_set_of_preferences_is_learnt_from(blobs: FakeBlobs) -> None:
    seen = cook(blobs, "given", preferences="pairs", kl_penalty=0.01, steps=2)
    assert seen.series("data/comparisons") == []
    assert seen.series("held/shorter_wins") == [0.75]
    assert len(seen.series("held/preferred")) == 1
    assert seen.series("true_reward") == seen.series("held/reward_gain") == [], (
        "the data has no rewards"
    )
    assert len(seen.series("kl_reference")) == 2


def test_unreadable_prompts_are_errors_before_sampling(blobs: FakeBlobs) -> None:
    rows = [
        {
            "messages": [
                {"role": "system", "content": "As JSON."},
                {"role": "user", "content": "2?"},
                {"role": "assistant", "content": "{}"},
            ]
        }
    ] * 4
    data = FakeDatasets({"chats": {"train": rows, "held": rows[:2]}})
    training = SamplerCounter(blobs)
    with pytest.raises(
        KitchenError,
        match=r"train: a prompt has several messages \(system, user\).*judge\.says",
    ):
        kitchen.run(
            Rlhf(model="run:warm-start", dataset="chats", steps=1),
            training=training,
            datasets=data,
            blobs=blobs,
            name="unread",
        )
    assert training.count == 0


def test_a_set_called_data_is_refused_before_sampling(blobs: FakeBlobs) -> None:
    training = SamplerCounter(blobs)
    data = FakeDatasets({"named": {"train": ROWS, "held": ROWS[:4], "data": ROWS[:4]}})
    recipe = Rlhf(model="run:warm-start", dataset="named", steps=1)
    with pytest.raises(KitchenError, match="the held-out set 'data' would have the same metric"):
        list(preview(recipe.workflow(), Kitchen(training, data, None, blobs).ports()))
    with pytest.raises(KitchenError, match="the held-out set 'data' would have the same metric"):
        kitchen.run(recipe, training=training, datasets=data, blobs=blobs, name="named")
    assert training.count == 0


def test_train_full_continues_whole_models(blobs: FakeBlobs) -> None:
    training = FakeTraining(blobs)
    start = SlBasic(model="any", dataset="mixed", train="full", learning_rate=1e-4, max_steps=1)
    kitchen.run(start, training=training, datasets=DATA, blobs=blobs, name="whole")
    settings: dict[str, Any] = {"preferences": "pairs", "steps": 1}
    rates = {"learning_rate": 1e-5, "judge": {"warmup_steps": 0}}
    seen = cook(blobs, "on", model="run:whole", train="full", **settings, **rates)
    facts = read_run(blobs, "on")["facts"]
    assert (facts["trained"], facts["judge.trained"]) == ("all weights", "all weights")
    assert seen.series("judge_learning_rate")[0] == 1e-5
    with pytest.raises(KitchenError, match="judge: run:whole@final: all weights of its model"):
        cook(blobs, "lora", model="any", **settings, judge={"model": "run:whole"})


def test_preferences_exclude_settings_of_ranked_samples(blobs: FakeBlobs) -> None:
    with pytest.raises(KitchenError, match="grading and ranking have no effect"):
        cook(blobs, "both", preferences="pairs", dataset="right")
    with pytest.raises(KitchenError, match="grading and ranking have no effect"):
        cook(blobs, "more", preferences="pairs", ranking={"tries": 8})
    with pytest.raises(KitchenError, match="grading and ranking have no effect"):
        cook(blobs, "most", preferences="pairs", grading={"extract": "x"})


def test_a_judge_of_other_weights_has_its_own_facts(blobs: FakeBlobs) -> None:
    cook(
        blobs,
        "two",
        RlhfWithBracketJudge,
        preferences="pairs",
        steps=2,
        judge={"model": "other", "batch_size": 4},
    )
    facts = read_run(blobs, "two")["facts"]
    assert (facts["model"], facts["weights"]) == ("any", "run:warm-start@final")
    assert facts["judge.model"] == "other"
    weights = find_weights("run:two@2", FakeTraining(blobs), blobs)
    assert not isinstance(weights.source, str)
    assert weights.source.path == "two/weights/final", "not those of the judge after two steps"
