"""Comparisons of runs in words: a sentence with the verdict of each, and its details."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kitchen.statistics.comparison import Comparison
from kitchen.statistics.intervals import Interval
from kitchen.statistics.report import ComparedPair, ComparisonReport, OverallTest
from kitchen.statistics.samples import SHARE
from kitchen.statistics.significance import SignificanceResult, format_p
from kitchen.types import Metrics, Table
from stages.compare.comparing import FOR_ALL_PAIRS, VERSUS

Rows = Iterator[tuple[str, str]]


def verdict_table(report: ComparisonReport) -> Table:
    """Return a table with one sentence for each comparison."""
    rows = [(pair.set, pair.measure, verdict_sentence(pair)) for pair in report.pairs]
    rows += [(each.set, each.measure, _overall_sentence(each, report)) for each in report.overall]
    rows += [("", "", note) for note in report.notes]
    return Table("Verdict", ("set", "measure", "verdict"), tuple(rows))


def verdict_sentence(pair: ComparedPair) -> str:
    """Return the verdict of a comparison in one sentence, such as `B is better than A: ...`."""
    found, first, second = pair.comparison, pair.first, pair.second
    if found is None:
        return f"{second} and {first} cannot be compared: {pair.problem}."
    digits = _digits(pair)
    means = f"{found.second.estimate:.{digits}f} against {found.first.estimate:.{digits}f}"
    if found.criteria.measure.lower_is_better:
        means += " (lower is better)"
    if found.verdict == "same" and found.equivalence is not None:
        margin, within = found.criteria.margin, found.equivalence
        return (
            f"{second} and {first} are the same within the margin of {margin:g}: {means}, a "
            f"difference of {within.format(digits, sign=True)} ({_percent(within.confidence)})."
        )
    numbers = f"{means}, a difference of {found.difference.format(digits, sign=True)}"
    if found.verdict == "cannot tell":
        return f"Cannot tell whether {second} is better or worse than {first}: {numbers}."
    return f"{second} is {found.verdict} than {first}: {numbers}."


def _overall_sentence(overall: OverallTest, report: ComparisonReport) -> str:
    names = ", ".join(overall.names)
    p_value = _p(overall.test)
    if overall.p_corrected != overall.test.p_value:
        p_value += f", corrected {format_p(overall.p_corrected)}"
    if overall.p_corrected <= report.alpha:
        return f"At least two of {names} differ: {p_value}."
    return f"Cannot tell whether any two of {names} differ: {p_value}."


def details_table(report: ComparisonReport) -> Table:
    """Return a table with everything that the verdicts rest on."""
    rows: list[tuple[str, str]] = []
    for pair in report.pairs:
        if pair.comparison is not None:
            rows.append(
                (f"{pair.set}, {pair.measure}", f"{pair.second} compared with {pair.first}")
            )
            lines = _details(pair, pair.comparison, report)
            rows += [(f"  {name}", text) for name, text in lines]
    for overall in report.overall:
        rows.append((f"{overall.set}, {overall.measure}", ", ".join(overall.names)))
        rows += [(f"  {name}", text) for name, text in _overall_details(overall, report)]
    title = f"Details, {_percent(1 - report.alpha)} intervals"
    return Table(title, ("quantity", "value"), tuple(rows))


def _details(pair: ComparedPair, found: Comparison, report: ComparisonReport) -> Rows:
    digits = _digits(pair)
    yield "items", _items(pair)
    yield pair.first, _mean(found.first, pair.first_seeds, digits)
    yield pair.second, _mean(found.second, pair.second_seeds, digits)
    yield "difference", f"{found.difference.format(digits, sign=True)} ({found.difference.method})"
    if found.equivalence is not None:
        level = _percent(found.equivalence.confidence)
        within = found.equivalence.format(digits, sign=True)
        yield "equivalence", f"{level} interval {within}, margin {found.criteria.margin:g}"
    if found.by_seeds is not None and found.by_seeds_test is not None:
        by_seeds = found.by_seeds.format(digits, sign=True)
        yield "by seeds alone", f"{by_seeds}, {_p(found.by_seeds_test)}"
    yield "test", _p(found.test)
    if correction := _correction(found, report):
        yield "corrected", f"{format_p(found.p_corrected)} ({correction})"
    yield "why this test", found.why
    for test in found.further_tests:
        yield "further test", _p(test)
    for name, effect in found.effects.items():
        name = name.replace("standard deviation", "SD").replace("the first", pair.first)
        name = name.replace("the second", pair.second)
        yield name, effect.format(2 if effect.estimate >= 0.1 else digits)
    for name, reason in found.undefined_effects.items():
        yield name, f"not defined: {reason}"
    yield "detectable", _detectable(found, uncorrected=bool(correction))
    yield "reason", found.reason
    if pair.note:
        yield "note", pair.note


def _correction(found: Comparison, report: ComparisonReport) -> str:
    """Return how a p-value is corrected for the other comparisons; empty if it is not."""
    shown = [pair for pair in report.pairs if pair.comparison is not None]
    tests = [pair.comparison.test for pair in report.pairs if pair.comparison is not None]
    if report.correction == "none":
        return ""
    if found.test.method in FOR_ALL_PAIRS:
        measures = len({(pair.set, pair.measure) for pair in shown})
        times = f", times {measures} measures" if measures > 1 else ""
        return f"{found.test.method} for all pairs{times}"
    together = [test for test in tests if test.method not in FOR_ALL_PAIRS]
    return f"{report.correction}, {len(together)} comparisons" if len(together) > 1 else ""


def _items(pair: ComparedPair) -> str:
    """Return how many items were compared, and how many were not and why."""
    items = pair.items
    parts = [f"n = {items.first}" + ("" if items.paired else f" and {items.second}")]
    counts = {
        f"only in {pair.first}": items.only_first,
        f"only in {pair.second}": items.only_second,
        f"failed in {pair.first}": items.failed_first,
        f"failed in {pair.second}": items.failed_second,
        f"without this measure in {pair.first}": items.unscored_first,
        f"without this measure in {pair.second}": items.unscored_second,
    }
    parts += [f"{number} {text}" for text, number in counts.items() if number]
    return ", ".join(parts)


def _mean(mean: Interval, seeds: Sequence[float], digits: int) -> str:
    text = mean.format(digits)
    if seeds:
        text += f", mean of {', '.join(f'{seed:.{digits}f}' for seed in seeds)}"
    return text


def _p(test: SignificanceResult) -> str:
    return f"{format_p(test.p_value)} ({test.method})"


def _detectable(found: Comparison, uncorrected: bool) -> str:
    """Return the smallest difference that such an evaluation shows with 80 % power."""
    if found.detectable is None:
        return "no difference at all with 80 % power: there are too few items, or no noise is known"
    caution = f" at alpha = {found.criteria.alpha:g} without correction" if uncorrected else ""
    return f"a difference of {found.detectable:.2g} or more, with 80 % power{caution}"


def _overall_details(overall: OverallTest, report: ComparisonReport) -> Rows:
    yield "test", _p(overall.test)
    if len(report.overall) > 1 and report.correction != "none":
        correction = f"{report.correction}, {len(report.overall)} tests of all runs"
        yield "corrected", f"{format_p(overall.p_corrected)} ({correction})"
    yield "why this test", overall.why
    for test in overall.further_tests:
        yield "further test", _p(test)
    for name, effect in overall.effects.items():
        yield name, effect.format()
    for name, reason in overall.undefined_effects.items():
        yield name, f"not defined: {reason}"


def _digits(pair: ComparedPair) -> int:
    """Return the decimal places of a measure: more for one that does not range from 0 to 1."""
    found = pair.comparison
    return 3 if found is None or found.criteria.measure.bounds == SHARE else 4


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def comparison_metrics(report: ComparisonReport) -> Metrics:
    """Return the difference and the p-value of each comparison as metrics.

    The last part of a name is the quantity, so that runs called `a` and `a_p` do not collide.
    """
    metrics = Metrics()
    for pair in report.pairs:
        found = pair.comparison
        if found is None:
            continue
        key = f"{pair.set}/{pair.measure}/{pair.second}{VERSUS}{pair.first}"
        metrics[f"{key}/difference"] = found.difference.estimate
        if math.isfinite(found.difference.low) and math.isfinite(found.difference.high):
            metrics[f"{key}/low"] = found.difference.low
            metrics[f"{key}/high"] = found.difference.high
        metrics[f"{key}/p"] = found.test.p_value
        metrics[f"{key}/p_corrected"] = found.p_corrected
    return metrics
