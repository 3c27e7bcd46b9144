"""Comparisons choose the methods that suit the data, and say what the data does not tell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchen.errors import ConfigError, DataError
from kitchen.statistics.comparison import (
    LOSS,
    Criteria,
    Measure,
    compare_many_paired,
    compare_many_unpaired,
    compare_paired,
    compare_seeds,
    compare_unpaired,
    with_correction,
)
from kitchen.statistics.intervals import (
    clopper_pearson,
    korn_graubard,
    newcombe_paired,
    newcombe_unpaired,
    welch_interval,
)
from kitchen.statistics.significance import mann_whitney, mcnemar

RANDOM = np.random.default_rng(0)
BITS = RANDOM.integers(2, size=200).astype(float)
BETTER_BITS = np.where(RANDOM.random(200) < 0.3, 1.0, BITS)
SCORES = RANDOM.random(200) * 0.8
BETTER_SCORES = SCORES + RANDOM.random(200) * 0.1
TOKENS = RANDOM.integers(5, 50, 200).astype(float)
NATS = TOKENS * (1 + RANDOM.random(200))
CLUSTERS = np.arange(200) // 5


def ends(found) -> tuple[float, float]:
    return found.low, found.high


def test_same_items_with_scores_of_0_and_1():
    found = compare_paired(BITS, BETTER_BITS)
    assert ends(found.difference) == ends(newcombe_paired(BITS, BETTER_BITS))
    assert found.test == mcnemar(BITS, BETTER_BITS)
    assert found.further_tests == (mcnemar(BITS, BETTER_BITS, mid_p=True),)
    assert ends(found.first) == ends(clopper_pearson(BITS.sum(), 200))
    assert list(found.effects) == ["odds ratio of discordant pairs"]
    assert (found.n, found.verdict) == (200, "better")
    assert compare_paired(BETTER_BITS, BITS).verdict == "worse"


def test_same_items_with_other_scores():
    found = compare_paired(SCORES, BETTER_SCORES)
    assert (found.difference.method, found.test.method) == (
        "BCa bootstrap",
        "sign-flip permutation",
    )
    assert [test.method for test in found.further_tests] == ["Wilcoxon"]
    assert list(found.effects) == ["Cohen's dz", "Cliff's delta"]
    assert found.verdict == "better"
    assert compare_paired(SCORES[:10], BETTER_SCORES[:10]).difference.method == "t"


def test_losses_are_better_when_lower():
    criteria = Criteria(measure=LOSS)
    found = compare_paired(NATS, NATS * 0.9, TOKENS, criteria=criteria)
    assert found.first.estimate == pytest.approx(NATS.sum() / TOKENS.sum())
    assert found.difference.estimate == pytest.approx(-0.1 * NATS.sum() / TOKENS.sum())
    assert (found.verdict, found.effects) == ("better", {})
    other_tokens = compare_paired(NATS, NATS, TOKENS, TOKENS * 2, criteria=criteria)
    assert other_tokens.difference.estimate == pytest.approx(-0.5 * NATS.sum() / TOKENS.sum())


def test_clusters_are_the_units():
    found = compare_paired(SCORES, BETTER_SCORES, clusters=CLUSTERS)
    assert found.test.method == "cluster permutation"
    assert list(found.effects) == ["design effect"]
    assert "40 clusters" in found.why
    shares = compare_paired(BITS, BETTER_BITS, clusters=CLUSTERS)
    assert ends(shares.first) == ends(korn_graubard(BITS, CLUSTERS))
    assert compare_paired(BITS, BETTER_BITS, clusters=np.arange(200)) == compare_paired(
        BITS, BETTER_BITS
    )


def test_repeated_items_do_not_add_certainty():
    few = compare_paired(SCORES[:30], BETTER_SCORES[:30])
    clusters = np.repeat(np.arange(30), 20)
    many = compare_paired(
        np.repeat(SCORES[:30], 20), np.repeat(BETTER_SCORES[:30], 20), clusters=clusters
    )
    assert ends(many.difference) == pytest.approx(ends(few.difference), abs=1e-9)
    assert many.test.p_value == few.test.p_value


def test_other_items_with_scores_of_0_and_1():
    found = compare_unpaired(BITS, BETTER_BITS[:150])
    assert ends(found.difference) == ends(newcombe_unpaired(BITS, BETTER_BITS[:150]))
    assert (found.n, found.test.method, list(found.effects)) == (350, "Fisher exact", ["Cohen's h"])


def test_other_items_with_other_scores():
    found = compare_unpaired(SCORES, BETTER_SCORES[:150])
    expected = welch_interval(SCORES, BETTER_SCORES[:150], bounds=(0, 1))
    assert ends(found.difference) == ends(expected)
    assert found.test.method == "Welch t"
    assert [test.method for test in found.further_tests] == ["Mann-Whitney"]
    assert list(found.effects) == ["Hedges' g", "Cliff's delta"]


def test_other_items_with_losses():
    found = compare_unpaired(NATS, NATS * 0.9, TOKENS, TOKENS, criteria=Criteria(measure=LOSS))
    assert found.difference.estimate == pytest.approx(-0.1 * NATS.sum() / TOKENS.sum())
    assert found.verdict == "better"
    with pytest.raises(DataError, match="sizes of both"):
        compare_unpaired(NATS, NATS, TOKENS)


def test_margin_tells_equal_evaluations_from_unclear_ones():
    narrow = compare_paired(SCORES, SCORES + 0.01 * BITS, criteria=Criteria(margin=0.02))
    assert narrow.verdict == "same"
    assert "too small to matter" in narrow.reason
    unclear = compare_paired(BITS, BITS[::-1], criteria=Criteria(margin=0.02))
    assert unclear.verdict == "cannot tell"
    assert compare_paired(BITS, BITS).verdict == "cannot tell"
    assert compare_paired(BITS, BITS, criteria=Criteria(margin=0.05)).verdict == "same"


def seeds(mean: float, spread: float, number: int) -> np.ndarray:
    random = np.random.default_rng(7)
    chances = mean + spread * np.linspace(-1, 1, number)
    return (random.random((number, 100)) < chances[:, None]).astype(float)


def test_seeds_must_agree_for_a_verdict():
    clear = compare_seeds(seeds(0.3, 0.01, 3), seeds(0.8, 0.01, 3))
    assert clear.verdict == "better"
    noisy = compare_seeds(seeds(0.4, 0.2, 3), seeds(0.7, 0.2, 3))
    assert noisy.by_seeds is not None
    assert noisy.by_seeds.low < 0 < noisy.by_seeds.high
    assert noisy.verdict == "cannot tell"
    assert len(clear.effects) == 2
    with pytest.raises(DataError, match="needed are two or more"):
        compare_seeds(seeds(0.3, 0, 1), seeds(0.3, 0, 3))
    with pytest.raises(DataError, match="the same items"):
        compare_seeds(np.zeros((2, 3)), np.zeros((2, 4)))


def test_correction_can_change_a_verdict():
    weak = compare_paired([0] * 7 + [1] * 20, [1] * 7 + [1] * 20)
    assert (weak.test.p_value, weak.verdict) == (0.015625, "better")
    others = [compare_paired(BITS, BITS[::-1])] * 5
    corrected = with_correction([weak, *others], "bonferroni")
    assert corrected[0].p_corrected == pytest.approx(6 * 0.015625)
    assert corrected[0].verdict == "cannot tell"
    assert with_correction([weak, *others], "none")[0] == weak


def test_three_evaluations_of_the_same_items():
    shares = compare_many_paired({"a": BITS, "b": BETTER_BITS, "c": BITS})
    assert shares.test.method == "Cochran's Q"
    assert list(shares.pairs) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert shares.pairs["a", "b"].verdict == "better"
    assert shares.pairs["a", "b"].p_corrected == 3 * shares.pairs["a", "b"].test.p_value
    scores = compare_many_paired({"a": SCORES, "b": BETTER_SCORES, "c": SCORES})
    assert scores.test.method == "Friedman"


def test_three_evaluations_of_other_items():
    equal = compare_many_unpaired({"a": SCORES, "b": BETTER_SCORES, "c": SCORES[:50]})
    assert (equal.test.method, equal.correction) == ("ANOVA", "Tukey")
    assert [test.method for test in equal.further_tests] == ["Kruskal-Wallis"]
    assert list(equal.effects) == ["eta squared", "epsilon squared"]
    unequal = compare_many_unpaired({"a": SCORES, "b": SCORES / 10, "c": SCORES[:50]})
    assert (unequal.test.method, unequal.correction) == ("Welch's ANOVA", "Games-Howell")
    assert unequal.pairs["a", "b"].verdict == "worse"
    assert unequal.pairs["a", "b"].test.method == "Games-Howell"
    with pytest.raises(DataError, match="three or more"):
        compare_many_unpaired({"a": SCORES, "b": SCORES})


@pytest.mark.parametrize(
    ("constant", "others"),
    [
        (np.zeros(60), (SCORES / 2 + 0.5, SCORES)),
        (np.ones(60), (SCORES / 2, SCORES / 4)),
        (np.zeros(60), (np.ones(60), np.full(60, 0.5))),
    ],
)
def test_constant_scores_are_compared_by_ranks(constant, others):
    found = compare_many_unpaired({"a": constant, "b": others[0], "c": others[1]})
    assert found.test.method == "Kruskal-Wallis"
    assert found.test.p_value < 1e-6
    assert found.further_tests == ()
    assert "equal" in found.why


def test_scores_that_are_all_equal_do_not_differ():
    found = compare_many_unpaired(dict.fromkeys("abc", np.ones(9)))
    assert (found.test.method, found.test.p_value) == ("ANOVA", 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("compare", [compare_paired, compare_unpaired])
@pytest.mark.parametrize("measure", [Measure(), LOSS, Measure((0, 1))])
@pytest.mark.parametrize(
    "first, second",
    [
        ([1], [0]),
        ([0.5], [0.25]),
        ([0, 0], [0, 0]),
        ([0.5, 0.5], [0.5, 0.5]),
        ([1, 0], [0, 1]),
        ([0.5] * 30, [0.5] * 30),
        ([0.5] * 30, [1.0] * 30),
    ],
)
def test_odd_data_gets_an_answer_without_nan(compare, measure, first, second):
    found = compare(first, second, criteria=Criteria(measure=measure, margin=0.1))
    numbers = [found.test.p_value, found.difference.estimate, found.first.low, found.second.high]
    assert not any(math.isnan(number) for number in numbers)
    assert 0 < found.test.p_value <= 1
    assert found.reason
    if len(first) <= 2:
        assert found.verdict == "cannot tell"
    for found_interval in (found.first, found.second):
        assert measure.bounds[0] <= found_interval.low or not found_interval.known
    for effect in found.effects.values():
        assert not math.isnan(effect.estimate + effect.low)


@pytest.mark.parametrize("compare", [compare_paired, compare_unpaired])
@pytest.mark.parametrize("scores", [[], [math.nan], [0.5, math.inf], [1.5]])
def test_missing_and_invalid_scores_are_errors(compare, scores):
    with pytest.raises(DataError):
        compare(scores, scores)


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
@settings(max_examples=15, deadline=None)
def test_comparison_is_antisymmetric(seed, n):
    first, second = np.random.default_rng(seed).integers(4, size=(2, n)) / 3
    found, swapped = compare_paired(first, second), compare_paired(second, first)
    assert swapped.difference.estimate == pytest.approx(-found.difference.estimate)
    assert swapped.test.p_value == pytest.approx(found.test.p_value, abs=0.02)
    assert found.difference.low - 1e-9 <= found.difference.estimate
    assert -1 <= found.difference.low <= found.difference.high <= 1


@pytest.mark.parametrize("options", [{"alpha": 0}, {"alpha": 0.5}, {"margin": 0}, {"margin": -1}])
def test_criteria_must_make_sense(options):
    with pytest.raises(ConfigError):
        replace(Criteria(), **options)


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_constant_evaluation_is_compared_by_ranks(constant):
    scores = {"a": [constant] * 200, "b": BITS, "c": BETTER_BITS}
    found = compare_many_unpaired(scores)
    assert (found.test.method, found.further_tests) == ("Kruskal-Wallis", ())
    assert found.test.p_value < 0.001
    assert found.pairs["a", "b"].verdict in ("better", "worse")
    assert "analysis of variance is not defined" in found.why
    assert compare_many_unpaired(dict.fromkeys("abc", BITS * 0)).test.p_value == 1


@pytest.mark.parametrize("first, second", [([0.3] * 20, [0.6] * 20), ([0.9] * 3, [0.1] * 30)])
def test_unequal_constants_are_compared_by_ranks(first, second):
    found = compare_unpaired(first, second)
    assert (found.test, found.further_tests) == (mann_whitney(first, second), ())
    assert found.verdict == ("better" if second > first else "worse")
    assert "no variance" in found.why


def test_pairs_of_unequal_constants_agree_with_the_overall_test():
    scores = {"a": [0.3] * 20, "b": [0.6] * 20, "c": [0.6] * 20}
    found = compare_many_unpaired(scores)
    assert found.test.p_value < 1e-6
    verdicts = [pair.verdict for pair in found.pairs.values()]
    assert verdicts == ["better", "better", "cannot tell"]
    assert {pair.test.method for pair in found.pairs.values()} == {"Dunn, Holm"}


@pytest.mark.parametrize("spread, method", [(1, "Tukey"), (9, "Games-Howell")])
def test_reason_of_a_test_names_the_test_of_all_pairs(spread, method):
    noise = np.random.default_rng(3).normal(0, 1, (3, 50))
    noise[2] *= spread
    scores = dict(zip("abc", noise, strict=True))
    found = compare_many_unpaired(scores, criteria=Criteria(measure=Measure()))
    for pair in found.pairs.values():
        assert pair.test.method == method
        assert f"the {method} test of all pairs" in pair.why


def test_reason_says_that_its_p_value_is_corrected():
    found = compare_paired(BITS, BETTER_BITS)
    assert found.reason.startswith("p < 1e-10, and" if found.test.p_value < 1e-10 else "p = ")
    corrected = with_correction([found, found, found], "bonferroni")[0]
    assert corrected.reason.startswith("Corrected p ")


def test_equal_seeds_have_no_interval_of_their_mean():
    wrong = np.zeros((3, 200))
    seeds = RANDOM.integers(2, size=(3, 200)).astype(float)
    found = compare_seeds(wrong, seeds)
    assert found.first.format() == "0.000 [no interval]"
    assert found.second.known
