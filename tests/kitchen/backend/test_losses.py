"""The named losses against a second writing of them, and against finite differences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.backend.losses import LOSSES, named, scored, value_and_grad
from kitchen.errors import ConfigError
from kitchen.testing.closed_forms import FORMS, closed_form
from kitchen.types import Array, Datum

OPTIONS: Mapping[str, Mapping[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.1},
    "cispo": {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5},
    "dro": {"beta": 0.3},
}
nats = st.floats(-6.0, -1e-3)
signed = st.floats(-3.0, 3.0).filter(lambda x: x == 0 or abs(x) > 1e-6)


def datum(loss: str, sampled: Array, signal: Array) -> Datum:
    inputs = (
        {"weights": signal}
        if loss == "cross_entropy"
        else {"logprobs": sampled, "advantages": signal}
    )
    ids = np.zeros(len(signal), np.int64)
    return Datum(ids, {"target_tokens": ids, **inputs})


def test_there_is_a_closed_form_for_every_loss() -> None:
    assert set(FORMS) == set(LOSSES) == set(OPTIONS)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("told", [False, True], ids=["defaults", "options"])
@given(tokens=st.lists(st.tuples(nats, nats, signed), min_size=1, max_size=6))
def test_values_and_slopes_are_the_closed_forms(
    loss: str, told: bool, tokens: list[tuple[float, float, float]]
) -> None:
    lp, sampled, signal = np.array(tokens).T
    options = OPTIONS[loss] if told else {}
    one = datum(loss, sampled, signal)
    value, slope = value_and_grad(loss, options, one, lp)
    expected = closed_form(loss, lp, one.loss_inputs, **options)
    np.testing.assert_allclose(value, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slope, expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "cispo"])
@given(lp=nats, sampled=nats, signal=signed)
def test_slopes_are_finite_differences_of_values(
    loss: str, lp: float, sampled: float, signal: float
) -> None:
    """Away from the corners of a clipped ratio; cispo holds its weight constant, so it has a test
    of its own.
    """
    corners = [np.log(limit) for limit in OPTIONS["ppo"].values()]
    if any(abs(lp - sampled - corner) < 1e-4 for corner in corners):
        return
    one, h = datum(loss, np.array([sampled]), np.array([signal])), 1e-6
    up, down = (
        value_and_grad(loss, OPTIONS[loss], one, np.array([lp + step]))[0][0] for step in (h, -h)
    )
    slope = value_and_grad(loss, OPTIONS[loss], one, np.array([lp]))[1][0]
    assert slope == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-4)


@given(lp=nats, sampled=nats, signal=signed)
def test_the_weight_of_cispo_is_a_constant(lp: float, sampled: float, signal: float) -> None:
    one = datum("cispo", np.array([sampled]), np.array([signal]))
    value, slope = value_and_grad("cispo", OPTIONS["cispo"], one, np.array([lp]))
    assert value[0] == pytest.approx(slope[0] * lp)
    assert abs(slope[0]) <= 1.5 * abs(signal) + 1e-12


def test_numbers_worked_out_by_hand() -> None:
    """Ratios 2 and 1/2 with advantages 1 and -1: the clipped objective holds both at its limits."""
    lp, sampled = np.log([0.5, 0.25]), np.log([0.25, 0.5])
    one = datum("ppo", sampled, np.array([1.0, -1.0]))
    np.testing.assert_allclose(value_and_grad("importance_sampling", {}, one, lp)[0], [-2.0, 0.5])
    np.testing.assert_allclose(value_and_grad("ppo", {}, one, lp), [[-1.2, 0.8], [0.0, 0.0]])
    np.testing.assert_allclose(value_and_grad("cispo", {}, one, lp)[1], [-2.0, 0.5])
    away = np.log(2.0)
    np.testing.assert_allclose(
        value_and_grad("dro", {"beta": 2.0}, one, lp),
        [-(lp * [1, -1] - away**2), [-(1 - 2 * away), -(-1 + 2 * away)]],
    )
    np.testing.assert_allclose(
        value_and_grad("cross_entropy", {}, datum("cross_entropy", lp, np.array([3.0, 0.0])), lp),
        [[3 * np.log(2), 0.0], [-3.0, 0.0]],
    )


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if LOSSES[loss].idle])
def test_idle_tokens_are_exactly_zero_whatever_they_hold(loss: str) -> None:
    one = datum(loss, np.array([-1e4, -1.0, -1e4]), np.array([0.0, 1.0, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, slope = value_and_grad(loss, {}, one, np.array([-np.inf, -2.0, np.nan]))
    assert value[[0, 2]].tolist() == slope[[0, 2]].tolist() == [0.0, 0.0]
    assert np.isfinite(value).all()
    assert slope[1] != 0


def test_k_targets_share_a_position() -> None:
    weights = np.array([[1.0, 0.0], [0.0, 0.0], [0.25, 0.75]])
    ids = np.zeros(3, np.int64)
    one = Datum(ids, {"target_tokens": np.zeros((3, 2), np.int64), "weights": weights})
    lp = np.log(np.array([[0.5, 0.1], [0.2, 0.3], [0.4, 0.8]]))
    value, slope = value_and_grad("cross_entropy", {}, one, lp)
    np.testing.assert_allclose(value, -lp * weights)
    np.testing.assert_allclose(slope, -weights)
    assert scored("cross_entropy", one).tolist() == [True, False, True]


def test_a_loss_is_scored_where_it_can_have_a_gradient() -> None:
    signal = np.array([0.0, -0.5, 2.0])
    for loss in ("cross_entropy", "ppo", "cispo", "importance_sampling"):
        assert scored(loss, datum(loss, signal, signal)).tolist() == [False, True, True]
    # its penalty pulls without an advantage
    assert scored("dro", datum("dro", signal, signal)).all()

    def own(*_: object) -> tuple[float, list[Array], dict[str, float]]:
        return 0.0, [], {}

    assert scored(own, datum("cross_entropy", signal, signal)).tolist() == [False, True, True]
    assert scored(own, datum("ppo", signal, signal)).all()


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'cross_entrpy'.*'cross_entropy'"):
        named("cross_entrpy")
    with pytest.raises(ConfigError, match=r"'clip_low'.*'clip_low_threshold'"):
        named("ppo", {"clip_low": 0.9})
    assert named("ppo", {"clip_low_threshold": 0.5})[1] == {
        "clip_low_threshold": 0.5,
        "clip_high_threshold": 1.2,
    }


def test_a_sampled_token_is_scored_whatever_its_advantage() -> None:
    sampled, signal = np.array([0.0, -0.5, -2.0]), np.array([0.0, 0.0, 1.0])
    for loss in ("ppo", "cispo", "importance_sampling"):
        assert scored(loss, datum(loss, sampled, signal)).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("loss", "options", "named_"),
    [
        ("ppo", {"clip_low_threshold": 1.3}, "clip_low_threshold=1.3 and clip_high_threshold=1.2"),
        ("cispo", {"clip_low_threshold": -0.1}, "clip_low_threshold=-0.1"),
        ("dro", {"beta": -1.0}, "beta=-1"),
    ],
)
def test_thresholds_that_cross_and_what_pushes_away_are_refused(
    loss: str, options: Mapping[str, float], named_: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(named_)):
        named(loss, options)
