"""Preference losses against formulas and finite differences, and the data of comparisons."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Done
from kitchen.types import Adam, Array, Datum, Lora, Sampled
from recipes._base import EpochRecipe
from recipes.dpo import Dpo
from recipes.kto import Kto
from stages.chat.masks import TRAIN_ON, TrainOn
from stages.chat.render import RenderDataset
from stages.evaluate.evaluation import EvalConfig
from stages.preference.comparisons import (
    TRAIN_ON_ANSWERS,
    Comparison,
    Comparisons,
    RenderPairs,
    SampledRejections,
    SampleRejectedAnswers,
    as_batch,
    comparison,
)
from stages.preference.pair_loss import PairLoss
from tests.support.no_chat_template import PlainTokenizer
from tests.support.thoughts import ThoughtStrippingTokenizer

RNG = np.random.default_rng(4)


def pair(lengths: tuple[int, int], prompt: int = 3) -> tuple[Datum, Datum]:
    def datum(answer: int) -> Datum:
        count = prompt + answer
        weights = np.repeat([0.0, 1.0], [prompt, answer]).astype(np.float32)
        return Datum(
            RNG.integers(1, 9, count),
            {
                "target_tokens": RNG.integers(1, 9, count),
                "weights": weights,
                "reference": RNG.normal(-2, 1, count),
            },
        )

    return datum(lengths[0]), datum(lengths[1])


DATA = as_batch([pair((4, 2)), pair((1, 5)), pair((3, 3))])
LOGPROBS: list[Any] = [-np.abs(RNG.normal(-2, 1, len(datum.tokens))) for datum in DATA]


def expected_loss(
    kind: str, beta: float, smooth: float, logprobs: list[Array], imitation: float = 0.0
) -> float:
    """The loss pair by pair, as in the papers."""
    total = 0.0
    for at in range(0, len(DATA), 2):
        if kind in ("simpo", "orpo"):
            means = (
                logprobs[one][DATA[one].loss_inputs["weights"] != 0].mean() for one in (at, at + 1)
            )
            total += without_reference(kind, beta, *map(float, means), imitation)
            continue
        chosen, rejected = (
            sum(
                lp - ref
                for lp, ref, weight in zip(
                    logprobs[one],
                    DATA[one].loss_inputs["reference"],
                    DATA[one].loss_inputs["weights"],
                    strict=True,
                )
                if weight
            )
            for one in (at, at + 1)
        )
        h = chosen - rejected
        total -= imitation * float(np.mean(logprobs[at][DATA[at].loss_inputs["weights"] != 0]))
        if kind == "ipo":
            total += (h - 1 / (2 * beta)) ** 2
        elif kind == "hinge":
            total += max(0.0, 1 - beta * h)
        else:
            total -= (1 - smooth) * math.log(1 / (1 + math.exp(-beta * h)))
            total -= smooth * math.log(1 / (1 + math.exp(beta * h)))
    return total / (len(DATA) // 2)


TARGET = 0.4  # target_margin of simpo


def without_reference(
    kind: str, beta: float, chosen: float, rejected: float, imitation: float
) -> float:
    """The loss of one pair, from the mean log-probabilities of its answers."""
    if kind == "simpo":
        value = -math.log(1 / (1 + math.exp(-(beta * chosen - beta * rejected - TARGET))))
        return value - imitation * chosen
    odds = [math.exp(each) / (1 - math.exp(each)) for each in (chosen, rejected)]
    ratio = math.log(odds[0] / odds[1])
    return -chosen - beta * math.log(1 / (1 + math.exp(-ratio))) - imitation * chosen


@pytest.mark.parametrize(
    ("kind", "smooth"),
    [
        ("sigmoid", 0.0),
        ("sigmoid", 0.2),
        ("ipo", 0.0),
        ("hinge", 0.0),
        ("simpo", 0.0),
        ("orpo", 0.0),
    ],
)
@pytest.mark.parametrize(("beta", "imitation"), [(0.1, 0.0), (0.7, 0.0), (0.3, 0.8)])
def test_value_and_gradient_of_pair_losses(
    kind: Any, smooth: float, beta: float, imitation: float
) -> None:
    loss = PairLoss(
        kind, beta, smooth, imitation, target_margin=TARGET if kind == "simpo" else None
    )
    value, gradients, metrics = loss(DATA, LOGPROBS)
    assert value == pytest.approx(expected_loss(kind, beta, smooth, LOGPROBS, imitation), rel=1e-6)
    assert metrics["loss:sum"] == value
    for at, gradient in enumerate(gradients):
        for place in range(len(gradient)):
            moved = [[lp.copy() for lp in LOGPROBS] for _ in range(2)]
            moved[0][at][place] += 1e-6
            moved[1][at][place] -= 1e-6
            above, below = (expected_loss(kind, beta, smooth, one, imitation) for one in moved)
            difference = (above - below) / 2e-6
            assert gradient[place] == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_gradients_raise_chosen_and_lower_rejected_answers() -> None:
    _, gradients, metrics = PairLoss()(DATA, LOGPROBS)
    for at, gradient in enumerate(gradients):
        answer = DATA[at].loss_inputs["weights"] != 0
        assert (gradient[answer] < 0).all() if at % 2 == 0 else (gradient[answer] > 0).all()
        assert (gradient[~answer] == 0).all()
    assert metrics["margin:sum"] == pytest.approx(
        metrics["chosen_reward:sum"] - metrics["rejected_reward:sum"]
    )


def test_the_reference_itself_has_no_preference() -> None:
    value, _, metrics = PairLoss()(DATA, [datum.loss_inputs["reference"] for datum in DATA])
    assert value == pytest.approx(math.log(2), abs=1e-6)
    assert (metrics["accuracy:sum"], metrics["margin:sum"]) == (0.0, 0.0)


def test_losses_of_pairs_add_up_to_the_batch() -> None:
    whole = PairLoss()(DATA, LOGPROBS)
    parts = [PairLoss()(DATA[at : at + 2], LOGPROBS[at : at + 2]) for at in (0, 2, 4)]
    assert sum(part[0] for part in parts) == pytest.approx(whole[0])
    for mine, theirs in zip([one for part in parts for one in part[1]], whole[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_huge_margins_do_not_overflow() -> None:
    far = [lp + (5000 if at % 2 else -5000) for at, lp in enumerate(LOGPROBS)]
    with np.errstate(all="raise", under="ignore"):
        value, gradients, _ = PairLoss("sigmoid", 10.0)(DATA, far)
    assert math.isfinite(value)
    assert all(np.isfinite(one).all() for one in gradients)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "sigmod"}, "sigmoid"),
        ({"beta": 0.0}, "beta"),
        ({"imitation": -1.0}, "imitation"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
        ({"kind": "ipo", "label_smoothing": 0.1}, "loss=sigmoid"),
        ({"target_margin": 0.1}, "loss=simpo"),
        ({"kind": "simpo", "target_margin": -0.1}, "target_margin"),
    ],
)
def test_invalid_options_of_pair_losses(settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PairLoss(**settings)


def test_orpo_clamps_the_odds_of_certain_answers() -> None:
    sure = [np.zeros(len(datum.tokens)) for datum in DATA]
    with np.errstate(all="raise", under="ignore"):
        value, gradients, _ = PairLoss("orpo")(DATA, sure)
    assert value == pytest.approx(0.1 * math.log(2), rel=1e-5)
    rejected = [gradient for at, gradient in enumerate(gradients) if at % 2]
    assert not np.concatenate(rejected).any(), "the gradient of clamped odds is 0"


@pytest.mark.parametrize(
    ("default", "explicit"),
    [
        (PairLoss(), PairLoss(beta=0.1)),
        (PairLoss("simpo"), PairLoss("simpo", 2.0, target_margin=1.0)),
        (PairLoss("simpo", 3.0), PairLoss("simpo", 3.0, target_margin=1.5)),
        (PairLoss("orpo"), PairLoss("orpo", 0.1)),
    ],
)
def test_defaults_depend_on_the_loss(default: PairLoss, explicit: PairLoss) -> None:
    assert default(DATA, LOGPROBS)[0] == explicit(DATA, LOGPROBS)[0]


def test_the_fake_learns_preferences() -> None:
    session = FakeTraining().open("fake", Lora())
    losses = []
    for _ in range(30):
        output = session.forward_backward(DATA, PairLoss(beta=1.0)).result()
        losses.append(output.metrics["loss:sum"])
        session.optim_step(Adam(0.1)).result()
    assert losses[-1] < 0.5 * losses[0]


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "yes", "rejected": "no"},
        {
            "prompt": CHAT[:1],
            "chosen": CHAT[1:],
            "rejected": [{"role": "assistant", "content": "no"}],
        },
        {"chosen": CHAT, "rejected": [CHAT[0], {"role": "assistant", "content": "no"}]},
        {
            "prompt": "q",
            "chosen": CHAT,
            "rejected": [CHAT[0], {"role": "assistant", "content": "no"}],
        },
        {
            "prompt": " q\n",
            "chosen": CHAT,
            "rejected": [CHAT[0], {"role": "assistant", "content": "no"}],
            "label": True,
        },
    ],
)
def test_formats_of_comparisons(row: Any) -> None:
    found = comparison(row, "here:1")
    assert found.rejected is not None
    assert [m.content for m in found.chosen.messages] == ["q", "yes"]
    assert [m.content for m in found.rejected.messages] == ["q", "no"]
    assert found.chosen.where == found.rejected.where == "here:1"


def test_a_prompt_precedes_answers_of_several_messages() -> None:
    asked = [{"role": "system", "content": "Be kind."}, CHAT[0]]
    more = [{"role": "assistant", "content": "hm"}, {"role": "user", "content": "so?"}]
    row = {
        "prompt": asked,
        "chosen": [*more, CHAT[1]],
        "rejected": [*more, {"role": "assistant", "content": "no"}],
    }
    found = comparison(row, "here:1")
    assert [m.content for m in found.chosen.messages] == ["Be kind.", "q", "hm", "so?", "yes"]
    result = {"role": "tool", "content": "4"}
    short = {
        "prompt": "What is 4 + 4?",
        "chosen": [{"role": "assistant", "content": "4 + 4"}, result, CHAT[1]],
        "rejected": [{"role": "assistant", "content": "4 + 4"}, result, more[0]],
    }
    assert [m.content for m in comparison(short, "here:1").chosen.messages] == [
        "What is 4 + 4?",
        "4 + 4",
        "4",
        "yes",
    ]
    called = {
        "prompt": [*asked, more[0]],
        "chosen": [result, CHAT[1]],
        "rejected": [result, more[0]],
    }
    assert [m.content for m in comparison(called, "here:1").chosen.messages] == [
        "Be kind.",
        "q",
        "hm",
        "4",
        "yes",
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        "q",
        "so?",
        " q\n",
        "",
        None,
        [],
        CHAT[:1],
        [{"role": "assistant", "content": "hello"}, CHAT[0]],
        "<system>Be "
        "kind.</s><assistant>hello</s><user>q</s><assistant>hm</s><user>so?</s><assistant>",
    ],
)
def test_a_prompt_within_a_conversation_is_not_repeated(prompt: Any) -> None:
    whole = [
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "hello"},
        CHAT[0],
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": "so?"},
    ]
    row = {
        "prompt": prompt,
        "chosen": [*whole, CHAT[1]],
        "rejected": [*whole, {"role": "assistant", "content": "no"}],
    }
    found = comparison(row, "here:1")
    assert [m.content for m in found.chosen.messages] == [
        "Be kind.",
        "hello",
        "q",
        "hm",
        "so?",
        "yes",
    ]
    greeted = comparison(
        {"prompt": "q", "chosen": [*whole[1:3], CHAT[1]], "rejected": whole[1:4]}, "here:1"
    )
    assert [m.content for m in greeted.chosen.messages] == ["hello", "q", "yes"]


@pytest.mark.parametrize(
    "after", [[], [{"role": "user", "content": "thanks"}], [{"role": "tool", "content": "4"}]]
)
def test_a_sampled_rejection_directly_follows_the_prompt(
    after: list[dict[str, str]],
) -> None:
    row = comparison({"messages": [*CHAT, *after]}, "here:1")
    rejected = SampledRejections({"": {0: "no"}}).rejected("", 0, row)
    assert rejected is not None
    assert [(m.role, m.content) for m in rejected.messages] == [("user", "q"), ("assistant", "no")]


@pytest.mark.parametrize("recipe", [Dpo, Kto])
@pytest.mark.parametrize("train_on", TRAIN_ON)
def test_preferences_train_only_on_answers(recipe: type[EpochRecipe], train_on: TrainOn) -> None:
    configured = recipe(rendering=RenderDataset(train_on=train_on))
    if train_on in TRAIN_ON_ANSWERS:
        configured.workflow()
        return
    with pytest.raises(ConfigError, match=rf"rendering\.train_on={train_on}"):
        configured.workflow()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{**CHAT[0], "trainable": True}], "completion": "yes"},
        {
            "chosen": [{**CHAT[0], "trainable": True}, CHAT[1]],
            "rejected": [CHAT[0], {**CHAT[1], "content": "no"}],
        },
    ],
)
def test_only_answers_may_be_trainable(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"^here:1: message 0 is trainable and of 'user'"):
        comparison(row, "here:1")


@pytest.mark.parametrize(
    ("texts", "most", "words"),
    [
        (
            {},
            100,
            r"nothing to train on: of 2 rows 2 have no rejected answer .*mistakes\.tries",
        ),
        (
            {"": {0: "no"}, "held": {0: "no"}},
            3,
            "of 2 rows 1 have no .* and 1 are longer than max_tokens=3",
        ),
        (
            {"": {0: "no", 1: "no"}, "held": {0: "no"}},
            3,
            "train on: of 2 rows 2 are longer than max_tokens=3",
        ),
        (
            {"": {0: "no"}},
            100,
            "nothing to measure on: held: of 1 rows 1 have no .*hold out more rows",
        ),
    ],
)
def test_errors_say_why_rows_are_left_out(
    texts: dict[str, dict[int, str]], most: int, words: str
) -> None:
    row = comparison({"prompt": "q", "completion": "yes"}, "here:1")
    stage = RenderPairs(RenderDataset(max_tokens=most, overlong="drop"))
    with pytest.raises(DataError, match=words):
        stage.run(
            Comparisons((row, row), {"held": (row,)}), SampledRejections(texts), ByteTokenizer()
        )


def test_a_row_may_have_no_rejected_answer() -> None:
    assert isinstance(comparison({"prompt": "q", "completion": "yes"}, "here:1"), Comparison)
    assert comparison({"prompt": "q", "completion": "yes"}, "here:1").rejected is None


class FixedAnswers(FakeTraining):
    """A client whose samplers answer each prompt with these texts."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts = texts

    def sampler(self, weights: Any) -> Any:
        return self

    def sample(self, prompt: Any, *, count: int, **how: Any) -> Any:
        answers = [ByteTokenizer().encode(text) for text in self.texts]
        return Done([Sampled(ids, np.zeros(len(ids), np.float32), "stop") for ids in answers])

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("metric", "wrong"), [("auto", "#### 4.0"), ("text", "#### 4.0"), ("math", "#### 5")]
)
def test_the_evaluation_metric_decides_which_answer_is_wrong(metric: Any, wrong: str) -> None:
    row = comparison({"prompt": "2 + 2", "completion": "It is #### 4"}, "here:1")
    stage = SampleRejectedAnswers("any", RenderDataset(), evaluation=EvalConfig(metric=metric))
    found, _ = asyncio.run(
        stage.run(FixedAnswers("#### 4.0", "#### 5"), ByteTokenizer(), Comparisons((row,), {}))
    )
    assert found.texts == {"": {0: wrong}}


def test_json_answers_are_compared_as_objects_by_default() -> None:
    row = comparison({"prompt": "q", "completion": '{"a": 1, "b": 2}'}, "here:1")
    stage = SampleRejectedAnswers("any", RenderDataset(), evaluation=EvalConfig(metric="loss"))
    found, _ = asyncio.run(
        stage.run(
            FixedAnswers('{"b": 2, "a": 1}', '{"a": 1}'), ByteTokenizer(), Comparisons((row,), {})
        )
    )
    assert found.texts == {"": {0: '{"a": 1}'}}


def test_a_reference_answer_that_cannot_be_parsed_is_named() -> None:
    row = comparison({"prompt": "2 + 2", "completion": "four, I think"}, "here:1")
    stage = SampleRejectedAnswers("any", RenderDataset(), evaluation=EvalConfig(metric="math"))
    with pytest.raises(DataError, match=r"here:1: evaluation\.metric=math: .*no number or formula"):
        asyncio.run(stage.run(FixedAnswers("5"), ByteTokenizer(), Comparisons((row,), {})))


def test_without_a_template_the_separator_is_not_doubled() -> None:
    row = comparison({"prompt": "q", "completion": "yes"}, "here:1")
    rows = Comparisons((row,), {"held": (row,)})
    found, _ = asyncio.run(
        SampleRejectedAnswers("any", RenderDataset()).run(
            FixedAnswers(" no"), PlainTokenizer(), rows
        )
    )
    assert found.texts == {"": {0: "no"}, "held": {0: "no"}}
    pairs, _ = RenderPairs(RenderDataset()).run(rows, found, PlainTokenizer())
    assert [PlainTokenizer().decode(datum.tokens[1:]) for datum in pairs.train[0]] == [
        "q yes",
        "q no",
    ]


def test_an_answer_of_several_sequences_is_an_error() -> None:
    turns = [
        CHAT[0],
        {"role": "assistant", "content": "hm/think>yes"},
        {"role": "user", "content": "sure?"},
    ]
    row = comparison({"prompt": turns, "chosen": "yes", "rejected": "no"}, "here:1")
    with pytest.raises(
        DataError, match=r"here:1: .* 2 sequences, .*rendering\.train_on=last_assistant_turn"
    ):
        RenderPairs(RenderDataset()).run(
            Comparisons((row,), {}), SampledRejections({}), ThoughtStrippingTokenizer()
        )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "q", "chosen": "yes"}, "'rejected' is missing"),
        ({"prompt": "q", "chosen": "yes", "rejected": None}, "'rejected' is missing or null"),
        ({"chosen": "yes", "rejected": "no"}, "'prompt' is missing; add it, or drop the row$"),
        (
            {"question": "q", "chosen": "yes", "rejected": "no"},
            r"reading\.columns\.question=prompt$",
        ),
        (
            {"system": "s", "input": "q", "chosen": "yes", "rejected": "no"},
            r"reading\.columns\.input=prompt$",
        ),
        ({"prompt": 0, "chosen": "yes", "rejected": "no"}, "prompt is a number, not text"),
        (
            {"prompt": "other", "chosen": CHAT, "rejected": CHAT[:1]},
            "chosen begins with .*'prompt'",
        ),
        (
            {
                "prompt": [{"role": "system", "content": "s"}, CHAT[0]],
                "chosen": CHAT,
                "rejected": CHAT,
            },
            "chosen begins with .*'prompt'",
        ),
        (
            {"prompt": "q", "chosen": "yes", "rejected": "no", "label": False},
            "label is false",
        ),
        ({"prompt": "q", "chosen": "yes", "rejected": "yes"}, "the same text"),
        (
            {"prompt": "q", "chosen": "yes", "rejected": 3},
            "pairs.jsonl:7: rejected is a number, not text; make it text",
        ),
        (
            {"prompt": "q", "chosen": "yes", "rejected": ["x"]},
            r"7: rejected\[0\] is text, not a message",
        ),
        (
            {"chosen": CHAT, "rejected": [{"role": "user", "content": "other"}, CHAT[1]]},
            "different prompts",
        ),
        ({"chosen": [*CHAT, CHAT[0]], "rejected": CHAT}, "ends with a message of 'user'"),
    ],
)
def test_rows_that_are_not_comparisons(row: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as found:
        comparison(row, "pairs.jsonl:7")
    assert str(found.value).startswith("pairs.jsonl:7")
