"""Building a report from the records of runs: verdict, curves, evaluation, answers, provenance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from kitchen.config.adapters import Kitchen
from kitchen.config.discovery import find_recipe
from kitchen.config.order import nested_value
from kitchen.config.yaml import yaml_value
from kitchen.engine.observers import Observer, StageDone
from kitchen.errors import ConfigError, KitchenError
from kitchen.experiments.reports.levels import level_blocks
from kitchen.experiments.reports.runs import ReportedGroup, groups_of
from kitchen.experiments.reports.searches import search_blocks
from kitchen.ports import BlobStore
from kitchen.runs.comparison import RECIPE
from kitchen.runs.reports.content import (
    Answer,
    Answers,
    Block,
    DataTable,
    Paragraph,
    Report,
    Section,
    with_texts,
)
from kitchen.runs.reports.records import RunRecord, read_run_record
from kitchen.runs.reports.sections import (
    curves,
    facts,
    is_evaluation,
    is_target,
    is_verdict,
    last_tables,
    rows_of,
    sections,
    speed,
)
from kitchen.runs.wording import clock
from kitchen.secrets import printable
from kitchen.statistics.comparison import Comparison, Verdict
from kitchen.statistics.report import ComparedPair, ComparisonReport
from kitchen.statistics.significance import format_p
from kitchen.types import Table

BEFORE = "@before"  # the weights that a run started from, in recipes.compare
_SIDE_BY_SIDE = ("before and after", "side by side")  # tables that the answers replace
_INITIAL, _TRAINED = "the initial model", "the trained model"  # of a single run
_FEW = 3  # groups that are compared in sentences
_MOST_ANSWERS = 8
_MOST_SIDES = 4  # runs whose answers are shown side by side
_ANSWER_LENGTH = 1500  # characters


def build_report(blobs: BlobStore, names: Sequence[str]) -> Report:
    """Return the report of runs and sweeps, the baseline first; raises ConfigError."""
    if not names:
        raise ConfigError("name a run or a sweep; `kitchen runs` lists the runs")
    groups, left_out = groups_of(blobs, names)
    all_runs = chain.from_iterable(group.runs for group in groups)
    runs = [read_run_record(blobs, run) for run in all_runs]
    if not runs:
        raise ConfigError(
            f"no point of {' or '.join(names)} has completed: {', '.join(left_out)}; see "
            f"`kitchen sweep show {names[0]}`"
        )
    verdict, scores, analysis = _comparison(blobs, groups, runs)
    by_level, level_analysis = level_blocks(blobs, names)
    by_run = _groups_by_run(groups)
    parts = [
        Section(
            "Verdict", [*search_blocks(blobs, names), *by_level, *verdict, *_left_out(left_out)]
        ),
        *sections("Curves", [*curves(runs, by_run), *speed(runs, by_run)]),
        *sections("Evaluation", [*scores, *_recorded_tables(runs, is_evaluation)]),
        *sections("Statistical analysis", [*level_analysis, *analysis]),
        *sections("Quality targets", _recorded_tables(runs, is_target)),
        *sections("Answers side by side", _answers(runs, groups)),
        *sections("Settings", _settings(runs)),
        *sections("Provenance", _provenance(runs)),
    ]
    recipes = ", ".join(dict.fromkeys(str(run.record["recipe"]) for run in runs))
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    subtitle = f"{count} of {recipes}; written {written} by crucible-kitchen."
    report: Report = with_texts(Report(" and ".join(names), subtitle, parts), printable)
    return report


@dataclass
class _Collector(Observer):
    """Keeps the report and the tables of a comparison."""

    report: ComparisonReport | None = None
    tables: tuple[Table, ...] = ()

    def stage_done(self, event: StageDone) -> None:
        for value in event.published:
            if isinstance(value, ComparisonReport):
                self.report = value
            elif isinstance(value, Table):
                self.tables = (*self.tables, value)


def _comparison(
    blobs: BlobStore, groups: Sequence[ReportedGroup], runs: Sequence[RunRecord]
) -> tuple[Sequence[Block], Sequence[Block], Sequence[Block]]:
    """Return the verdict, scores and analysis: between groups, or of one before and after."""
    compared = [group.argument() for group in groups]
    if len(groups) == 1:
        before = ",".join(f"{run}{BEFORE}" for run in groups[0].runs)
        compared = [f"{_INITIAL}={before}", f"{_TRAINED}={','.join(groups[0].runs)}"]
    collector = _Collector()
    # the pairs of many groups are too many to read, and to compare within seconds
    settings = {"runs": compared, "only_baseline": len(groups) > _FEW}
    recipe = find_recipe(RECIPE).model_validate(settings)
    try:
        Kitchen(blobs=blobs).cook(recipe, collector)
    except KitchenError as error:
        verdicts = _recorded_tables(runs, is_verdict)
        reason = Paragraph(f"No verdict: {_why_not(error, runs)}.", strong=True)
        return [*(verdicts or [reason]), *_held_out_losses(runs), *_states(runs)], [], []
    assert collector.report is not None
    verdict, details = collector.tables
    summary = _summary(collector.report, groups)
    by_measure = DataTable(
        "By held-out set and measure", verdict.columns, verdict.rows, folded=len(groups) > _FEW
    )
    analysis = DataTable(details.title, details.columns, details.rows, folded=len(groups) > _FEW)
    scores = [] if len(groups) == 1 else [_scores(collector.report)]
    return [*summary, *_held_out_losses(runs), *_states(runs), by_measure], scores, [analysis]


def _summary(report: ComparisonReport, groups: Sequence[ReportedGroup]) -> Iterator[Block]:
    """Yield a sentence for each group compared with the first, or a table if there are many.

    Reports have no margin, so that no verdict is "same".
    """
    baseline = report.pairs[0].first
    pairs: dict[str, list[ComparedPair]] = {}
    for pair in report.pairs:
        if pair.first == baseline and pair.comparison is not None:
            pairs.setdefault(pair.second, []).append(pair)
    if report.overall:
        differ = sum(test.p_corrected <= report.alpha for test in report.overall)
        yield Paragraph(
            f"At least two of the {len(groups)} groups differ on {differ} of {len(report.overall)} "
            "measures.",
            strong=True,
        )
    if len(pairs) <= _FEW:
        for second, compared in pairs.items():
            sentence = _sentence(baseline, second, compared)
            if sentence.startswith("the "):
                sentence = f"T{sentence[1:]}"
            yield Paragraph(sentence, strong=True)
    else:
        yield Paragraph(_many(baseline, pairs), strong=True)
        yield _summary_table(baseline, pairs)


def _many(baseline: str, pairs: Mapping[str, Sequence[ComparedPair]]) -> str:
    """Return the sentence on many groups, each compared with the first."""
    better = sum(_has(compared, "better") for compared in pairs.values())
    worse = sum(_has(compared, "worse") for compared in pairs.values())
    if better or worse:
        return (
            f"Of {len(pairs)} groups, {_are(better)} better than {baseline} on at least one "
            f"measure, and {_are(worse)} worse."
        )
    return f"Cannot tell whether any of {len(pairs)} groups is better or worse than {baseline}."


def _are(count: int) -> str:
    return f"{count} is" if count == 1 else f"{count} are"


def _has(compared: Sequence[ComparedPair], verdict: Verdict) -> bool:
    """Return whether any comparison has this verdict."""
    return any(pair.comparison.verdict == verdict for pair in compared if pair.comparison)


def _scores(report: ComparisonReport) -> DataTable:
    """Return the scores of each group, on every measure of every set, with their intervals."""
    scores: dict[str, dict[str, str]] = {}
    for pair in report.pairs:
        if pair.comparison is not None:
            column = f"{pair.set}, {pair.measure}"
            for name, score in (
                (pair.first, pair.comparison.first),
                (pair.second, pair.comparison.second),
            ):
                scores.setdefault(name, {})[column] = score.format(3)
    columns = list(dict.fromkeys(chain.from_iterable(scores.values())))
    rows = rows_of(scores, columns)
    level = f"{100 * (1 - report.alpha):g} %"
    return DataTable(f"Scores, {level} intervals", ("group", *columns), rows)


def _sentence(first: str, second: str, compared: Sequence[ComparedPair]) -> str:
    found = [pair.comparison for pair in compared if pair.comparison is not None]
    if len(found) == 1:
        return _summary_of_one(compared[0], found[0])
    return _summary_of_several(first, second, found)


def _summary_table(baseline: str, pairs: Mapping[str, Sequence[ComparedPair]]) -> DataTable:
    """Return the number of measures on which each group is better or worse than the baseline."""
    verdicts: Sequence[Verdict] = ("better", "worse", "cannot tell")
    rows = []
    for name, compared in pairs.items():
        counts = Counter(pair.comparison.verdict for pair in compared if pair.comparison)
        rows.append((name, *(str(counts[verdict]) for verdict in verdicts)))
    return DataTable(
        f"Compared with {baseline}: the number of measures with each verdict",
        ("group", *verdicts),
        rows,
    )


def _summary_of_one(pair: ComparedPair, found: Comparison) -> str:
    first, second = pair.first, pair.second
    p_value = format_p(found.p_corrected)
    of = f"{pair.measure} of {pair.set}: {found.difference.format(3, sign=True)}, {p_value}"
    if found.verdict == "cannot tell":
        return f"Cannot tell whether {second} is better or worse than {first} on {of}."
    return f"{second} is {found.verdict} than {first} on {of}."


def _summary_of_several(first: str, second: str, found: Sequence[Comparison]) -> str:
    counts = Counter(each.verdict for each in found)
    [(verdict, count), *others] = counts.most_common()
    if others:
        parts = [f"{kind} on {counts[kind]}" for kind in ("better", "worse") if counts[kind]]
        unclear = counts["cannot tell"]
        more = f"; on {unclear} the data cannot tell" if unclear else ""
        return f"{second} against {first}, on {len(found)} measures: {', '.join(parts)}{more}."
    if verdict == "cannot tell":
        of = f"{second} is better or worse than {first}"
        return f"Cannot tell on any of {count} measures whether {of}."
    largest = format_p(max(each.p_corrected for each in found))
    measures = f"all {count} measures (corrected, the largest {largest})"
    return f"{second} is {verdict} than {first} on {measures}."


def _why_not(error: KitchenError, runs: Sequence[RunRecord]) -> str:
    """Return why there is no verdict; a single evaluation has nothing to be compared with."""
    if len(runs) == 1 and any(map(is_evaluation, runs[0].tables)):
        return (
            "there is nothing to compare the evaluation below with; name a baseline before it, "
            f"kitchen report BASELINE {runs[0].name}"
        )
    return str(error)


def _held_out_losses(runs: Sequence[RunRecord]) -> Iterator[Block]:
    """Yield a sentence on the held-out loss of each of a few runs during training."""
    for run in runs if len(runs) <= _FEW else ():
        points = run.series("held_out_loss")
        if len(points) > 1:
            (first, start), (last, end) = points[0], points[-1]
            step, lowest = min(points, key=lambda point: point[1])
            yield Paragraph(
                f"Held-out loss of {run.name} during training: {start:.4g} at step {first}, "
                f"{end:.4g} at step {last}, and lowest, {lowest:.4g}, at step {step}."
            )


def _states(runs: Sequence[RunRecord]) -> Iterator[Block]:
    """Yield a caution for runs that did not complete."""
    others = [f"{run.name} ({run.status})" for run in runs if run.status != "completed"]
    if others:
        yield Paragraph(f"Not completed: {', '.join(others)}.")


def _left_out(points: Sequence[str]) -> Iterator[Block]:
    """Yield a caution for points of sweeps of which the report shows nothing."""
    if points:
        yield Paragraph(f"Left out, because they have not completed: {', '.join(points)}.")


def _recorded_tables(runs: Sequence[RunRecord], wanted: Callable[[Table], bool]) -> Sequence[Block]:
    """Return the last table of each title of the runs; those of several runs name the run."""
    several, folded = len(runs) > 1, len(runs) > _MOST_SIDES
    blocks: list[Block] = []
    for run in runs:
        for block in last_tables(run, wanted):
            caption = f"{run.name}: {block.caption}" if several else block.caption
            blocks.append(replace(block, caption=caption, folded=folded))
    return blocks


def _groups_by_run(groups: Sequence[ReportedGroup]) -> Mapping[str, str]:
    """Return the name of each run's group, if there are several."""
    by_run: dict[str, str] = {}
    for group in groups if len(groups) > 1 else ():
        by_run |= dict.fromkeys(group.runs, group.name)
    return by_run


def _answers(runs: Sequence[RunRecord], groups: Sequence[ReportedGroup]) -> Sequence[Block]:
    """Return the answers to items that the first runs of the groups share, differing ones first."""
    first = {group.runs[0]: group.name for group in groups[:_MOST_SIDES]}
    shown = [run for run in runs if run.name in first]
    if len(groups) == 1:
        sides = {when: _by_item(runs[0], when) for when in ("before", "after")}
        sides = {f"{when} training": rows for when, rows in sides.items() if rows}
    else:
        sides = {first[run.name]: _by_item(run, "after") for run in shown}
    if not sides:
        return []
    shared = [
        item for item in next(iter(sides.values())) if all(item in rows for rows in sides.values())
    ]
    shared.sort(key=lambda item: not _differs([rows[item] for rows in sides.values()]))
    answers = [_answer(_of_item(sides, item)) for item in shared[:_MOST_ANSWERS]]
    if not answers:
        return []
    caption = (
        f"{len(answers)} of {len(shared):,} held-out items, those first on which the scores differ."
    )
    return [Answers(caption, answers)]


def _of_item(
    sides: Mapping[str, Mapping[str, Mapping[str, Any]]], item: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return the answers to one item by side."""
    return {name: rows[item] for name, rows in sides.items()}


def _by_item(run: RunRecord, when: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the first answer to each item of an evaluation, by item."""
    rows: dict[str, Mapping[str, Any]] = {}
    for row in run.samples:
        if isinstance(row.get("item"), str) and row.get("when", "after") == when and "text" in row:
            rows.setdefault(row["item"], row)
    return rows


def _differs(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get("scores") != rows[0].get("scores") for row in rows)


def _answer(rows: Mapping[str, Mapping[str, Any]]) -> Answer:
    one = next(iter(rows.values()))
    texts = {_side(name, row): _cut(str(row["text"])) for name, row in rows.items()}
    return Answer(_cut(_prompt(one.get("prompt"))), _cut(str(one.get("wanted") or "")), texts)


def _side(name: str, row: Mapping[str, Any]) -> str:
    scores = row.get("scores")
    items = scores.items() if isinstance(scores, Mapping) else ()
    numbers = [f"{key} {value:.3g}" for key, value in items if isinstance(value, int | float)]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _prompt(prompt: Any) -> str:
    if not isinstance(prompt, list):
        return str(prompt or "")
    turns = [turn for turn in prompt if isinstance(turn, Mapping)]
    return "\n".join(f"{turn.get('role')}: {turn.get('content')}" for turn in turns)


def _cut(text: str) -> str:
    shown = printable(text)  # before a cut through a secret
    return shown if len(shown) <= _ANSWER_LENGTH else f"{shown[:_ANSWER_LENGTH]}..."


def _settings(runs: Sequence[RunRecord]) -> Sequence[Block]:
    """Return the settings that differ between the runs, and all of those of the first."""
    values = {run.name: _flat_settings(run) for run in runs}
    keys = list(dict.fromkeys(chain.from_iterable(values.values())))
    differing = [key for key in keys if len({of.get(key) for of in values.values()}) > 1]
    blocks: list[Block] = []
    if differing:
        rows = rows_of(values, differing)
        blocks.append(DataTable("Settings that differ", ("run", *differing), rows))
    same = [(key, values[runs[0].name].get(key, "")) for key in keys if key not in differing]
    title = "All settings" if len(runs) == 1 else "Settings that are the same"
    return [*blocks, DataTable(title, ("setting", "value"), same, folded=True)]


def _flat_settings(run: RunRecord) -> Mapping[str, str]:
    order = run.record["order"]
    return {key: yaml_value(nested_value(order["settings"], key)) for key in order["sources"]}


def _provenance(runs: Sequence[RunRecord]) -> Sequence[Block]:
    columns = ("run", "status", "started, UTC", "took", "attempts", "weights, SHA-256")
    rows = [
        (
            run.name,
            run.status,
            _started(run),
            clock(run.seconds),
            str(len(run.record["attempts"])),
            _final_digest(run),
        )
        for run in runs
    ]
    return [DataTable("Runs", columns, rows), *facts(runs)]


def _started(run: RunRecord) -> str:
    attempts = run.record["attempts"]
    return str(attempts[0]["started"])[:16].replace("T", " ") if attempts else ""


def _final_digest(run: RunRecord) -> str:
    final = [row for row in run.checkpoints if row.get("final")]
    return str(final[-1]["sha256"])[:16] if final else ""
