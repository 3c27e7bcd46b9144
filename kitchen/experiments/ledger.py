"""The ledger of a sweep in the blob store: its plan, and one small blob for each of its points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from kitchen.config.order import Order, order_json
from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports.blobs import BlobStore
from kitchen.runs.lock import in_use
from kitchen.runs.sealed import read_sealed, write_sealed
from kitchen.runs.store import (
    check_new_run_name,
    read_run,
    run_exists,
    run_summary,
    top_folders,
)
from kitchen.secrets import mask

State = Literal["waiting", "running", "completed", "failed", "stopped"]


Direction = Literal["maximise", "minimise"]


@dataclass(frozen=True)
class Search:
    """A search for the best settings, whose points are proposed one by one."""

    points: int  # in the whole search
    metric: str  # of finished runs
    direction: Direction
    seed: int
    axes: Sequence[str]  # as typed after --over


@dataclass(frozen=True)
class Sweep:
    """The plan of a sweep, which does not change after its start."""

    name: str
    recipe: str
    axes: Mapping[str, Sequence[Any]]  # setting to values
    points: Sequence[str]  # digests of the configurations, in order; of a search, the first one
    executor: str  # "local" or "command: TEMPLATE"
    jobs: int  # points that run at the same time
    threads: int  # threads of each; the last bits of results depend on them
    folder: str  # in which the points run
    headline: Sequence[str] = ()  # metrics of the recipe to show first
    devices: Sequence[str] = ()  # GPUs that the points share; empty: every point sees all
    experiment: str = ""  # "experiments:Weights"
    compare_by: str = ""  # the axis by whose values an experiment compares its runs
    measures: Sequence[str] = ()  # the metrics that it compares
    memory_per_point: int = 0  # bytes of this machine that a point needs; 0: not known
    search: Search | None = None  # how points are proposed; None: all points are known

    def count(self) -> int:
        """Return the number of points, those included that a search has not proposed yet."""
        return self.search.points if self.search else len(self.points)


@dataclass(frozen=True)
class Point:
    """One configuration of a sweep, and the run that it has."""

    number: int  # from 1
    digest: str
    run: str
    values: Mapping[str, Any]  # by axis
    order: Order
    failure: str = ""  # why its process failed before there was a run, or could not resume it


@dataclass(frozen=True)
class PointStatus:
    """The state of a point, and the last metrics of its run."""

    point: Point
    state: State
    reason: str = ""  # why it failed
    seconds: float = 0.0  # over all attempts
    metrics: Mapping[str, float] = field(default_factory=dict)


def configuration_digest(order: Order) -> str:
    """Return the digest of the recipe, its settings and its adapters, 16 hexadecimal digits."""
    content = {
        "recipe": order.recipe,
        "settings": order.settings,
        "adapters": {port: name for port, name in order.adapters.items() if port != "blobs"},
        "adapter_settings": order.recorded_settings(),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Ledger:
    """Reads and writes the blobs of one sweep: `NAME/sweep.json` and `NAME/points/DIGEST.json`."""

    def __init__(self, blobs: BlobStore, name: str) -> None:
        self.blobs = blobs
        self.name = name

    def create(self, sweep: Sweep, points: Sequence[Point]) -> None:
        """Write a new sweep, its points first; raises ConfigError if the name is taken."""
        self.check_new(sweep, points)
        for leftover in self._points():
            self.blobs.delete(leftover)
        for point in points:
            self.write_point(point)
        write_sealed(self.blobs, f"{self.name}/sweep.json", asdict(sweep))

    def check_new(self, sweep: Sweep, points: Sequence[Point]) -> None:
        """Raise ConfigError if the name of the sweep, or of one of its runs, is not free."""
        if self.blobs.read(f"{self.name}/sweep.json") is not None:
            raise ConfigError(
                f"there is a sweep {self.name!r} already: continue it with "
                f"`kitchen sweep resume {self.name}`, or choose another --name"
            )
        if not self._points():  # those of a sweep that was killed while it wrote are replaced
            check_new_run_name(self.blobs, self.name)
        later = range(len(points) + 1, sweep.count() + 1)
        runs = [point.run for point in points]
        for run in [*runs, *(run_of_point(self.name, number, sweep.count()) for number in later)]:
            check_new_run_name(self.blobs, run)

    def sweep(self) -> Sweep:
        """Read the plan; raises ConfigError if there is no such sweep or it is damaged."""
        file = f"{self.name}/sweep.json"
        if self.blobs.read(file) is None:
            near = did_you_mean(self.name, sweep_names(self.blobs))
            raise ConfigError(f"there is no sweep {self.name!r}; {near}")
        content = read_sealed(self.blobs, file)
        if search := content.get("search"):
            content = {**content, "search": Search(**search)}
        return Sweep(**content)

    def points(self) -> Sequence[Point]:
        """Read all points in order; raises ConfigError for one that is missing or damaged."""
        points = [self.point(digest) for digest in self.digests()]
        return sorted(points, key=lambda point: point.number)

    def digests(self) -> Sequence[str]:
        """Return the digests of all points; those of a search are what has been proposed so far."""
        sweep = self.sweep()
        if sweep.search is None:
            return sweep.points
        return [PurePosixPath(name).stem for name in self._points()]

    def write_search(self, search: Search) -> None:
        """Change the search of a sweep, such as its metric."""
        sweep = replace(self.sweep(), search=search)
        write_sealed(self.blobs, f"{self.name}/sweep.json", asdict(sweep))

    def point(self, digest: str) -> Point:
        content = read_sealed(self.blobs, f"{self.name}/points/{digest}.json")
        return Point(**{**content, "order": Order(**content["order"])})

    def write_point(self, point: Point) -> None:
        content = {**asdict(point), "order": order_json(point.order)}
        write_sealed(self.blobs, f"{self.name}/points/{point.digest}.json", content)

    def fail(self, point: Point, reason: str) -> None:
        """Record why a point failed; an empty reason allows it to run again."""
        self.write_point(replace(point, failure=mask(reason)))

    def devices(self) -> Mapping[str, str]:
        """Return the device of each point that was started with one, by digest."""
        file = f"{self.name}/devices.json"
        return {} if self.blobs.read(file) is None else read_sealed(self.blobs, file)

    def write_device(self, point: Point, device: str) -> None:
        content = {**self.devices(), point.digest: device}
        write_sealed(self.blobs, f"{self.name}/devices.json", content)

    def status(self, point: Point) -> PointStatus:
        """Return the state of a point, which its run's record decides if there is one."""
        if not run_exists(self.blobs, point.run):
            if in_use(self.blobs, point.run):
                return PointStatus(point, "running")
            return PointStatus(point, "failed" if point.failure else "waiting", point.failure)
        try:
            summary = run_summary(self.blobs, point.run)
        except ConfigError as error:  # the other points can still be shown and run
            return PointStatus(point, "failed", str(error))
        self._check_is_of(point)
        state: State = "stopped"
        if in_use(self.blobs, point.run):
            state = "running"
        elif summary.status == "completed":
            state = "completed"
        elif summary.status == "failed" or point.failure:
            state = "failed"
        reason = (point.failure or summary.reason) if state == "failed" else ""
        return PointStatus(point, state, reason, summary.seconds, summary.metrics)

    def statuses(self) -> Sequence[PointStatus]:
        return [self.status(point) for point in self.points()]

    def _check_is_of(self, point: Point) -> None:
        """Raise ConfigError if the run of this name has another configuration."""
        order = Order(**read_run(self.blobs, point.run)["order"])
        if configuration_digest(order) != point.digest:
            raise ConfigError(
                f"run {point.run!r} has other settings than point {point.number} of the sweep "
                f"{self.name!r}, so it is not that point; rename or move its folder"
            )

    def _points(self) -> Sequence[str]:
        """Return the names of the blobs of points."""
        return self.blobs.list(f"{self.name}/points/")


def run_of_point(sweep: str, number: int, count: int) -> str:
    """Return the name of the run of a point, of as many as there are in the sweep."""
    return f"{sweep}-{number:0{len(str(count))}d}"


def sweep_names(blobs: BlobStore) -> Sequence[str]:
    """Return the names of all sweeps in the store, sorted."""
    return [name for name in top_folders(blobs) if blobs.read(f"{name}/sweep.json") is not None]
