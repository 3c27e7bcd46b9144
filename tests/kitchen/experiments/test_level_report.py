"""The comparison of an experiment's runs by the values of an axis, in its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from adapters.fake.blobs import FakeBlobs
from kitchen.config.order import Order, order_json
from kitchen.experiments.experiment import ExperimentOutcome
from kitchen.experiments.ledger import Ledger, Point, Sweep, configuration_digest
from kitchen.experiments.points import points_table
from kitchen.experiments.reports.build import build_report
from kitchen.runs.reports.content import DataTable, Paragraph, Report, Section
from kitchen.runs.store import read_run, write_run
from tests.support.evaluated_runs import scored_rows, write_evaluated_run

WEIGHTS, SEEDS = (2.0, 5.0, 7.0), (0, 1, 2)
SEPARATED = (0.90, 0.91, 0.93, 0.95, 0.96, 0.97, 0.980, 0.985, 0.99)
NOISE = (0.90, 0.95, 0.97, 0.91, 0.94, 0.99, 0.92, 0.93, 0.98)


def write_experiment(
    blobs: FakeBlobs,
    metrics: Mapping[str, Sequence[float]],
    measures: Sequence[str],
    weights: Sequence[float] = WEIGHTS,
) -> None:
    """Write the experiment e over weights and seeds, with these final metrics of its runs."""
    points = []
    for at, (weight, seed) in enumerate(product(weights, SEEDS)):
        values = {"weight": weight, "seed": seed}
        order = Order("recipes.evaluate:Evaluate", values, dict.fromkeys(values, "default"))
        points.append(Point(at + 1, configuration_digest(order), f"e-{at + 1}", values, order))
    digests = [point.digest for point in points]
    axes = {"weight": weights, "seed": SEEDS}
    plan = Sweep(
        "e",
        "recipes.evaluate",
        axes,
        digests,
        "local",
        1,
        1,
        "/",
        experiment="e:E",
        compare_by="weight",
        measures=measures,
    )
    Ledger(blobs, "e").create(plan, points)
    for at, point in enumerate(points):
        write_evaluated_run(blobs, point.run, scored_rows([0.0, 1.0] * 3))
        values = {name: of_runs[at] for name, of_runs in metrics.items()}
        record = {**read_run(blobs, point.run), "order": order_json(point.order)}
        write_run(blobs, point.run, {**record, "metrics": values})


def section(report: Report, title: str) -> Section:
    [found] = [section for section in report.sections if section.title == title]
    return found


def verdicts(report: Report) -> list[str]:
    blocks = section(report, "Verdict").blocks
    return [block.text for block in blocks if isinstance(block, Paragraph)]


def test_the_verdict_names_the_values_that_differ() -> None:
    blobs = FakeBlobs()
    write_experiment(blobs, {"valid": SEPARATED, "exact": NOISE}, ["valid", "exact"])
    report = build_report(blobs, ["e"])
    differ, unclear, *_ = verdicts(report)
    assert differ == (
        "valid differs between values of weight (exact Kruskal-Wallis, corrected p = 0.0071): it "
        "is higher with weight 7.0 than with 2.0, +0.072 [+0.038, +0.106] (Dunn, corrected p = "
        "0.022)."
    )
    assert unclear.startswith("Cannot tell whether weight changes exact (exact Kruskal-Wallis, ")
    assert "The smallest difference between the lowest and the highest mean, with the" in unclear
    [table] = [each for each in section(report, "Verdict").blocks if isinstance(each, DataTable)][
        :1
    ]
    assert table.columns[1:4] == ("weight 2.0", "weight 5.0", "weight 7.0")
    assert table.rows[0][1] == "0.913 [0.875, 0.951]"
    analysis = section(report, "Statistical analysis").blocks[1]
    assert isinstance(analysis, DataTable)
    assert [row[1] for row in analysis.rows][:4] == ["all", "2.0, 5.0", "2.0, 7.0", "5.0, 7.0"]


def test_runs_that_cannot_tell_are_reported_as_such() -> None:
    blobs = FakeBlobs()
    names = ["valid", "constant", "exct", "partly", "alone"]
    metrics = {
        "valid": SEPARATED[:6],
        "constant": [1.0] * 6,
        "exact": NOISE[:6],
        "partly": [0.5, 0.6, float("nan"), 0.5, 0.6, 0.7],
        "alone": [0.5, 0.6, 0.7] + [float("nan")] * 3,
    }
    write_experiment(blobs, metrics, names, weights=(2.0, 5.0))
    texts = verdicts(build_report(blobs, ["e"]))
    assert "With so few runs, no result is significant" in texts[0]
    assert "it is 1 in all 6 runs, which says nothing about the noise" in texts[1]
    assert "No run has the metric 'exct'; did you mean 'exact'?" in texts
    assert "5 of 6 runs have partly." in texts
    assert "Only runs with weight 2.0 have alone." in texts


def test_a_report_without_any_measure_says_so() -> None:
    blobs = FakeBlobs()
    write_experiment(blobs, {"exact": NOISE}, ["exct"])
    assert "No run has the metric 'exct'; did you mean 'exact'?" in verdicts(
        build_report(blobs, ["e"])
    )


def test_an_outcome_compares_its_points() -> None:
    blobs = FakeBlobs()
    write_experiment(blobs, {"valid": SEPARATED}, ["valid"])
    ledger = Ledger(blobs, "e")
    [found] = ExperimentOutcome("e", ledger.statuses(), blobs).compare()
    assert found.differs
    assert found.values["5.0"] == (0.95, 0.96, 0.97)


def test_many_measures_are_summarised_first() -> None:
    blobs = FakeBlobs()
    metrics = {f"m{at}": SEPARATED if at == 3 else NOISE for at in range(5)}
    write_experiment(blobs, metrics, list(metrics))
    first, *_ = section(build_report(blobs, ["e"]), "Verdict").blocks
    assert first == Paragraph("The values of weight differ on 1 of 5 measures: m3.", strong=True)


def test_the_points_of_an_experiment_show_its_measures() -> None:
    blobs = FakeBlobs()
    write_experiment(blobs, {"loss": NOISE, "a/valid": SEPARATED, "a/b": NOISE}, ["a/valid", "a/b"])
    ledger = Ledger(blobs, "e")
    table = points_table(ledger.sweep(), ledger.statuses())
    assert table.columns == ("run", "weight", "seed", "status", "valid", "b")
    assert table.rows[1] == ("e-2", "2.0", "1", "completed", "0.91", "0.95")
