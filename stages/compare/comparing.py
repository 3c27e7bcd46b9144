"""Comparison of recorded evaluations: which items are compared, and by which statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations

import numpy as np

from kitchen.errors import ConfigError, DataError, check_name, did_you_mean
from kitchen.statistics.comparison import (
    LOSS,
    RANKS_OF_PAIRS,
    SCORE,
    Comparison,
    Criteria,
    Measure,
    compare_many_paired,
    compare_many_unpaired,
    compare_paired,
    compare_seeds,
    compare_unpaired,
    decide,
    with_correction,
)
from kitchen.statistics.corrections import CORRECTIONS, Correction, correct
from kitchen.statistics.intervals import Interval
from kitchen.statistics.report import (
    ComparedItems,
    ComparedPair,
    ComparisonReport,
    OverallTest,
)
from kitchen.statistics.samples import UNBOUNDED, Ratio
from kitchen.types import Array
from stages.compare.recorded import RATIOS, RecordedEvaluation, Scored

Groups = Mapping[str, tuple[RecordedEvaluation, ...]]  # by name: a run, or runs with other seeds
# tests whose p-values are corrected for all pairs
FOR_ALL_PAIRS = ("Tukey", "Games-Howell", RANKS_OF_PAIRS)
VERSUS = " vs "  # between the names of two runs or groups in the name of a metric
MARGIN = "margin"  # of pairs and labelled answers; compared only if it is named
MARGIN_SCALE = (
    "The scale of margin depends on beta and on the loss, so that a larger margin is not always "
    "better; the accuracy does not depend on it."
)
OTHER_TOKENS = (
    "the two count different tokens for the same items, as with another tokenizer or chat "
    "template; compare bits_per_byte instead"
)


@dataclass(frozen=True)
class CompareOptions:
    """Options of a comparison of runs."""

    sets: tuple[str, ...] = ()  # held-out sets to compare; empty for all
    measures: tuple[str, ...] = ()  # measures to compare; empty for all
    margin: float | None = None
    cluster: str | None = None
    correct: Correction = "holm"
    alpha: float = 0.05
    unpaired: bool = False
    only_baseline: bool = False  # compare the first with each other, not all pairs

    def __post_init__(self) -> None:
        check_name("correct", self.correct, CORRECTIONS)
        Criteria(self.alpha, self.margin)

    def criteria(self, measure: str, scored: Sequence[Scored]) -> Criteria:
        """Return the criteria of a measure, with its range and direction."""
        return Criteria(self.alpha, self.margin, _measure(measure, scored))


def _measure(name: str, scored: Sequence[Scored]) -> Measure:
    if name in RATIOS:
        return LOSS
    values = chain.from_iterable(scores.values.values() for scores in scored)
    is_share = name != MARGIN and all(0 <= value <= 1 for value in values)
    return SCORE if is_share else Measure(UNBOUNDED)


def compare_evaluations(groups: Groups, options: CompareOptions) -> ComparisonReport:
    """Compare runs, or groups of runs, on each set and measure that all of them have.

    Raises ConfigError for unknown sets, measures and columns, and DataError if nothing can be
    compared.
    """
    runs = list(chain.from_iterable(groups.values()))
    check_design(groups, options)
    notes = [run.note for run in runs if run.note] + _seed_notes(groups)
    notes += _server_notes(runs)
    pairs: list[ComparedPair] = []
    overall: list[OverallTest] = []
    for name in _chosen_sets(runs, options, notes):
        if not options.unpaired:
            _check_same_data(name, runs)
        for measure in _chosen_measures(name, runs, options, notes):
            family = _Family(name, measure, groups, options)
            compared, test = family.compare()
            pairs += compared
            overall += [test] if test else []
    if all(pair.comparison is None for pair in pairs):
        problems = [f"{pair.set}, {pair.measure}: {pair.problem}" for pair in pairs]
        if not problems:
            of_margins = [note for note in notes if MARGIN_SCALE in note]
            problems = of_margins or ["the runs share no measure of a set", *map(_recorded, runs)]
        raise DataError("nothing can be compared: " + "; ".join(dict.fromkeys(problems)))
    return ComparisonReport(
        tuple(_corrected(pairs, options.correct)),
        tuple(_corrected_overall(overall, options.correct)),
        options.correct,
        options.alpha,
        tuple(notes),
    )


def _seed_notes(groups: Groups) -> list[str]:
    """Return a note for each two single runs whose settings differ in nothing but the seed."""
    notes = []
    single = [runs[0] for runs in groups.values() if len(runs) == 1]
    for first, second in combinations(single, 2):
        same = {**first.settings, "seed": None} == {**second.settings, "seed": None}
        if same and first.settings.get("seed") != second.settings.get("seed"):
            notes.append(
                f"{second.run} and {first.run} differ only in their seed: their difference is one "
                "between seeds, not between settings. To compare settings, give groups of seeds: "
                "NAME=RUN,RUN."
            )
    return notes


def _server_notes(runs: Sequence[RecordedEvaluation]) -> list[str]:
    """Return a note for each model that runs asked at different addresses."""
    asked: dict[str, dict[str, str]] = {}
    for run in runs:
        for model, address in _servers(run.facts):
            asked.setdefault(model, {})[run.run] = address
    notes = []
    for model, addresses in asked.items():
        if len(set(addresses.values())) > 1:
            at = "; ".join(f"{run} at {address}" for run, address in addresses.items())
            notes.append(f"the runs asked different servers for {model}: {at}")
    return notes


def _servers(facts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each model that a run asked on a server, and the server's address.

    Another run may have asked it in another role, such as that of a member of an ensemble.
    """
    for fact, address in facts.items():
        if fact.endswith(".server"):
            role = fact.removeprefix("machine.").removesuffix("server").removesuffix(".")
            yield facts.get(role or "model", fact), address


def _recorded(run: RecordedEvaluation) -> str:
    """Return the measures and sets of a run, such as `rl0 has reward of new_names`."""
    measures = dict.fromkeys(chain.from_iterable(run.sets.values()))
    return f"{run.run} has {', '.join(measures)} of {', '.join(run.sets)}"


def check_design(groups: Mapping[str, Sequence[object]], options: CompareOptions) -> None:
    """Raise ConfigError for groups of seeds beside single runs, or with options of single runs."""
    if all(len(runs) == 1 for runs in groups.values()):
        return
    single = [name for name, runs in groups.items() if len(runs) == 1]
    if single:
        raise ConfigError(
            f"{single[0]} is one run, and other groups have several: give each group two or more "
            "runs that differ in their seed, or compare single runs"
        )
    if options.unpaired:
        raise ConfigError("--unpaired: groups of seeds need the same items; leave it out")
    if options.cluster:
        raise ConfigError(
            "--cluster: groups of seeds are compared over items; leave it out, or compare two runs"
        )


def _chosen_sets(
    runs: Sequence[RecordedEvaluation], options: CompareOptions, notes: list[str]
) -> Sequence[str]:
    """Return the sets to compare, and note which ones only some runs have."""
    by_run = {run.run: run.sets for run in runs}
    return _shared_names("set", by_run, options.sets, notes)


def _chosen_measures(
    name: str, runs: Sequence[RecordedEvaluation], options: CompareOptions, notes: list[str]
) -> Sequence[str]:
    everywhere = {run.run: set(chain.from_iterable(run.sets.values())) for run in runs}
    for measure in options.measures:
        check_name("measure", measure, set(chain.from_iterable(everywhere.values())))
    by_run = {run.run: dict(run.sets[name]) for run in runs}
    if not options.measures:
        _leave_out_margin(by_run, notes)
    recorded = set(chain.from_iterable(by_run.values()))
    wanted = [measure for measure in options.measures if measure in recorded]
    if options.measures and not wanted:  # other sets have them
        return ()
    return _shared_names(f"measure of {name}", by_run, wanted, notes)


def _leave_out_margin(by_run: Mapping[str, dict[str, Scored]], notes: list[str]) -> None:
    """Remove the measure whose scale differs between runs, and note it once."""
    removed = [measures.pop(MARGIN, None) for measures in by_run.values()]
    note = f"measure margin is left out: {MARGIN_SCALE} --measure margin compares it"
    if any(removed) and note not in notes:
        notes.append(note)


def _shared_names(
    kind: str,
    by_run: Mapping[str, Mapping[str, object]],
    wanted: Sequence[str],
    notes: list[str],
) -> Sequence[str]:
    """Return the names that all runs have, those that are wanted if there are any.

    Raises ConfigError for one that no run has, DataError if a run lacks a wanted one.
    """
    every = list(dict.fromkeys(chain.from_iterable(by_run.values())))
    for name in wanted:
        check_name(kind, name, every)
    partial: dict[str, list[str]] = {}
    for name in wanted or every:
        without = [run for run, names in by_run.items() if name not in names]
        if without:
            partial[name] = without
    shared = [name for name in wanted or every if name not in partial]
    for name in wanted:
        if name in partial:
            run = partial[name][0]
            raise DataError(
                f"run {run!r} has no {kind} {name!r}, which another run has; it has: "
                f"{', '.join(by_run[run])}"
            )
    for name, without in partial.items():
        notes.append(f"{kind} {name} is left out: {' and '.join(without)} did not record it")
    return shared


def _check_same_data(name: str, runs: Sequence[RecordedEvaluation]) -> None:
    """Raise DataError if two runs were evaluated on data sets with different digests."""
    digests = {run.run: digest for run in runs if (digest := run.data_digest(name))}
    first = next(iter(digests), "")
    for run, digest in digests.items():
        if digest != digests[first]:
            raise DataError(
                f"set {name!r}: run {first!r} was evaluated on data with the SHA-256 "
                f"{digests[first][:12]}, and run {run!r} on data with {digest[:12]}: evaluate both "
                "on the same data, or compare them as different items with --unpaired"
            )


@dataclass(frozen=True)
class _Family:
    """All comparisons of one measure of one set."""

    set: str
    measure: str
    groups: Groups
    options: CompareOptions

    @cached_property
    def scored(self) -> Mapping[str, Sequence[Scored]]:
        """The scores of each run, by group."""
        scored: dict[str, Sequence[Scored]] = {}
        for name, runs in self.groups.items():
            scored[name] = [run.sets[self.set][self.measure] for run in runs]
        return scored

    @cached_property
    def criteria(self) -> Criteria:
        """The criteria of the measure."""
        every = list(chain.from_iterable(self.scored.values()))
        return self.options.criteria(self.measure, every)

    @cached_property
    def items(self) -> Mapping[str, Sequence[str]]:
        """The items of each group: those that all runs share, unless they are unpaired."""
        if self.options.unpaired:
            return {name: list(scored[0].values) for name, scored in self.scored.items()}
        first, *others = chain.from_iterable(self.scored.values())
        shared = [item for item in first.values if all(item in o.values for o in others)]
        return dict.fromkeys(self.scored, shared)

    @cached_property
    def names(self) -> Sequence[tuple[str, str]]:
        """The names of each pair of groups to compare."""
        pairs = list(combinations(self.scored, 2))
        return pairs[: len(self.scored) - 1] if self.options.only_baseline else pairs

    def compare(self) -> tuple[list[ComparedPair], OverallTest | None]:
        """Return the comparison of each pair, and for three or more runs that of all at once."""
        try:
            self._check_items()
            if self._is_plain_and_many():
                return self._compare_many()
            return list(map(self._compare_if_possible, self.names)), None
        except DataError as error:
            return [self._pair(pair, None, str(error)) for pair in self.names], None

    def _compare_if_possible(self, pair: tuple[str, str]) -> ComparedPair:
        if self._counts_other_tokens(*pair):
            return self._pair(pair, None, OTHER_TOKENS)
        return self._pair(pair, self._compare_pair(pair))

    def _check_items(self) -> None:
        """Raise DataError if there is nothing to compare."""
        for name, scored in self.scored.items():
            if not all(scores.values for scores in scored):
                raise DataError(f"no item of {name} has a score")
        if not all(self.items.values()):
            raise DataError(
                "no item is shared by all runs; compare them as different items with --unpaired, "
                "or evaluate them on the same rows"
            )

    def _is_plain_and_many(self) -> bool:
        """Return whether there is a test of all runs at once: not for ratios, clusters, seeds."""
        is_seeds = any(len(scored) > 1 for scored in self.scored.values())
        return (
            len(self.scored) > 2
            and not is_seeds
            and self.measure not in RATIOS
            and self.options.cluster is None
        )

    def _compare_many(self) -> tuple[list[ComparedPair], OverallTest]:
        arrays = {name: self._values(name) for name in self.scored}
        if self.options.unpaired:
            found = compare_many_unpaired(arrays, criteria=self.criteria)
        else:
            found = compare_many_paired(
                arrays, correction="none", criteria=self.criteria, pairs=self.names
            )
        pairs = [self._pair(pair, found.pairs[pair]) for pair in self.names]
        test, why, names = found.test, found.why, tuple(arrays)
        effects, undefined = found.effects, found.undefined_effects
        overall = OverallTest(
            self.set, self.measure, names, test, why, found.further_tests, effects, undefined
        )
        return pairs, overall

    def _compare_pair(self, pair: tuple[str, str]) -> Comparison:
        first, second = pair
        if len(self.scored[first]) > 1:
            return self._compare_seeds(first, second)
        arrays = self._values(first), self._values(second)
        sizes = self._sizes(first), self._sizes(second)
        clusters = self._clusters(first), self._clusters(second)
        if not self.options.unpaired:
            return compare_paired(*arrays, *sizes, clusters=clusters[0], criteria=self.criteria)
        return compare_unpaired(
            *arrays,
            *sizes,
            clusters=clusters[0],
            second_clusters=clusters[1],
            criteria=self.criteria,
        )

    def _compare_seeds(self, first: str, second: str) -> Comparison:
        criteria = self.criteria
        if self.measure in RATIOS:  # values whose mean is the ratio may be below 0
            criteria = replace(criteria, measure=replace(criteria.measure, bounds=UNBOUNDED))
        found = compare_seeds(*map(self._seed_values, (first, second)), criteria=criteria)
        if self.measure in RATIOS:
            found = replace(found, first=_not_negative(found.first))
            found = replace(found, second=_not_negative(found.second))
        return found

    def _seed_values(self, name: str) -> list[Array]:
        """Return the values of the items that all runs share, for each run of a group."""
        return [_linear(scores, self.items[name]) for scores in self.scored[name]]

    def _values(self, name: str) -> Array:
        return _values(self.scored[name][0], self.items[name])

    def _sizes(self, name: str) -> Array | None:
        return _sizes(self.scored[name][0], self.items[name])

    def _clusters(self, name: str) -> list[str] | None:
        """Return the cluster of each item; raises ConfigError for one without."""
        column = self.options.cluster
        if column is None:
            return None
        rows = [self.scored[name][0].rows[item] for item in self.items[name]]
        for row in rows:
            if row["columns"].get(column) is None:
                known = did_you_mean(column, row["columns"])
                raise ConfigError(
                    f"--cluster {column}: row {row.get('where') or row['item']} of set "
                    f"{self.set!r} has no value in a column of this name; {known}"
                )
        return [repr(row["columns"][column]) for row in rows]

    def _pair(
        self, pair: tuple[str, str], comparison: Comparison | None, problem: str = ""
    ) -> ComparedPair:
        seeds = [self._seed_means(name) for name in pair]
        note = MARGIN_SCALE if self.measure == MARGIN else ""
        counts = self._item_counts(*pair)
        return ComparedPair(
            self.set, self.measure, *pair, counts, comparison, problem, note, *seeds
        )

    def _item_counts(self, first: str, second: str) -> ComparedItems:
        recorded = [set(scores.rows) for scores in chain.from_iterable(self.scored.values())]
        everywhere = set.intersection(*recorded)
        only, failed, unscored = [], [], []
        for name in (first, second):
            own = set(chain.from_iterable(scores.rows for scores in self.scored[name]))
            only.append(0 if self.options.unpaired else len(own - everywhere))
            failed.append(sum(scores.failed for scores in self.scored[name]))
            unscored.append(sum(scores.unscored for scores in self.scored[name]))
        compared = [len(self.items[name]) for name in (first, second)]
        return ComparedItems(
            first=compared[0],
            second=compared[1],
            paired=not self.options.unpaired,
            only_first=only[0],
            only_second=only[1],
            failed_first=failed[0],
            failed_second=failed[1],
            unscored_first=unscored[0],
            unscored_second=unscored[1],
        )

    def _seed_means(self, name: str) -> tuple[float, ...]:
        if len(self.scored[name]) == 1 or not self.items[name]:
            return ()
        return tuple(float(values.mean()) for values in self._seed_values(name))

    def _counts_other_tokens(self, first: str, second: str) -> bool:
        """Return whether two runs have different numbers of tokens for an item that they share."""
        if self.options.unpaired or self.measure != "loss":
            return False
        runs, items = chain(self.scored[first], self.scored[second]), self.items[first]
        tokens = [sizes for scores in runs if (sizes := _sizes(scores, items)) is not None]
        return bool(np.ptp(np.stack(tokens), axis=0).any())


def _corrected(pairs: Sequence[ComparedPair], method: Correction) -> Iterator[ComparedPair]:
    """Yield pairs with p-values corrected for all that are shown.

    Tukey's and Games and Howell's tests are corrected for the pairs of a measure already, and only
    multiplied by the number of measures (Bonferroni).
    """
    comparisons = [pair.comparison for pair in pairs if pair.comparison]
    others = [each for each in comparisons if each.test.method not in FOR_ALL_PAIRS]
    decided = iter(with_correction(others, method))
    shown = [pair for pair in pairs if pair.comparison]
    families = 1 if method == "none" else len({(pair.set, pair.measure) for pair in shown})
    for pair in pairs:
        found = pair.comparison
        if found and found.test.method in FOR_ALL_PAIRS:
            found = decide(found, min(found.test.p_value * families, 1.0))
        elif found:
            found = next(decided)
        yield replace(pair, comparison=found)


def _corrected_overall(tests: Sequence[OverallTest], method: Correction) -> Iterator[OverallTest]:
    """Yield tests of all runs with p-values corrected for the number of sets and measures."""
    corrected = correct([each.test.p_value for each in tests], method) if tests else ()
    for each, p_value in zip(tests, corrected, strict=True):
        yield replace(each, p_corrected=float(p_value))


def _values(scores: Scored, items: Sequence[str]) -> Array:
    return np.array([scores.values[item] for item in items], np.float64)


def _sizes(scores: Scored, items: Sequence[str]) -> Array | None:
    if scores.sizes is None:
        return None
    return np.array([scores.sizes[item] for item in items], np.float64)


def _not_negative(found: Interval) -> Interval:
    return replace(found, low=max(found.low, 0.0)) if found.known else found


def _linear(scores: Scored, items: Sequence[str]) -> Array:
    """Return values of items whose mean is the measure, also where that is a ratio."""
    values, sizes = _values(scores, items), _sizes(scores, items)
    return values if sizes is None else Ratio.of(values, sizes).pseudo_values()
