"""The report of a search: its best point, all points, and a comparison of the best."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.fake.blobs import FakeBlobs
from kitchen.config.order import Order, order_json
from kitchen.experiments.ledger import Ledger, Point, Search, Sweep, configuration_digest
from kitchen.experiments.reports.build import build_report
from kitchen.runs.reports.content import DataTable, Paragraph, Report
from kitchen.runs.store import read_run, write_run
from tests.support.evaluated_runs import scored_rows, write_evaluated_run


def searched(losses: Sequence[float], metric: str) -> Report:
    """Return the report of a search for the lowest metric, whose runs have these losses."""
    blobs = FakeBlobs()
    points = []
    for number in range(1, len(losses) + 1):
        values = {"lora_rank": number}
        order = Order("recipes.evaluate:Evaluate", values, dict.fromkeys(values, "default"))
        points.append(Point(number, configuration_digest(order), f"s-{number}", values, order))
    search = Search(len(losses), metric, "minimise", 0, ["lora_rank=1..9:uniform"])
    axes = {"lora_rank": ["1..9:uniform"]}
    plan = Sweep("s", "", axes, [points[0].digest], "local", 1, 1, "/", search=search)
    Ledger(blobs, "s").create(plan, points)
    for point, loss in zip(points, losses, strict=True):
        write_evaluated_run(blobs, point.run, scored_rows([0.0, 1.0] * 3))
        record = {**read_run(blobs, point.run), "order": order_json(point.order)}
        write_run(blobs, point.run, {**record, "metrics": {"dev/loss_after": loss}})
    return build_report(blobs, ["s"])


def test_the_best_points_of_a_search_are_compared() -> None:
    report = searched([0.5, 0.4, float("nan"), 0.1, 0.2], "dev/loss")
    best, caution, points, *_ = report.sections[0].blocks
    assert best == Paragraph(
        "Of 4 points of a search, s-4 has the lowest dev/loss_after: 0.1, with lora_rank 4.",
        strong=True,
    )
    assert isinstance(caution, Paragraph)
    assert "compares the best 3 points" in caution.text
    assert isinstance(points, DataTable)
    assert [row[0] for row in points.rows] == ["s-4", "s-5", "s-2", "s-1", "s-3"]
    assert report.subtitle.startswith("3 runs of ")


def test_a_search_without_its_metric_is_reported_as_a_sweep() -> None:
    report = searched([0.5, 0.4, 0.3, 0.2], "dev/lss")
    assert report.subtitle.startswith("4 runs of ")
