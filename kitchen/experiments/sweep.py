"""Sweeps: one recipe with every combination of some settings, checked before the first run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.adapters import PORTS
from kitchen.config.discovery import import_path
from kitchen.config.machine import free_memory, gib, memory
from kitchen.config.order import Order
from kitchen.config.request import Problems, RunRequest, resolve_request
from kitchen.config.sources import Setting, from_arguments
from kitchen.config.yaml import yaml_value
from kitchen.errors import ConfigError, KitchenError
from kitchen.experiments.axes import Axis, grid, random_points, values_of
from kitchen.experiments.executors import Executor, find_executor
from kitchen.experiments.ledger import (
    Ledger,
    Point,
    Search,
    Sweep,
    configuration_digest,
    run_of_point,
)
from kitchen.experiments.search import check_search, first_points
from kitchen.ports.blobs import BlobStore
from kitchen.recipe import Recipe
from kitchen.runs.lock import lease
from kitchen.secrets import mask

_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class PointRecipes:
    """The recipes of an experiment, by the values of its axes, and the comparison of its runs."""

    experiment: str  # "experiments:Weights"
    recipe_of: Callable[[Mapping[str, Any]], Recipe]
    compare_by: str = ""
    measures: Sequence[str] = ()


@dataclass(frozen=True)
class SweepRequest:
    """A request for a sweep: a run's request, and the axes along which its settings change.

    In an experiment, each point has a recipe, and `run` has its further settings.
    """

    run: RunRequest
    axes: Sequence[Axis]
    random: int | None = None  # number of combinations to draw; None: all of them
    seed: int = 0  # of the draws
    search: Search | None = None  # in place of combinations that are known at the start
    jobs: int | None = None  # None: as many as there are devices, or 1
    devices: Sequence[str] = ()  # GPUs that the points share
    executor: str = "local"
    memory_per_point: int = 0  # bytes of this machine; 0: not known
    recipes: PointRecipes | None = None


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that has been checked, its points, the store of its runs, and its executor."""

    sweep: Sweep
    points: Sequence[Point]
    blobs: BlobStore
    executor: Executor


def plan_sweep(request: SweepRequest, name: str) -> PlannedSweep:
    """Check every point of a sweep; raises Problems with all that is wrong, or ConfigError."""
    _check_axes(request)
    executor = find_executor(request.executor)
    _check_jobs(request, executor)
    _check_memory(request)
    combinations = list(_combinations(request))
    count = request.search.points if request.search else len(combinations)
    points: list[Point] = []
    problems: dict[str, KitchenError] = {}
    headline: Sequence[str] = ()
    store: BlobStore | None = None
    for number, combination in enumerate(combinations, 1):
        try:
            resolved = resolve_request(_run_request(request, combination))
            if request.recipes is None:
                _check_not_of_adapters(request.axes, resolved.cls)
            order, recipe, kitchen = resolved.require()
        except Problems as error:
            problems |= {str(problem): problem for problem in error.problems}
            continue
        store, headline = kitchen.blobs, recipe.headline
        run = run_of_point(name, number, count)
        values = values_of(combination)
        points.append(Point(number, configuration_digest(order), run, values, order))
    if problems or store is None:
        raise Problems(list(problems.values())[:_SHOWN_PROBLEMS])
    _check_store(store)
    _check_no_secrets(points, request.executor)
    if request.search:
        del points[1:]  # the others were only checked
    _check_different(points)
    return PlannedSweep(_sweep(request, name, points, headline, executor), points, store, executor)


def create_sweep(planned: PlannedSweep) -> Ledger:
    """Write the ledger of a new sweep.

    Raises ConfigError if a name is taken, and the errors of its executor.
    """
    ledger = Ledger(planned.blobs, planned.sweep.name)
    ledger.check_new(planned.sweep, planned.points)
    planned.executor.prepare()
    with lease(ledger.blobs, ledger.name):
        ledger.create(planned.sweep, planned.points)
    return ledger


def device_ids(text: str) -> Sequence[str]:
    """Return the GPUs in `ID,ID`; raises ConfigError for one that is empty or named twice."""
    ids = [part.strip() for part in text.split(",")] if text else []
    if not all(ids) or len(set(ids)) < len(ids):
        raise ConfigError(f"--devices {text}: name each GPU once, as in 0,1")
    return ids


def memory_size(text: str) -> int:
    """Return the bytes of a size such as 4GiB; 0 for an empty text. Raises ConfigError."""
    if not text:
        return 0
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = ByteSize(0)
    if size <= 0 or not text[-1].isalpha():
        raise ConfigError(f"--memory-per-point {text}: write a size with its unit, such as 4GiB")
    return size


def store_of(order: Order) -> AdapterChoice:
    """Return the choice of the store that a run of this order is recorded in."""
    root = order.adapter_settings.get("blobs", {}).get("root")
    return AdapterChoice({"blobs": order.adapters["blobs"]}, (), root)


def check_folder(sweep: Sweep) -> None:
    """Raise ConfigError if this is not the folder in which the sweep was started."""
    if os.path.realpath(sweep.folder) != os.path.realpath(os.getcwd()):
        raise ConfigError(
            f"sweep {sweep.name!r} was started in {sweep.folder}, where its recipe and data are "
            "found; resume it there"
        )


def _run_request(request: SweepRequest, combination: Sequence[str]) -> RunRequest:
    """Return the request for the run of a point."""
    run, recipes = request.run, request.recipes
    if recipes is None:
        return replace(run, settings=(*run.settings, *combination))
    recipe = recipes.recipe_of(values_of(combination))
    implied = (*_settings_of(recipe, recipes.experiment), *run.implied)
    return replace(run, recipe=import_path(type(recipe)), implied=implied)


def _settings_of(recipe: Recipe, source: str) -> Iterator[Setting]:
    """Yield the settings that a recipe was built with."""
    # values of a wrong type are reported when the settings are resolved
    dumped = recipe.model_dump(mode="json", exclude_unset=True, warnings=False)
    for name, value in dumped.items():
        yield Setting((name,), value, source)


def _combinations(request: SweepRequest) -> Sequence[Sequence[str]]:
    if request.search is not None:
        return first_points(request.search, request.axes)
    if request.random is None:
        return list(grid(request.axes))
    return list(random_points(request.axes, request.random, request.seed))


def _sweep(
    request: SweepRequest,
    name: str,
    points: Sequence[Point],
    headline: Sequence[str],
    executor: Executor,
) -> Sweep:
    count = request.search.points if request.search else len(points)
    jobs = min(request.jobs or len(request.devices) or 1, count)
    recipes = request.recipes
    return Sweep(
        name=name,
        recipe=points[0].order.recipe,
        axes={axis.key: axis.parsed() for axis in request.axes},
        points=[point.digest for point in points],
        executor=request.executor,
        jobs=jobs,
        devices=tuple(request.devices),
        threads=executor.threads(jobs),
        folder=os.getcwd(),
        headline=tuple(headline),
        experiment=recipes.experiment if recipes else "",
        compare_by=recipes.compare_by if recipes else "",
        measures=tuple(recipes.measures) if recipes else (),
        memory_per_point=request.memory_per_point,
        search=request.search,
    )


def _check_axes(request: SweepRequest) -> None:
    """Raise ConfigError for a sweep without axes, or an axis whose setting is also fixed."""
    if not request.axes:
        raise ConfigError("a sweep needs an axis, such as --over learning_rate=1e-4,2e-4")
    fixed = _keys(request.run.settings)
    if request.search is not None:
        _check_search(request, request.search)
    for axis in request.axes:
        for key in sorted(_keys(axis.settings()) & fixed):
            raise ConfigError(f"{key} is both a setting and an axis (--over); remove one")


def _check_search(request: SweepRequest, search: Search) -> None:
    """Raise ConfigError for a search that also draws points, or in which they are experiments."""
    if request.random is not None:
        raise ConfigError("--random and --optuna are two ways to choose points; remove one")
    if request.recipes is not None:
        raise ConfigError(
            "--optuna searches the settings of a recipe, and this is an experiment; use --random"
        )
    check_search(search, request.axes)


def _check_jobs(request: SweepRequest, executor: Executor) -> None:
    """Raise ConfigError for no job, or for devices if the executor gives each point its own."""
    if request.jobs is not None and request.jobs < 1:
        raise ConfigError(f"jobs={request.jobs}: at least one point has to run at a time")
    if request.devices and executor.assigns_devices:
        raise ConfigError(
            f"--devices {','.join(request.devices)}: the executor {request.executor!r} gives each "
            "point its GPUs; leave out --devices"
        )


def _check_memory(request: SweepRequest) -> None:
    """Raise ConfigError for a memory per point that this machine cannot know or does not have."""
    if not request.memory_per_point:
        return
    option = f"--memory-per-point {gib(request.memory_per_point)}"
    if request.executor != "local":
        raise ConfigError(
            f"{option}: only points on this machine wait for memory, and not those of the executor "
            f"{request.executor!r}; leave it out"
        )
    if free_memory() is None:
        raise ConfigError(
            f"{option}: this system does not report its free memory; limit --jobs instead"
        )
    if request.memory_per_point > memory()["memory"]:
        raise ConfigError(
            f"{option}: no point would ever start, for this machine has {gib(memory()['memory'])}"
        )


def _check_not_of_adapters(axes: Sequence[Axis], recipe: type[Recipe]) -> None:
    """Raise ConfigError for an axis over a setting of an adapter, if the recipe has no such one."""
    for axis in axes:
        port = axis.key.partition(".")[0]
        if port in PORTS and port not in recipe.model_fields:
            raise ConfigError(
                f"--over {axis.key}: all points have the same {port} adapter, with the same "
                "settings; give them with --set"
            )


def _keys(settings: Sequence[str]) -> set[str]:
    """Return the dotted keys that settings `key=value` set."""
    return {".".join(entry.keys) for entry in from_arguments(settings)}


def _check_store(blobs: BlobStore) -> None:
    """Raise ConfigError for a store that other processes cannot read."""
    if blobs.locate("x").startswith("memory://"):
        raise ConfigError(
            "the points of a sweep are processes, which cannot read a store in the memory of this "
            "one; leave out --blobs, or choose one with a folder or URL"
        )


def _check_no_secrets(points: Sequence[Point], executor: str) -> None:
    """Raise ConfigError if a setting of a point or the executor has a secret.

    The ledger would hold it.
    """
    if mask(executor) != executor:
        raise ConfigError(
            f"--executor {mask(executor)!r} has a secret, and the ledger of a sweep holds none; "
            "let the command read it from an environment variable"
        )
    for point in points:
        order = point.order
        for port, values in {
            "": {**order.settings, **point.values},
            **order.adapter_settings,
        }.items():
            for key, value in values.items():
                if mask(str(value)) != str(value):
                    name = f"{port}.{key}" if port else key
                    raise ConfigError(
                        f"point {point.number} has a secret in {name}, and the ledger of a sweep "
                        "holds none; pass the secret in an environment variable that the adapter "
                        "reads"
                    )


def _check_different(points: Sequence[Point]) -> None:
    """Raise ConfigError if two points have the same settings."""
    first: dict[str, Point] = {}
    for point in points:
        other = first.setdefault(point.digest, point)
        if other is not point:
            raise ConfigError(
                f"points {other.number} and {point.number} have the same settings, with "
                f"{_values_text(other)} and with {_values_text(point)}; leave out one of the values"
            )


def _values_text(point: Point) -> str:
    return ", ".join(f"{key}={yaml_value(value)}" for key, value in point.values.items())
