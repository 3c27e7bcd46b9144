"""Searches with Optuna: each point of a sweep is proposed from the results of earlier ones.

The ledger is the only storage. A proposal depends on the points in the ledger and on the seed, so
that a resumed search goes on as if it had not been interrupted.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from kitchen.config.discovery import find_recipe
from kitchen.config.extras import check_installed
from kitchen.config.order import Order, nested_value
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import Setting, from_arguments
from kitchen.config.trust import check_trusted_order
from kitchen.errors import ConfigError, did_you_mean
from kitchen.experiments.axes import MAX_POINTS, Axis, parse_axes, values_of
from kitchen.experiments.ledger import (
    Direction,
    Ledger,
    Point,
    PointStatus,
    Search,
    configuration_digest,
    run_of_point,
)

if TYPE_CHECKING:
    import optuna

_DIRECTIONS: Mapping[Direction, Any] = {"maximise": "maximize", "minimise": "minimize"}
_MAX_ASKS = 20  # proposals of settings that a point has already


@dataclass(frozen=True)
class Objective:
    """The metric that a search optimises, and whether it should be high or low."""

    metric: str
    direction: Direction


def find_objective(maximise: str | None, minimise: str | None) -> Objective | None:
    """Return the objective of these options; raises ConfigError if both are given."""
    if maximise and minimise:
        raise ConfigError(
            f"--maximise {maximise} and --minimise {minimise}: a search has one metric; remove one"
        )
    if maximise:
        return Objective(maximise, "maximise")
    return Objective(minimise, "minimise") if minimise else None


def find_search(
    points: int | None, objective: Objective | None, seed: int, axes: Sequence[Axis]
) -> Search | None:
    """Return the search of these options, None without one; raises ConfigError."""
    if points is None and objective is None:
        return None
    if objective is None:
        raise ConfigError(
            f"--optuna {points} needs the metric to optimise: --maximise METRIC or --minimise "
            "METRIC, such as --minimise loss"
        )
    if points is None:
        raise ConfigError(
            f"--{objective.direction} {objective.metric} is the objective of a search; say how "
            "many points it has, as in --optuna 20"
        )
    return Search(points, objective.metric, objective.direction, seed, [axis.text for axis in axes])


def change_objective(ledger: Ledger, objective: Objective) -> None:
    """Change the metric of a search.

    Raises ConfigError if the sweep is no search, or if a completed point does not have the metric.
    """
    search = ledger.sweep().search
    if search is None:
        raise ConfigError(
            f"sweep {ledger.name!r} is no search, so it has no metric; leave out "
            f"--{objective.direction}"
        )
    changed = replace(search, metric=objective.metric, direction=objective.direction)
    for status in ledger.statuses():
        _check_has_metric(ledger.name, changed, status)
    ledger.write_search(changed)


def check_search(search: Search, axes: Sequence[Axis]) -> None:
    """Raise ConfigError for a search that cannot have so many points, or BackendError."""
    check_installed("search", "optuna", Proposer)
    available = prod(axis.count() for axis in axes)
    if search.points > available:
        raise ConfigError(
            f"--optuna {search.points}: the axes have only {available:,.0f} combinations; run them "
            "all without --optuna"
        )
    if search.points > MAX_POINTS:
        raise ConfigError(f"--optuna {search.points}: a sweep has at most {MAX_POINTS:,} points")


def first_points(search: Search, axes: Sequence[Axis]) -> Sequence[Sequence[str]]:
    """Return the settings of the first point, and of points that differ from it in one value.

    The values of these are all listed ones and the bounds of all ranges, so that checking them
    finds wrong settings before anything runs.
    """
    first = _ask(search, axes, [], 0)
    found = [first]
    for index, axis in enumerate(axes):
        found += [(*first[:index], setting, *first[index + 1 :]) for setting in axis.settings()]
    return found


def ranked(search: Search, statuses: Sequence[PointStatus]) -> Sequence[tuple[PointStatus, float]]:
    """Return the completed points with their values of the metric, the best first."""
    values: list[tuple[PointStatus, float]] = []
    for status in statuses:
        value = _value(search, status)
        if value is not None:
            values.append((status, value))
    maximise = search.direction == "maximise"
    return sorted(values, key=lambda pair: pair[1], reverse=maximise)


def best(search: Search, statuses: Sequence[PointStatus]) -> tuple[PointStatus, float] | None:
    """Return the completed point with the best value of the metric; None if there is none."""
    return next(iter(ranked(search, statuses)), None)


@dataclass(frozen=True)
class Proposer:
    """Proposes the points of a search, and appends them to its ledger."""

    ledger: Ledger
    search: Search
    trust: bool  # in code that the ledger names

    packages = ("optuna",)

    def propose(self) -> Point | None:
        """Append a point to the ledger and return it; None if the search has all of its points.

        Raises ConfigError if a completed point has no value of the metric.
        """
        statuses = self.ledger.statuses()
        for status in statuses:
            self.check(status)
        if len(statuses) >= self.search.points:
            return None
        check_installed("search", "optuna", type(self))
        first = statuses[0].point
        check_trusted_order(first.run, first.order, trust=self.trust)
        axes = parse_axes(self.search.axes)
        known = {status.point.digest for status in statuses}
        for attempt in range(_MAX_ASKS):
            point = self._point(first, _ask(self.search, axes, statuses, attempt), len(statuses))
            if point.digest not in known:
                self.ledger.write_point(point)
                return point
        point = self._unused(first, axes, known)
        self.ledger.write_point(point)
        return point

    def is_complete(self) -> bool:
        """Return whether the ledger has all points of the search."""
        return len(self.ledger.digests()) >= self.search.points

    def check(self, status: PointStatus) -> None:
        """Raise ConfigError if a completed point has no value of the metric."""
        _check_has_metric(self.ledger.name, self.search, status)

    def _unused(self, first: Point, axes: Sequence[Axis], known: set[str]) -> Point:
        """Return a point that is not in the ledger, at random; raises ConfigError."""
        generator = random.Random(_seed(self.search, len(known), _MAX_ASKS))
        if any(axis.range for axis in axes):
            some = [_drawn(axes, generator) for _ in range(MAX_POINTS)]
        else:
            some = list(product(*(axis.settings() for axis in axes)))
            generator.shuffle(some)
        for combination in some:
            point = self._point(first, combination, len(known))
            if point.digest not in known:
                return point
        raise ConfigError(
            f"sweep {self.ledger.name!r}: there are only {len(known)} different combinations of "
            f"settings, and {self.search.points} points to try"
        )

    def _point(self, first: Point, combination: Sequence[str], earlier: int) -> Point:
        """Return the point of these settings; one that the recipe refuses has failed already."""
        run = run_of_point(self.ledger.name, earlier + 1, self.search.points)
        order, failure = _order(first.order, combination)
        values = values_of(combination)
        return Point(earlier + 1, configuration_digest(order), run, values, order, failure)


def _check_has_metric(sweep: str, search: Search, status: PointStatus) -> None:
    if status.state != "completed" or metric_name(search, status.metrics):
        return
    near = did_you_mean(search.metric, status.metrics)
    raise ConfigError(
        f"point {status.point.number}, {status.point.run}, has completed without the metric "
        f"{search.metric!r} that --{search.direction} names; go on with another one by `kitchen "
        f"sweep resume {sweep} --{search.direction} METRIC`; {near}"
    )


def _drawn(axes: Sequence[Axis], generator: random.Random) -> tuple[str, ...]:
    return tuple(f"{axis.key}={axis.draw(generator)}" for axis in axes)


def metric_name(search: Search, metrics: Mapping[str, float]) -> str:
    """Return the metric to optimise, which may be named without `_after`; "" if there is none."""
    names = (search.metric, f"{search.metric}_after")
    return next((name for name in names if name in metrics), "")


def _value(search: Search, status: PointStatus) -> float | None:
    """Return the value of a completed point; None without one that is finite."""
    value = status.metrics.get(metric_name(search, status.metrics))
    is_usable = status.state == "completed" and value is not None and math.isfinite(value)
    return value if is_usable else None


def _order(first: Order, combination: Sequence[str]) -> tuple[Order, str]:
    """Return the order of a point that differs from the first one by these settings.

    With it comes the reason why the recipe refuses these settings, or "".
    """
    settings = [
        Setting(tuple(key.split(".")), nested_value(first.settings, key), source)
        for key, source in first.sources.items()
        if source != "default"
    ]
    axes = from_arguments(combination)
    changed = {".".join(setting.keys) for setting in axes}
    others = [setting for setting in settings if ".".join(setting.keys) not in changed]
    resolved = resolve_settings(find_recipe(first.recipe), [*others, *axes])
    if resolved.recipe is None:
        refused = {**first.settings, "refused": list(combination)}
        return replace(first, settings=refused), " ".join(map(str, resolved.problems))
    values = resolved.recipe.model_dump(mode="json")
    return replace(first, settings=values, sources=resolved.sources), ""


def _ask(
    search: Search, axes: Sequence[Axis], statuses: Sequence[PointStatus], attempt: int
) -> tuple[str, ...]:
    """Return the settings that a fresh study proposes, which knows all points."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = _seed(search, len(statuses), attempt)
    # points that run count as bad ones, so that two at a time are not close to each other
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(direction=_DIRECTIONS[search.direction], sampler=sampler)
    distributions = {axis.key: _distribution(axis) for axis in axes}
    for status in statuses:
        study.add_trial(_trial(search, axes, distributions, status))
    trial = study.ask(distributions)
    return tuple(f"{axis.key}={_typed(axis, trial.params[axis.key])}" for axis in axes)


def _trial(
    search: Search, axes: Sequence[Axis], distributions: Mapping[str, Any], status: PointStatus
) -> optuna.trial.FrozenTrial:
    """Return a point as a trial of Optuna: complete, failed or running."""
    import optuna

    value = _value(search, status)
    state = optuna.trial.TrialState.RUNNING
    if value is not None:
        state = optuna.trial.TrialState.COMPLETE
    elif status.state in ("failed", "completed"):
        state = optuna.trial.TrialState.FAIL
    parameters = {axis.key: _parameter(axis, status.point.values[axis.key]) for axis in axes}
    return optuna.trial.create_trial(
        state=state, params=parameters, distributions=dict(distributions), value=value
    )


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    import optuna

    if axis.range is None:
        return optuna.distributions.CategoricalDistribution(list(axis.values))
    low, high, log = axis.range.low, axis.range.high, axis.range.log
    if axis.range.whole:
        return optuna.distributions.IntDistribution(int(low), int(high), log=log)
    return optuna.distributions.FloatDistribution(low, high, log=log)


def _typed(axis: Axis, parameter: Any) -> str:
    """Return the value of a parameter as it would be typed."""
    return axis.range.typed(parameter) if axis.range else str(parameter)


def _parameter(axis: Axis, value: Any) -> Any:
    """Return the parameter of a recorded value."""
    if axis.range is not None:
        return int(value) if axis.range.whole else float(value)
    recorded = [json.dumps(parsed, sort_keys=True) for parsed in axis.parsed()]
    return axis.values[recorded.index(json.dumps(value, sort_keys=True))]


def _seed(search: Search, points: int, attempt: int) -> int:
    digest = hashlib.sha256(f"{search.seed} {points} {attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
