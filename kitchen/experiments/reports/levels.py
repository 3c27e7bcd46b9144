"""The comparison of an experiment's runs by the values of one axis, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from kitchen.config.yaml import yaml_value
from kitchen.errors import did_you_mean
from kitchen.experiments.ledger import Ledger, PointStatus, Sweep, sweep_names
from kitchen.ports import BlobStore
from kitchen.runs.reports.content import Block, DataTable, Paragraph
from kitchen.statistics.levels import LevelComparison, LevelPair, compare_levels
from kitchen.statistics.power import POWER
from kitchen.statistics.significance import format_p

_FEW = 4  # measures that have a sentence each


def level_blocks(blobs: BlobStore, names: Sequence[str]) -> tuple[Sequence[Block], Sequence[Block]]:
    """Return the verdicts of the experiments among these names, and the analyses behind them."""
    verdicts: list[Block] = []
    analyses: list[Block] = []
    for name in sorted(set(names) & set(sweep_names(blobs)), key=names.index):
        sweep = Ledger(blobs, name).sweep()
        if sweep.compare_by:
            statuses = Ledger(blobs, name).statuses()
            done = [status for status in statuses if status.state == "completed"]
            verdicts += _verdict(sweep, done)
            analyses += _analysis(sweep, done)
    return verdicts, analyses


def _verdict(sweep: Sweep, done: Sequence[PointStatus]) -> Iterator[Block]:
    by = sweep.compare_by
    compared = compare_points(sweep, done)
    if len(compared) > _FEW:
        differ = [each.measure for each in compared if each.differs]
        on = f": {', '.join(differ)}" if differ else ""
        yield Paragraph(
            f"The values of {by} differ on {len(differ)} of {len(compared)} measures{on}.",
            strong=True,
        )
    for comparison in compared:
        yield Paragraph(_sentence(by, comparison), strong=len(compared) <= _FEW)
    yield from _unmeasured(sweep, done)
    if compared:
        yield _means(by, compared)


def _analysis(sweep: Sweep, done: Sequence[PointStatus]) -> Iterator[Block]:
    compared = compare_points(sweep, done)
    if not compared:
        return
    by = sweep.compare_by
    yield Paragraph(
        f"Each run counts as one value of a measure. The {_test_name(compared)} test asks whether "
        f"any values of {by} differ, with Holm's correction for the measures. If they do, Dunn's "
        "test finds the pairs, with Holm's correction for the pairs of a measure. A positive "
        "difference or Cliff's delta says that the second value of a pair has the larger measure. "
        "Student's t interval of the mean of few runs may end outside the range of a share."
    )
    others = [axis for axis in sweep.axes if axis not in (by, "seed")]
    if others:
        yield Paragraph(
            f"Runs with the same {by} also differ in {' and '.join(others)}, which counts as noise."
        )
    yield _pairs(by, compared)


def compare_points(sweep: Sweep, statuses: Sequence[PointStatus]) -> Sequence[LevelComparison]:
    """Compare the completed points of an experiment by the values of its axis `compare_by`.

    Measures that fewer than two values of the axis have are left out.
    """
    done = [status for status in statuses if status.state == "completed"]
    measures: dict[str, Mapping[str, Sequence[float]]] = {}
    for measure in sweep.measures:
        levels: dict[str, list[float]] = {}
        for status in done:
            value = status.metrics.get(measure, math.nan)
            if math.isfinite(value):
                level = yaml_value(status.point.values[sweep.compare_by])
                levels.setdefault(level, []).append(value)
        if len(levels) > 1:
            measures[measure] = levels
    return compare_levels(measures)


def _unmeasured(sweep: Sweep, done: Sequence[PointStatus]) -> Iterator[Block]:
    """Yield a caution for each measure that some runs do not have."""
    known = set(chain.from_iterable(status.metrics for status in done))
    for measure in sweep.measures:
        having = [
            status.point.values[sweep.compare_by]
            for status in done
            if math.isfinite(status.metrics.get(measure, math.nan))
        ]
        if not having:
            yield Paragraph(f"No run has the metric {measure!r}; {did_you_mean(measure, known)}")
        elif len(set(map(yaml_value, having))) < 2:
            value = yaml_value(having[0])
            yield Paragraph(f"Only runs with {sweep.compare_by} {value} have {measure}.")
        elif len(having) < len(done):
            yield Paragraph(f"{len(having)} of {len(done)} runs have {measure}.")


def _sentence(by: str, found: LevelComparison) -> str:
    runs = sum(map(len, found.values.values()))
    test = f"{found.test.method}, corrected {format_p(found.p_corrected)}"
    if found.test.statistic is None:
        value = next(iter(found.means.values())).estimate
        return (
            f"Cannot tell whether {by} changes {found.measure}: it is {value:.4g} in all {runs} "
            "runs, which says nothing about the noise."
        )
    if not found.differs:
        return f"Cannot tell whether {by} changes {found.measure} ({test}).{_sensitivity(found)}"
    pairs = ", and ".join(_pair(by, pair) for pair in found.different_pairs)
    pairs = pairs or "no pair of values differs by itself"
    return f"{found.measure} differs between values of {by} ({test}): {pairs}."


def _sensitivity(found: LevelComparison) -> str:
    """Return the sentence on differences that the runs could have shown."""
    if found.smallest_p > found.alpha:
        return (
            f" With so few runs, no result is significant: the smallest corrected p-value is "
            f"{found.smallest_p:.2g}."
        )
    if found.detectable is None:
        return ""
    power = f"with a power of {100 * POWER:.0f} %"
    if math.isinf(found.detectable):
        return f" With so few runs, no difference, however large, would be shown {power}."
    between = " with the others halfway between," if len(found.means) > 2 else ""
    return (
        f" The smallest difference between the lowest and the highest mean,{between} that these "
        f"runs would show {power} is {found.detectable:.3g}."
    )


def _pair(by: str, pair: LevelPair) -> str:
    way = "higher" if pair.difference.estimate > 0 else "lower"
    p_value = format_p(pair.p_corrected)
    difference = pair.difference.format(3, sign=True)
    levels = f"with {by} {pair.second} than with {pair.first}"
    return f"it is {way} {levels}, {difference} (Dunn, corrected {p_value})"


def _means(by: str, compared: Sequence[LevelComparison]) -> DataTable:
    levels = list(dict.fromkeys(chain.from_iterable(each.means for each in compared)))
    columns = (
        "measure",
        *(f"{by} {level}" for level in levels),
        "p, corrected",
        "detectable difference",
    )
    rows: list[Sequence[str]] = []
    for each in compared:
        means = [each.means[level].format(3) if level in each.means else "" for level in levels]
        detectable = "" if each.detectable is None else f"{each.detectable:.3g}"
        detectable = detectable.replace("inf", "none")
        rows.append((each.measure, *means, f"{each.p_corrected:.2g}", detectable))
    return DataTable(f"Mean over the runs of each {by}, 95 % intervals", columns, rows)


def _pairs(by: str, compared: Sequence[LevelComparison]) -> DataTable:
    columns = ("measure", by, "difference", "Cliff's delta", "p", "p, corrected")
    rows: list[Sequence[str]] = []
    for each in compared:
        effect = "" if each.effect is None else each.effect.format(2)
        test = (f"{each.test.p_value:.2g}", f"{each.p_corrected:.2g}")
        rows.append((each.measure, "all", f"epsilon squared {effect}" * bool(effect), "", *test))
        for pair in each.pairs:
            names = f"{pair.first}, {pair.second}"
            difference, delta = pair.difference.format(3, sign=True), pair.effect.format(2)
            p_values = (f"{pair.test.p_value:.2g}", f"{pair.p_corrected:.2g}")
            rows.append((each.measure, names, difference, delta, *p_values))
    return DataTable(f"All values of {by}, and each pair, 95 % intervals", columns, rows)


def _test_name(compared: Sequence[LevelComparison]) -> str:
    methods = [each.test.method for each in compared if each.test.statistic is not None]
    return methods[0] if methods else "Kruskal-Wallis"
