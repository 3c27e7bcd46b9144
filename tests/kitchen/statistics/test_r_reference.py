"""Reference values of R 4.2.2: `reference.R` computed `values.json`, both in `r_reference/`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy.special import nctdtr, stdtrit

from kitchen.statistics.corrections import correct
from kitchen.statistics.effects import (
    cliffs_delta,
    cohens_d,
    cohens_dz,
    eta_squared,
    hedges_g,
)
from kitchen.statistics.groups import (
    anova,
    bartlett,
    dunn,
    fligner,
    friedman,
    kruskal,
    shapiro,
    tukey,
    welch_anova,
)
from kitchen.statistics.intervals import mean_interval, welch_interval
from kitchen.statistics.power import t_items_needed, t_power
from kitchen.statistics.significance import mann_whitney, mcnemar, paired_t, welch, wilcoxon

R = json.loads((Path(__file__).parent / "r_reference/values.json").read_text())
# the arrays of reference.R
A = [0.81, 0.62, 0.77, 0.90, 0.55, 0.68, 0.73, 0.84, 0.59, 0.66, 0.71, 0.79]
B = [0.85, 0.70, 0.75, 0.95, 0.63, 0.68, 0.80, 0.88, 0.60, 0.72, 0.78, 0.77]
C = [0.60, 0.58, 0.70, 0.71, 0.52, 0.61, 0.69, 0.75, 0.50, 0.57, 0.66, 0.68]
GROUPS = [A, B, C]
TIED = [[1, 2, 2, 3, 3, 3, 4, 5, 5, 6], [2, 3, 3, 4, 4, 5, 5, 6, 7, 7]]
P_VALUES = [0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216]


def discordant(only_first: int, only_second: int) -> tuple[list[int], list[int]]:
    return [1] * only_first + [0] * only_second, [0] * only_first + [1] * only_second


def differences() -> tuple[float, ...]:
    found = mean_interval([b - a for a, b in zip(A, B, strict=True)])
    return paired_t(A, B).p_value, found.low, found.high


def welch_values() -> tuple[float, ...]:
    test, found = welch(A, B), welch_interval(A, B)
    return test.p_value, found.low, found.high, *test.df


@pytest.mark.parametrize(
    "name, values",
    [
        ("paired_t_p_low_high", differences()),
        ("welch_p_low_high_df", welch_values()),
        ("wilcoxon_asym_nocorr_p", [wilcoxon(A, B).p_value]),
        (
            "wilcoxon_exact_p_no_ties_no_zero",
            [wilcoxon([0] * 8, [1.1, 2.3, 3.7, -0.4, 5.2, 0.6, 7.9, -1.5]).p_value],
        ),
        ("mannwhitney_tied_asym_nocorr_p", [mann_whitney(*TIED).p_value]),
        (
            "mannwhitney_exact_p",
            [mann_whitney([1.1, 2.2, 3.3, 4.4, 9.1], [2.5, 5.5, 6.6, 7.7, 8.8, 9.9]).p_value],
        ),
        ("mcnemar_exact_5_15", [mcnemar(*discordant(5, 15)).p_value]),
        ("mcnemar_exact_0_6", [mcnemar(*discordant(0, 6)).p_value]),
        ("mcnemar_exact_3_3", [mcnemar(*discordant(3, 3)).p_value]),
        ("kruskal_H_p", [kruskal(GROUPS).statistic, kruskal(GROUPS).p_value]),
        ("kruskal_tied_H_p", [kruskal(TIED).statistic, kruskal(TIED).p_value]),
        ("friedman_chi_p", [friedman(GROUPS).statistic, friedman(GROUPS).p_value]),
        ("anova_F_p", [anova(GROUPS).statistic, anova(GROUPS).p_value]),
        ("eta2", [eta_squared(GROUPS).estimate]),
        ("welch_anova_F_p", [welch_anova(GROUPS).statistic, welch_anova(GROUPS).p_value]),
        ("tukey_p_BA_CA_CB", [pair.p_value for pair in tukey(GROUPS).values()]),
        ("dunn_raw_AB_AC_BC", [pair.p_value for pair in dunn(GROUPS).values()]),
        ("dunn_holm", correct([pair.p_value for pair in dunn(GROUPS).values()], "holm")),
        ("dunn_bh", correct([pair.p_value for pair in dunn(GROUPS).values()], "bh")),
        ("holm", correct(P_VALUES, "holm")),
        ("bh", correct(P_VALUES, "bh")),
        ("bonferroni", correct(P_VALUES, "bonferroni")),
        ("shapiro_W_p", [shapiro(A + B + C).statistic, shapiro(A + B + C).p_value]),
        ("bartlett_p", [bartlett(GROUPS).p_value]),
        ("fligner_p", [fligner(GROUPS).p_value]),
        ("cliffs_delta_b_a", [cliffs_delta(A, B).estimate]),
        ("cohen_d_b_a", [cohens_d(A, B)]),
        ("cohen_dz", [cohens_dz(A, B).estimate]),
        ("hedges_g_exactJ", [hedges_g(A, B).estimate]),
        ("t_quantile_.975_df8", [float(stdtrit(8, 0.975))]),
    ],
)
def test_value_equals_that_of_r(name, values):
    assert list(values) == pytest.approx(R[name], rel=1e-9, abs=1e-12)


def wrong_tail(df: float, shift: float) -> float:
    """Return the probability to reject in the wrong direction, which R leaves out by default."""
    return float(nctdtr(df, shift, -stdtrit(df, 0.975)))


def test_power_equals_that_of_r():
    """`reference.R` calls power.t.test without strict=TRUE, which leaves out the wrong tail."""
    one_tail = t_power(64, 0.5, 1, paired=False) - wrong_tail(126, 0.5 * math.sqrt(32))
    assert one_tail == pytest.approx(R["power_t_n64_d.5"][0], abs=1e-9)
    one_tail = t_power(50, 0.3, 1) - wrong_tail(49, 0.3 * math.sqrt(50))
    assert one_tail == pytest.approx(R["power_paired_n50_d.3"][0], abs=1e-9)
    needed = R["n_for_80_d.5"][0]
    tail = wrong_tail(2 * (needed - 1), 0.5 * math.sqrt(needed / 2))
    assert t_power(needed, 0.5, 1, paired=False) - tail == pytest.approx(0.8, abs=1e-6)


def test_items_needed_invert_the_power():
    needed = t_items_needed(0.5, 1, paired=False)
    assert t_power(needed, 0.5, 1, paired=False) == pytest.approx(0.8, abs=1e-9)
    assert needed == pytest.approx(R["n_for_80_d.5"][0], abs=1e-3)
