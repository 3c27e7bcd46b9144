"""The best points of a search with Optuna, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kitchen.config.yaml import yaml_value
from kitchen.experiments.ledger import Ledger, PointStatus, Sweep, sweep_names
from kitchen.experiments.points import points_table
from kitchen.experiments.search import metric_name, ranked
from kitchen.ports import BlobStore
from kitchen.runs.reports.content import Block, DataTable, Paragraph

COMPARED = 3  # points of a search that a report compares


def best_points(sweep: Sweep, statuses: Sequence[PointStatus]) -> Sequence[PointStatus]:
    """Return the completed points of a sweep; of a search, only the best, the best first."""
    done = [status for status in statuses if status.state == "completed"]
    if sweep.search is None:
        return done
    return [status for status, _ in ranked(sweep.search, statuses)[:COMPARED]] or done


def search_blocks(blobs: BlobStore, names: Sequence[str]) -> Iterator[Block]:
    """Yield the best point of each search among these names, and all of its points."""
    for name in sorted(set(names) & set(sweep_names(blobs)), key=names.index):
        ledger = Ledger(blobs, name)
        yield from _blocks(ledger.sweep(), ledger.statuses())


def _blocks(sweep: Sweep, statuses: Sequence[PointStatus]) -> Iterator[Block]:
    found = ranked(sweep.search, statuses) if sweep.search else []
    if not sweep.search or not found:
        return
    best, value = found[0]
    metric = metric_name(sweep.search, best.metrics)
    extreme = "highest" if sweep.search.direction == "maximise" else "lowest"
    values = ", ".join(f"{key} {yaml_value(of)}" for key, of in best.point.values.items())
    yield Paragraph(
        f"Of {len(found)} points of a search, {best.point.run} has the {extreme} {metric}: "
        f"{value:.4g}, with {values}.",
        strong=True,
    )
    only = f" This report compares the best {COMPARED} points." if len(found) > COMPARED else ""
    yield Paragraph(
        "The best of many points looks better than it is. Measure it on data that the search has "
        f"not used.{only}"
    )
    measured = [status for status, _ in found]
    others = [status for status in statuses if status not in measured]
    table = points_table(sweep, [*measured, *others])
    yield DataTable("All points, the best first", table.columns, table.rows)
