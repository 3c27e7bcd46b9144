"""Simulated type-I errors and coverages: python -m tests.support.simulations writes their table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import stats

from kitchen.statistics.groups import anova, cochran_q, fligner, friedman, kruskal, welch_anova
from kitchen.statistics.intervals import (
    Interval,
    clopper_pearson,
    korn_graubard,
    newcombe_paired,
    newcombe_unpaired,
    ratio_interval,
    welch_interval,
)
from kitchen.statistics.samples import SHARE, UNBOUNDED, Bounds, Ratio
from kitchen.statistics.seeds import compare_seed_groups
from kitchen.statistics.significance import (
    SignificanceResult,
    fisher_exact,
    mcnemar,
    sign_flip,
    welch,
)
from kitchen.types import Array

PAGE = Path(__file__).parents[2] / "docs/explanation/statistics.md"
START, END = "<!-- simulations: python -m tests.support.simulations -->", "<!-- end -->"
SIZES = (20, 40, 100)  # items, clusters, or items of each evaluation
RESAMPLES = 500
SHARES = np.concatenate([np.geomspace(1e-4, 0.02, 40), np.linspace(0.02, 0.5, 97)])


@dataclass(frozen=True)
class Row:
    """A method and a population, with a frequency for each n of SIZES."""

    method: str
    population: str
    values: tuple[float, ...]
    exempt: str = ""  # why the bounds do not hold


def frequency(hit: Callable[[np.random.Generator, int], bool], n: int, runs: int) -> float:
    random = np.random.default_rng(n)
    return sum(hit(random, n) for _ in range(runs)) / runs


def row(
    method: str,
    population: str,
    hit: Callable[[np.random.Generator, int], bool],
    runs: int = 500,
    exempt: str = "",
) -> Row:
    values = tuple(frequency(hit, n, runs) for n in SIZES)
    return Row(method, population, values, exempt)


def bits(ones: int, n: int) -> Array:
    return (np.arange(n) < ones).astype(float)


# type-I error

CONSERVATIVE = "exact tests of few discrete outcomes reject less often"


def mcnemar_errors(mid_p: bool) -> tuple[float, ...]:
    """Return exact type-I errors, for answers of which half differ."""
    return tuple(_mcnemar_error(n, mid_p) for n in SIZES)


def _mcnemar_error(n: int, mid_p: bool) -> float:
    error = 0.0
    for m in range(n + 1):
        chances = stats.binom.pmf(np.arange(m + 1), m, 0.5) * stats.binom.pmf(m, n, 0.5)
        for right, chance in enumerate(chances):
            if chance > 1e-9:
                first = np.concatenate([np.zeros(right), np.ones(m - right), np.zeros(n - m)])
                second = bits(right, n)
                error += chance * (mcnemar(first, second, mid_p=mid_p).p_value <= 0.05)
    return float(error)


def fisher_errors(mid_p: bool) -> tuple[float, ...]:
    """Return exact type-I errors, for shares of 0.5."""
    return tuple(_fisher_error(n, mid_p) for n in SIZES)


def _fisher_error(n: int, mid_p: bool) -> float:
    chances = stats.binom.pmf(np.arange(n + 1), n, 0.5)
    error = 0.0
    for one in range(n + 1):
        for other in range(one, n + 1):
            chance = chances[one] * chances[other]
            if chance > 1e-9:
                found = fisher_exact(bits(one, n), bits(other, n), mid_p=mid_p).p_value <= 0.05
                error += chance * found * (1 if one == other else 2)
    return float(error)


def flips_normal(random: np.random.Generator, n: int) -> bool:
    return rejects(sign_flip(np.zeros(n), random.normal(size=n), resamples=RESAMPLES))


def flips_mostly_equal(random: np.random.Generator, n: int) -> bool:
    scores = random.random((2, n)) * (random.random(n) < 0.3)
    return rejects(sign_flip(*scores, resamples=RESAMPLES))


def flips_losses(random: np.random.Generator, n: int) -> bool:
    tokens = random.integers(5, 100, n)
    first, second = tokens * random.gamma(2, 1, (2, n))
    return rejects(sign_flip(first, second, tokens, resamples=RESAMPLES))


def flips_clusters(random: np.random.Generator, n: int) -> bool:
    clusters = np.repeat(np.arange(n), 4)
    scores = random.normal(size=(2, n)).repeat(4, axis=1) + random.normal(size=(2, 4 * n))
    return rejects(sign_flip(*scores, clusters=clusters, resamples=RESAMPLES))


def welch_unequal(random: np.random.Generator, n: int) -> bool:
    return rejects(welch(random.normal(0, 1, n), random.normal(0, 3, n // 2)))


def cochran(random: np.random.Generator, n: int) -> bool:
    return rejects(cochran_q(random.random((3, n)) < random.random(n)))


def friedman_skewed(random: np.random.Generator, n: int) -> bool:
    return rejects(friedman(random.exponential(size=(3, n))))


def analysis_of_variance(random: np.random.Generator, n: int) -> bool:
    return rejects(chosen_anova([random.normal(size=n) for _ in range(3)]))


def analysis_of_unequal_variances(random: np.random.Generator, n: int) -> bool:
    return rejects(chosen_anova([random.normal(0, sd, n) for sd in (1, 2, 4)]))


def chosen_anova(groups: list[Array]) -> SignificanceResult:
    """Return the analysis of variance that `compare_many_unpaired` chooses."""
    unequal = fligner(groups).p_value <= 0.05
    return welch_anova(groups) if unequal else anova(groups)


def kruskal_skewed(random: np.random.Generator, n: int) -> bool:
    return rejects(kruskal(list(random.exponential(size=(3, n)))))


def seeds_crossed(random: np.random.Generator, n: int) -> bool:
    return rejects(compare_seed_groups(*seed_scores(random, n)).crossed_test)


def seeds_both(random: np.random.Generator, n: int) -> bool:
    found = compare_seed_groups(*seed_scores(random, n))
    return rejects(found.crossed_test) and rejects(found.by_seeds_test)


def seed_scores(random: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return scores of 2 x 3 runs, with effects of seeds, and of items on each method."""
    groups = []
    for _ in range(2):
        seed, item = random.normal(0, 0.3, (3, 1)), random.normal(0, 0.5, n)
        groups.append(seed + item + random.normal(0, 1, (3, n)))
    return groups[0], groups[1]


def rejects(test: SignificanceResult) -> bool:
    return test.p_value <= 0.05


def type_i_errors() -> Iterator[Row]:
    yield Row("McNemar, exact", "half of the items differ", mcnemar_errors(False), CONSERVATIVE)
    yield Row("McNemar, mid-p", "half of the items differ", mcnemar_errors(True))
    yield row("sign-flip permutation", "normal", flips_normal, 1_000)
    yield row(
        "sign-flip permutation",
        "70 % of the items equal",
        flips_mostly_equal,
        1_000,
        CONSERVATIVE,
    )
    yield row("permutation of losses", "5 to 100 tokens", flips_losses, 1_000)
    yield row("cluster permutation", "clusters of 4", flips_clusters, 1_000)
    yield Row("Fisher, exact", "shares of 0.5", fisher_errors(False), CONSERVATIVE)
    yield Row("Fisher, mid-p", "shares of 0.5", fisher_errors(True))
    yield row("Welch t", "n and n / 2, three times the spread", welch_unequal, 2_000)
    yield row("Cochran's Q", "three evaluations", cochran, 4_000)
    yield row("Friedman", "three, exponential", friedman_skewed, 4_000)
    yield row("ANOVA or Welch's", "three, equal variances", analysis_of_variance, 1_000)
    yield row("ANOVA or Welch's", "three, spreads 1, 2, 4", analysis_of_unequal_variances, 1_000)
    yield row("Kruskal-Wallis", "three, exponential", kruskal_skewed, 4_000)
    both = "two tests have to agree"
    yield row("seeds, crossed with items", "3 seeds each", seeds_crossed, 2_000)
    yield row("seeds, crossed and alone", "3 seeds each", seeds_both, 2_000, both)


# coverage


def share_coverage() -> tuple[float, ...]:
    """Return the lowest exact coverage over shares from 0.0001 to 0.5; above, it is the same."""
    lowest = []
    for n in SIZES:
        found = [clopper_pearson(successes, n) for successes in range(n + 1)]
        low, high = np.array([(each.low, each.high) for each in found]).T
        chances = stats.binom.pmf(np.arange(n + 1), n, SHARES[:, None])
        covered = (low <= SHARES[:, None]) & (SHARES[:, None] <= high)
        lowest.append(float((chances * covered).sum(axis=1).min()))
    return tuple(lowest)


@cache
def newcombe_of_table(both: int, first: int, second: int, n: int) -> Interval:
    one = np.concatenate([np.ones(both + first), np.zeros(n - both - first)])
    other = np.concatenate([np.ones(both), np.zeros(first), np.ones(second)])
    return newcombe_paired(one, np.concatenate([other, np.zeros(n - len(other))]))


def paired_shares(both: float, first: float, second: float) -> Callable[..., bool]:
    chances = both, first, second, 1 - both - first - second

    def hit(random: np.random.Generator, n: int) -> bool:
        table = random.multinomial(n, chances)
        return contains(newcombe_of_table(*map(int, table[:3]), n), second - first)

    return hit


def unpaired_coverage(first: float, second: float) -> tuple[float, ...]:
    """Return exact coverages of the difference of two shares of n items each."""
    return tuple(_unpaired_coverage(first, second, n) for n in SIZES)


def _unpaired_coverage(first: float, second: float, n: int) -> float:
    numbers = np.arange(n + 1)
    of_first, of_second = stats.binom.pmf(numbers, n, first), stats.binom.pmf(numbers, n, second)
    covered = 0.0
    for one in range(n + 1):
        for other in range(n + 1):
            chance = of_first[one] * of_second[other]
            if chance > 1e-8:
                found = newcombe_unpaired(bits(one, n), bits(other, n))
                covered += chance * contains(found, second - first)
    return covered


def means(draw: Callable[..., Array], truth: float, bounds: Bounds) -> Callable[..., bool]:
    def hit(random: np.random.Generator, n: int) -> bool:
        ratio = Ratio.of(draw(random, n))
        return contains(ratio_interval(ratio, None, bounds, resamples=RESAMPLES), truth)

    return hit


def normal(random: np.random.Generator, n: int) -> Array:
    return random.normal(size=n)


def exponential(random: np.random.Generator, n: int) -> Array:
    return random.exponential(size=n)


def lognormal(random: np.random.Generator, n: int) -> Array:
    return random.lognormal(size=n)


def field_f1(random: np.random.Generator, n: int) -> Array:
    return random.beta(0.4, 0.4, n)


def mostly_1(share: float) -> Callable[..., Array]:
    def draw(random: np.random.Generator, n: int) -> Array:
        return np.where(random.random(n) < share, 1.0, random.random(n))

    return draw


def mostly_equal(share: float) -> Callable[..., Array]:
    """Return differences of which a share is 0, and the others have a mean of 0.1."""

    def draw(random: np.random.Generator, n: int) -> Array:
        return np.where(random.random(n) < share, 0.0, random.random(n) * 1.8 - 0.8)

    return draw


def losses(random: np.random.Generator, n: int) -> bool:
    tokens = random.integers(5, 100, n).astype(float)
    ratio = Ratio.of(tokens * random.gamma(2, 0.5, n), tokens)
    return contains(ratio_interval(ratio, resamples=RESAMPLES), 1.0)


def clustered_means(random: np.random.Generator, n: int) -> bool:
    scores = random.normal(size=n).repeat(4) + random.normal(size=4 * n)
    clusters = np.arange(n).repeat(4)
    return contains(ratio_interval(Ratio.of(scores), clusters, resamples=RESAMPLES), 0.0)


def clustered_shares(share: float) -> Callable[..., bool]:
    def hit(random: np.random.Generator, n: int) -> bool:
        chances = random.beta(2 * share, 2 * (1 - share), n).repeat(4)
        scores = (random.random(4 * n) < chances).astype(float)
        return contains(korn_graubard(scores, np.arange(n).repeat(4)), share)

    return hit


def welch_means(random: np.random.Generator, n: int) -> bool:
    return contains(welch_interval(random.normal(0, 1, n), random.normal(1, 3, n // 2)), 1.0)


def seeds_and_items(random: np.random.Generator, n: int) -> bool:
    return contains(compare_seed_groups(*seed_scores(random, n)).crossed, 0.0)


def contains(found: Interval, truth: float) -> bool:
    return found.low - 1e-12 <= truth <= found.high + 1e-12


def coverages() -> Iterator[Row]:
    yield Row("Clopper-Pearson", "lowest of all shares", share_coverage())
    for both, first, second in PAIRED:
        shares = f"shares {both + first:g} and {both + second:g}"
        yield row("Newcombe, paired", shares, paired_shares(both, first, second), 2_000)
    for one, other in ((0.5, 0.6), (0.01, 0.02), (0.95, 0.99)):
        yield Row("Newcombe", f"shares {one:g} and {other:g}", unpaired_coverage(one, other))
    yield row("BCa bootstrap", "normal", means(normal, 0, UNBOUNDED), 1_000)
    yield row("BCa bootstrap", "exponential", means(exponential, 1, UNBOUNDED), 1_000)
    yield row("BCa bootstrap", "lognormal", means(lognormal, np.exp(0.5), UNBOUNDED), 1_000, SKEWED)
    yield row("BCa bootstrap", "beta(0.4, 0.4), 0 to 1", means(field_f1, 0.5, SHARE))
    for share in (0.9, 0.99):
        draw, mean = mostly_1(share), share + (1 - share) / 2
        yield row("BCa bootstrap", f"{share:.0%} are 1", means(draw, mean, SHARE))
    for share in (0.8, 0.95, 0.99):
        draw, mean = mostly_equal(share), (1 - share) * 0.1
        yield row("BCa bootstrap", f"differences, {share:.0%} are 0", means(draw, mean, (-1, 1)))
    yield row("BCa bootstrap of losses", "5 to 100 tokens", losses)
    yield row("BCa bootstrap of clusters", "n clusters of 4", clustered_means)
    for share in (0.02, 0.5, 0.98):
        yield row("Korn-Graubard", f"n clusters of 4, share {share:g}", clustered_shares(share))
    yield row("Welch t", "n and n / 2, three times the spread", welch_means, 2_000)
    yield row("seeds, crossed with items", "3 seeds each", seeds_and_items, 2_000)


# probabilities that both, only the first and only the second are right
PAIRED = (
    (0.4, 0.1, 0.2),
    (0.25, 0.25, 0.25),
    (0.0, 0.01, 0.01),
    (0.0, 0.0, 0.02),
    (0.97, 0.01, 0.02),
    (0.9, 0.0, 0.05),
)
SKEWED = "the skewness is 6"


@cache
def all_rows() -> Mapping[str, tuple[Row, ...]]:
    return {"type-I error": tuple(type_i_errors()), "coverage": tuple(coverages())}


def tables() -> str:
    lines = []
    for name, rows in all_rows().items():
        lines += [f"| {name} | data | " + " | ".join(f"n = {n}" for n in SIZES) + " |"]
        lines += ["| --- | --- |" + " --- |" * len(SIZES)]
        for each in rows:
            values = " | ".join(f"{value:.3f}" for value in each.values)
            note = f" ({each.exempt})" if each.exempt else ""
            lines.append(f"| {each.method} | {each.population}{note} | {values} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    text = PAGE.read_text()
    start, end = text.index(START) + len(START), text.index(END)
    PAGE.write_text(f"{text[:start]}\n\n{tables()}\n{text[end:]}")


if __name__ == "__main__":
    main()
