"""Losses on pairs of answers, against formulas and finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError
from kitchen.types import Adam, Array, Datum, Lora
from stages.preference.comparisons import as_batch
from stages.preference.dpo_losses import PairLoss

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


def log_ratio(logprobs: Array, datum: Datum) -> float:
    """The log-ratio of an answer to the reference, summed over its weighted tokens."""
    weighted = datum.loss_inputs["weights"] != 0
    return float(sum((logprobs - datum.loss_inputs["reference"])[weighted]))


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
        h = log_ratio(logprobs[at], DATA[at]) - log_ratio(logprobs[at + 1], DATA[at + 1])
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
