"""The named losses agree with a second implementation, and with finite differences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.backend.losses import (
    LOSSES,
    find_loss,
    scored_positions,
    value_and_logprob_grads,
)
from kitchen.errors import ConfigError
from kitchen.testing.closed_forms import CLOSED_FORMS, closed_form
from kitchen.types import Array, Datum

OPTIONS: Mapping[str, Mapping[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.1},
    "cispo": {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5},
    "gspo": {"clip_low_threshold": 0.7, "clip_high_threshold": 1.1},
    "dro": {"beta": 0.3},
}
nats = st.floats(-6.0, -1e-3)
signed = st.floats(-3.0, 3.0).filter(lambda x: x == 0 or abs(x) > 1e-6)


def datum_for(loss: str, sampled: Array, signal: Array) -> Datum:
    """A datum whose weights or advantages are `signal`."""
    if loss == "cross_entropy":
        inputs = {"weights": signal}
    else:
        inputs = {"logprobs": sampled, "advantages": signal}
    if loss == "gspo":
        inputs["sequence_ratio_mask"] = np.arange(len(signal)) % 3 < 2  # not every token
    ids = np.zeros(len(signal), np.int64)
    return Datum(ids, {"target_tokens": ids, **inputs})


def custom(*_: object) -> tuple[float, list[Array], dict[str, float]]:
    return 0.0, [], {}


def test_there_is_a_closed_form_for_every_loss() -> None:
    assert set(CLOSED_FORMS) == set(LOSSES) == set(OPTIONS)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("with_options", [False, True], ids=["defaults", "options"])
@given(tokens=st.lists(st.tuples(nats, nats, signed), min_size=1, max_size=6))
def test_values_and_gradients_are_the_closed_forms(
    loss: str, with_options: bool, tokens: list[tuple[float, float, float]]
) -> None:
    lp, sampled, signal = np.array(tokens).T
    options = OPTIONS[loss] if with_options else {}
    datum = datum_for(loss, sampled, signal)
    value, grads = value_and_logprob_grads(loss, options, datum, lp)
    expected = closed_form(loss, lp, datum.loss_inputs, **options)
    np.testing.assert_allclose(value, expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grads, expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss != "cispo"])
@given(lp=nats, sampled=nats, signal=signed)
def test_gradients_are_finite_differences_of_values(
    loss: str, lp: float, sampled: float, signal: float
) -> None:
    """Away from the corners of a clipped ratio; cispo, of constant weight, is tested below."""
    corners = [np.log(limit) for limit in OPTIONS["ppo"].values()]
    if any(abs(lp - sampled - corner) < 1e-4 for corner in corners):
        return
    h = 1e-6
    datum = datum_for(loss, np.array([sampled]), np.array([signal]))
    above, below = (
        value_and_logprob_grads(loss, OPTIONS[loss], datum, np.array([lp + step]))[0][0]
        for step in (h, -h)
    )
    grad = value_and_logprob_grads(loss, OPTIONS[loss], datum, np.array([lp]))[1][0]
    assert grad == pytest.approx((above - below) / (2 * h), rel=1e-4, abs=1e-4)


@given(lp=nats, sampled=nats, signal=signed)
def test_the_weight_of_cispo_is_a_constant(lp: float, sampled: float, signal: float) -> None:
    datum = datum_for("cispo", np.array([sampled]), np.array([signal]))
    value, grads = value_and_logprob_grads("cispo", OPTIONS["cispo"], datum, np.array([lp]))
    assert value[0] == pytest.approx(grads[0] * lp)
    assert abs(grads[0]) <= 1.5 * abs(signal) + 1e-12


def test_numbers_worked_out_by_hand() -> None:
    """Ratios 2 and 1/2, advantages 1 and -1: the clipped objective holds both at its limits."""
    lp, sampled = np.log([0.5, 0.25]), np.log([0.25, 0.5])
    datum = datum_for("ppo", sampled, np.array([1.0, -1.0]))
    values = value_and_logprob_grads("importance_sampling", {}, datum, lp)[0]
    np.testing.assert_allclose(values, [-2.0, 0.5])
    both = value_and_logprob_grads("ppo", {}, datum, lp)
    np.testing.assert_allclose(both, [[-1.2, 0.8], [0.0, 0.0]])
    grads = value_and_logprob_grads("cispo", {}, datum, lp)[1]
    np.testing.assert_allclose(grads, [-2.0, 0.5])
    log_ratio = np.log(2.0)
    np.testing.assert_allclose(
        value_and_logprob_grads("dro", {"beta": 2.0}, datum, lp),
        [-(lp * [1, -1] - log_ratio**2), [-(1 - 2 * log_ratio), -(-1 + 2 * log_ratio)]],
    )
    weighted = datum_for("cross_entropy", lp, np.array([3.0, 0.0]))
    np.testing.assert_allclose(
        value_and_logprob_grads("cross_entropy", {}, weighted, lp),
        [[3 * np.log(2), 0.0], [-3.0, 0.0]],
    )


@pytest.mark.parametrize("loss", ["ppo", "cispo", "gspo"])
@given(tokens=st.lists(st.tuples(nats, nats, signed), min_size=3, max_size=3))
def test_thresholds_by_token_replace_the_options(
    loss: str, tokens: list[tuple[float, float, float]]
) -> None:
    lp, sampled, signal = np.array(tokens).T
    plain = datum_for(loss, sampled, signal)
    by_token = {
        "clip_low_threshold": np.array([0.0, 0.7, 0.9], np.float32),
        "clip_high_threshold": np.array([1.05, 1.1, 3.0], np.float32),
    }
    for given_names in (list(by_token), ["clip_high_threshold"]):
        thresholds = {name: by_token[name] for name in given_names}
        datum = Datum(plain.tokens, {**plain.loss_inputs, **thresholds})
        actual = value_and_logprob_grads(loss, OPTIONS[loss], datum, lp)
        expected = closed_form(loss, lp, datum.loss_inputs, **OPTIONS[loss])
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)


def test_gspo_has_the_ratio_of_the_sequence() -> None:
    """Ratios 2, 8 and 100, the last outside the mask: the sequence has the ratio 4."""
    sampled = np.log([0.1, 0.1, 0.001])
    lp = sampled + np.log([2.0, 8.0, 100.0])
    plain = datum_for("gspo", sampled, np.array([1.0, -1.0, 0.5]))
    wide = {"clip_high_threshold": 5.0}
    both = value_and_logprob_grads("gspo", wide, plain, lp)
    np.testing.assert_allclose(both, [[-4.0, 4.0, -2.0], [-4.0, 4.0, -2.0]])
    # by default the ratio is clipped to 1.0004 wherever that lowers the objective
    clipped = value_and_logprob_grads("gspo", {}, plain, lp)
    np.testing.assert_allclose(clipped, [[-1.0004, 4.0, -0.5002], [0.0, 4.0, 0.0]])


def test_gspo_reads_tokens_without_an_advantage() -> None:
    sampled, advantages = np.log([0.5, 0.5]), np.array([0.0, 1.0])
    datum = datum_for("gspo", np.where([True, False], 0.0, sampled), advantages)
    assert scored_positions("gspo", datum).tolist() == [True, True]
    value, grads = value_and_logprob_grads("gspo", {"clip_high_threshold": 9.0}, datum, sampled)
    np.testing.assert_allclose(value, [0.0, -np.exp(sampled[0] / 2)])
    np.testing.assert_allclose(grads, value)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if LOSSES[loss].mask_input])
def test_masked_tokens_are_exactly_zero(loss: str) -> None:
    datum = datum_for(loss, np.array([-1e4, -1.0, -1e4]), np.array([0.0, 1.0, 0.0]))
    if loss == "gspo":  # the sequence's ratio may not include them
        datum.loss_inputs["sequence_ratio_mask"][:] = [False, True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, grads = value_and_logprob_grads(loss, {}, datum, np.array([-np.inf, -2.0, np.nan]))
    assert value[[0, 2]].tolist() == grads[[0, 2]].tolist() == [0.0, 0.0]
    assert np.isfinite(value).all()
    assert grads[1] != 0


def test_k_targets_share_a_position() -> None:
    weights = np.array([[1.0, 0.0], [0.0, 0.0], [0.25, 0.75]])
    ids = np.zeros(3, np.int64)
    datum = Datum(ids, {"target_tokens": np.zeros((3, 2), np.int64), "weights": weights})
    lp = np.log(np.array([[0.5, 0.1], [0.2, 0.3], [0.4, 0.8]]))
    value, grads = value_and_logprob_grads("cross_entropy", {}, datum, lp)
    np.testing.assert_allclose(value, -lp * weights)
    np.testing.assert_allclose(grads, -weights)
    assert scored_positions("cross_entropy", datum).tolist() == [True, False, True]


def test_positions_with_k_sampled_targets_are_scored() -> None:
    sampled = np.array([[0.0, 0.0], [-0.5, -1.0], [0.0, -2.0]])
    advantages = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    inputs = {"logprobs": sampled, "advantages": advantages}
    datum = Datum(np.zeros(3, np.int64), {"target_tokens": np.zeros((3, 2), np.int64), **inputs})
    for loss in ("ppo", "cispo", "importance_sampling"):
        assert scored_positions(loss, datum).tolist() == [False, True, True]


def test_positions_with_a_gradient_are_scored() -> None:
    signal = np.array([0.0, -0.5, 2.0])
    for loss in ("cross_entropy", "ppo", "cispo", "importance_sampling"):
        datum = datum_for(loss, signal, signal)
        assert scored_positions(loss, datum).tolist() == [False, True, True]
    # the penalty of dro pulls without an advantage
    assert scored_positions("dro", datum_for("dro", signal, signal)).all()
    weighted = datum_for("cross_entropy", signal, signal)
    assert scored_positions(custom, weighted).tolist() == [False, True, True]
    assert scored_positions(custom, datum_for("ppo", signal, signal)).all()


def test_a_sampled_token_is_scored_whatever_its_advantage() -> None:
    sampled, signal = np.array([0.0, -0.5, -2.0]), np.array([0.0, 0.0, 1.0])
    for loss in ("ppo", "cispo", "importance_sampling"):
        datum = datum_for(loss, sampled, signal)
        assert scored_positions(loss, datum).tolist() == [False, True, True]


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"'cross_entrpy'.*'cross_entropy'"):
        find_loss("cross_entrpy")
    with pytest.raises(ConfigError, match=r"formula of it was found; use .*gspo"):
        find_loss("stable_reinforce")
    with pytest.raises(ConfigError, match=r"'clip_low'.*'clip_low_threshold'"):
        find_loss("ppo", {"clip_low": 0.9})


def test_options_are_completed_with_defaults() -> None:
    assert find_loss("ppo", {"clip_low_threshold": 0.5})[1] == {
        "clip_low_threshold": 0.5,
        "clip_high_threshold": 1.2,
    }


@pytest.mark.parametrize(
    ("loss", "options", "shown"),
    [
        ("ppo", {"clip_low_threshold": 1.3}, "clip_low_threshold=1.3 and clip_high_threshold=1.2"),
        ("cispo", {"clip_low_threshold": -0.1}, "clip_low_threshold=-0.1"),
        ("dro", {"beta": -1.0}, "beta=-1"),
    ],
)
def test_invalid_option_values_are_refused(
    loss: str, options: Mapping[str, float], shown: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(shown)):
        find_loss(loss, options)
