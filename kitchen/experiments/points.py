"""The points of a sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from kitchen.config.yaml import yaml_value
from kitchen.experiments.ledger import PointStatus, Sweep
from kitchen.types import Table

_SHOWN_METRICS = 3  # columns of metrics


def points_table(sweep: Sweep, statuses: Sequence[PointStatus]) -> Table:
    """Return the points of a sweep with their values, states and first metrics."""
    names = _metric_names(sweep, statuses)
    columns = ("run", *sweep.axes, "status", *_headings(names))
    rows = [_cells(status, names) for status in statuses]
    return Table(f"Sweep {sweep.name}", columns, tuple(rows))


def _cells(status: PointStatus, names: Sequence[str]) -> tuple[str, ...]:
    """Return the row of a point in a table with these metrics."""
    values = map(yaml_value, status.point.values.values())
    metrics = [_number(status.metrics.get(name)) for name in names]
    return (status.point.run, *values, status.state, *metrics)


def _metric_names(sweep: Sweep, statuses: Sequence[PointStatus]) -> Sequence[str]:
    """Return the metrics to show: that of a search, then the headline and evaluations.

    An experiment shows its measures only.
    """
    searched = (sweep.search.metric, f"{sweep.search.metric}_after") if sweep.search else ()
    measured = dict.fromkeys(chain.from_iterable(status.metrics for status in statuses))
    after = [name for name in measured if name.endswith("_after")]
    shown = sweep.measures or (*sweep.headline, *after)
    names = [name for name in shown if name in measured and "bits_per_byte" not in name]
    first = [name for name in searched if name in measured]
    return list(dict.fromkeys([*first, *names]))[:_SHOWN_METRICS]


def _headings(names: Sequence[str]) -> Sequence[str]:
    """Return the names of metrics in short, without their held-out set if all have the same."""
    short = [name.replace("_after", "") for name in names]
    sets = {name.rpartition("/")[0] for name in short}
    return short if len(sets) > 1 else [name.rpartition("/")[2] for name in short]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
