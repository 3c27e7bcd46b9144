"""The Python API: `kitchen.run`, `submit`, `resume` and `compare`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from inspect import isabstract, signature
from pathlib import Path
from typing import Any

from kitchen.artifacts.completions import RunSampler
from kitchen.config.adapter_choice import (
    DEFAULT_RUNS_FOLDER,
    AdapterChoice,
    check_run_name,
    open_blobs,
)
from kitchen.config.adapters import PORTS, Kitchen
from kitchen.config.discovery import find_recipe
from kitchen.config.order import Order
from kitchen.config.request import (
    Problems,
    ResolvedRequest,
    check_adapter,
    hidden_settings,
    plan_request,
    recipe_of_files,
    resolve_trackers,
)
from kitchen.config.run_files import SUFFIXES, read_run_files
from kitchen.config.settings import leaf_keys, resolve_settings
from kitchen.config.sources import from_mapping
from kitchen.config.trackers import OBSERVE, parse_observed, with_trackers
from kitchen.config.trust import check_trusted_order, needs_trust
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.engine.observers import Observer
from kitchen.engine.stop import StopSignal
from kitchen.errors import ConfigError, ResumeError, did_you_mean
from kitchen.ports import BlobStore, DatasetStore, HubClient, SamplingClient, TrainingClient
from kitchen.recipe import Recipe
from kitchen.runs.comparison import RECIPE, ReportCollector
from kitchen.runs.execute import execute, recipe_from_order
from kitchen.runs.handle import Run, Target, masks_secrets
from kitchen.runs.notebook import NotebookProgress, in_notebook
from kitchen.runs.outcome import Outcome, RunAccess
from kitchen.runs.status import Listener
from kitchen.runs.store import (
    RunSummary,
    check_new_run_name,
    new_run_id,
    read_order,
    run_summary,
)
from kitchen.runs.tracking import send_missing
from kitchen.statistics.corrections import Correction
from kitchen.statistics.report import ComparisonReport
from kitchen.workflow import sequence

RecipeLike = Recipe | type[Recipe] | str
Folder = str | os.PathLike[str]
# the module of code in a notebook or script, which another process cannot import
_MAIN = "__main__"


@masks_secrets
def submit(
    recipe: RecipeLike,
    *,
    settings: Mapping[str, Any] | None = None,
    training: TrainingClient | str | None = None,
    sampling: SamplingClient | str | None = None,
    datasets: DatasetStore | str | None = None,
    hub: HubClient | str | None = None,
    blobs: BlobStore | str | None = None,
    adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
    runs: Folder | None = None,
    name: str | None = None,
    on_progress: Listener | None = None,
    observers: Sequence[Observer] = (),
    observe: Sequence[str] = (),
) -> Run:
    """Start a recipe as a new run and return at once.

    The recipe is an instance, or a class, a name or a YAML file with `settings`, which are nested
    or dotted; arguments take precedence over the file. Adapters are names or objects;
    `adapter_settings` are by port; `runs` is the folder or URL that stores the runs. `observe` are
    trackers, such as "wandb:project=soup". Raises Problems: everything that `kitchen check` would
    list.
    """
    adapters = dict(zip(PORTS, (training, sampling, datasets, hub, blobs), strict=True))
    if isinstance(recipe, str) and recipe.endswith(SUFFIXES):
        resolved, adapters = _resolve_file(recipe, settings or {}, adapters, runs)
    else:
        resolved = _resolve_recipe(recipe, settings or {})
    for port, values in (adapter_settings or {}).items():
        resolved.adapter_settings.setdefault(port, {}).update(values)
    with resolved.collecting():
        resolve_trackers(resolved, parse_observed(observe, OBSERVE))
    _build_adapters(resolved, adapters, runs)
    if resolved.recipe is not None:
        plan_request(resolved, resolved.recipe, strict=False)
    if name is not None:
        _check_name(resolved, name)
    return _start(resolved, name, adapters, on_progress, observers)


def run(
    recipe: RecipeLike,
    *,
    settings: Mapping[str, Any] | None = None,
    training: TrainingClient | str | None = None,
    sampling: SamplingClient | str | None = None,
    datasets: DatasetStore | str | None = None,
    hub: HubClient | str | None = None,
    blobs: BlobStore | str | None = None,
    adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
    runs: Folder | None = None,
    name: str | None = None,
    on_progress: Listener | None = None,
    observers: Sequence[Observer] = (),
    observe: Sequence[str] = (),
    progress: bool = True,
) -> Outcome:
    """Run a recipe and wait for its outcome: the arguments of `submit`, then `Run.finish`.

    In a notebook, the cell shows the progress of the run, unless `progress=False`.
    """
    submitted = submit(
        recipe,
        settings=settings,
        training=training,
        sampling=sampling,
        datasets=datasets,
        hub=hub,
        blobs=blobs,
        adapter_settings=adapter_settings,
        runs=runs,
        name=name,
        on_progress=on_progress,
        observers=observers,
        observe=observe,
    )
    if not (progress and in_notebook()):
        return submitted.finish()
    with NotebookProgress(submitted):
        return submitted.finish()


def compare(
    *compared: str,
    sets: Sequence[str] = (),
    measures: Sequence[str] = (),
    margin: float | None = None,
    cluster: str | None = None,
    correct: Correction = "holm",
    alpha: float = 0.05,
    unpaired: bool = False,
    only_baseline: bool = False,
    blobs: BlobStore | str | None = None,
    runs: Folder | None = None,
    name: str | None = None,
) -> ComparisonReport:
    """Compare the held-out scores of finished runs in a new run, and return the report.

    `compared` are names of runs, the baseline first, or `NAME=RUN,RUN,RUN` for groups of runs that
    differ in their seed. The other arguments are the settings of `recipes.compare`.
    """
    settings = {
        "runs": compared,
        "sets": tuple(sets),
        "measures": tuple(measures),
        "margin": margin,
        "cluster": cluster,
        "correct": correct,
        "alpha": alpha,
        "unpaired": unpaired,
        "only_baseline": only_baseline,
    }
    reports = ReportCollector()
    run(RECIPE, settings=settings, blobs=blobs, runs=runs, name=name, observers=[reports])
    assert reports.report is not None
    return reports.report


@masks_secrets
def resume(
    run: str,
    *,
    recipe: type[Recipe] | None = None,
    training: TrainingClient | None = None,
    sampling: SamplingClient | None = None,
    datasets: DatasetStore | None = None,
    hub: HubClient | None = None,
    blobs: BlobStore | str | None = None,
    runs: Folder | None = None,
    other_machine: bool = False,
    take_over: bool = False,
    accept_lost_metrics: bool = False,
    other_code: bool = False,
    trust: bool = False,
    on_progress: Listener | None = None,
    observers: Sequence[Observer] = (),
    observe: Sequence[str] = (),
) -> Run:
    """Resume a run where it stopped and return at once; a completed run is over immediately.

    Recipe, settings, adapters and trackers come from the run's record; pass a class or objects for
    what cannot be rebuilt. Raises NotTrusted for code that only `trust=True` loads from it.
    """
    store, order, summary = _read_recorded(run, blobs, runs, observe)
    given = _without_none(zip(PORTS, (training, sampling, datasets, hub, blobs), strict=True))
    access = _access(run, order, store, Recipe.headline, given, trust=trust)
    resume_call = _resume_call(run, order, store, blobs, runs)
    recorded = partial(Run, earlier_metrics=summary.metrics, resume_call=resume_call)
    start = partial(recorded, run, order.recipe, access, on_progress=on_progress)
    if summary.status == "completed":
        return start(partial(_report_completed, store, run, order))
    resolved = _resolve_resumed(run, order, recipe, given, runs, trust=trust)
    options = {"other_machine": other_machine, "take_over": take_over, "other_code": other_code}
    options["accept_lost_metrics"] = accept_lost_metrics
    return start(_target(order, run, resolved, observers, **options))


def _read_recorded(
    run: str, blobs: BlobStore | str | None, runs: Folder | None, observe: Sequence[str]
) -> tuple[BlobStore, Order, RunSummary]:
    """Return a run's store, its order with further trackers, and its summary."""
    store = _open_store(blobs, runs)
    order = with_trackers(read_order(store, check_run_name(run)), observe, OBSERVE)
    return store, order, run_summary(store, run)


def _without_none(values: Iterable[tuple[str, Any]]) -> Mapping[str, Any]:
    return {name: value for name, value in values if value is not None}


def _start(
    resolved: ResolvedRequest,
    name: str | None,
    adapters: Mapping[str, Any],
    on_progress: Listener | None,
    observers: Sequence[Observer],
) -> Run:
    """Start the thread of a new run; raises Problems if the request has any."""
    order, recipe, kitchen = resolved.require()
    store = kitchen.blobs
    assert store is not None
    in_main = resolved.cls.__module__ == _MAIN
    run_id = name or new_run_id(resolved.cls.__name__.lower() if in_main else order.recipe)
    root = order.adapter_settings.get("blobs", {}).get("root")
    return Run(
        run_id,
        order.recipe,
        _access(run_id, order, store, recipe.headline, _objects(adapters), trust=True),
        _target(order, run_id, resolved, observers, new=True),
        on_progress=on_progress,
        earlier_metrics={},
        resume_call=_resume_call(run_id, order, store, adapters["blobs"], root),
    )


def _access(
    run: str,
    order: Order,
    store: BlobStore,
    headline: Sequence[str],
    objects: Mapping[str, Any],
    *,
    trust: bool,
) -> RunAccess:
    """Return the access of a run's outcome to its store; `objects` are its adapters by port."""
    sampler = RunSampler(run, order, {**objects, "blobs": store}, trust)
    return RunAccess(store, tuple(headline), sampler, partial(compare, blobs=store))


def _resolve_resumed(
    run: str,
    order: Order,
    recipe_class: type[Recipe] | None,
    replacements: Mapping[str, Any],
    runs: Folder | None,
    *,
    trust: bool,
) -> ResolvedRequest:
    """Rebuild recipe, adapters and plan from a run's record; raises Problems.

    `replacements` are adapters by port that replace those of the record.
    """
    if missing := order.missing_objects(replacements):
        raise Problems(
            [
                ConfigError(f"run {run!r}: {reason}; pass the object again, {port}=...")
                for port, reason in missing.items()
            ]
        )
    check_trusted_order(run, order, replacements, new_recipe=recipe_class is not None, trust=trust)
    resolved = ResolvedRequest(recipe_class or _find_recorded_recipe(run, order))
    resolved.adapter_settings = order.recorded_settings(replacements)
    recorded = order.recorded_adapters(replacements)
    _build_adapters(resolved, {**recorded, "blobs": None, **replacements}, runs)
    resolved.recipe = recipe_from_order(resolved.cls, run, order)
    plan_request(resolved, resolved.recipe, strict=False)
    return resolved


def _target(
    order: Order,
    run: str,
    resolved: ResolvedRequest,
    observers: Sequence[Observer],
    **options: bool,
) -> Target:
    """Return the function that executes a run on its thread; raises Problems if there are any."""
    _, recipe, kitchen = resolved.require()

    def target(stop_signal: StopSignal, status: Observer) -> None:
        execute(
            order,
            recipe,
            kitchen,
            run,
            (status, *observers),
            stop_signal=stop_signal,
            plan=resolved.plan,
            **options,
        )

    return target


def _report_completed(
    store: BlobStore, run: str, order: Order, _: StopSignal, status: Observer
) -> None:
    """Send the events of a run that is completed already, and what its trackers lack of it."""
    send_missing(store, run, order)
    status.run_started("", sequence())
    status.run_ended(None)


def _resolve_recipe(recipe: RecipeLike, settings: Mapping[str, Any]) -> ResolvedRequest:
    if isinstance(recipe, Recipe):
        return _resolve_instance(recipe, settings)
    resolved = ResolvedRequest(find_recipe(recipe) if isinstance(recipe, str) else recipe)
    if not issubclass(resolved.cls, Recipe) or isabstract(resolved.cls):
        raise ConfigError(
            f"{resolved.cls.__name__} is not a recipe: write a subclass of kitchen.Recipe with a "
            "workflow"
        )
    resolved_settings = resolve_settings(resolved.cls, list(from_mapping(settings, "settings")))
    resolved.recipe = resolved_settings.recipe
    resolved.sources = resolved_settings.sources
    resolved.problems = [*resolved_settings.problems]
    return resolved


def _resolve_file(
    path: str, settings: Mapping[str, Any], adapters: Mapping[str, Any], runs: Folder | None
) -> tuple[ResolvedRequest, dict[str, Any]]:
    """Return the recipe and settings of a YAML file, and its adapters where none are given."""
    files = read_run_files([Path(path)])
    resolved = ResolvedRequest(recipe_of_files(files, path))
    resolved.problems += [*files.problems, *hidden_settings(resolved.cls, files)]
    resolve_trackers(resolved, files.observers, files.keys.get(OBSERVE))
    all_settings = [*files.settings, *from_mapping(settings, "settings")]
    resolved_settings = resolve_settings(resolved.cls, all_settings)
    resolved.problems += resolved_settings.problems
    if not resolved.problems:
        resolved.recipe = resolved_settings.recipe
        resolved.sources = resolved_settings.sources
    choice = files.choice(_adapter_choice(adapters, runs))
    objects = _objects(adapters)
    for setting in choice.file_settings:
        port, name = setting.keys
        if port not in objects:
            resolved.adapter_settings.setdefault(port, {})[name] = setting.value
    return resolved, {**adapters, **choice.names, **objects}


def _resolve_instance(recipe: Recipe, settings: Mapping[str, Any]) -> ResolvedRequest:
    """Take the settings of an instance; further settings are a problem."""
    cls = type(recipe)
    sources = {
        ".".join(keys): "recipe" if keys[0] in recipe.model_fields_set else "default"
        for keys in leaf_keys(cls)
    }
    resolved = ResolvedRequest(cls, recipe, sources)
    if settings:
        resolved.problems.append(
            ConfigError(
                f"the recipe is an instance already, so settings={settings} cannot change it: set "
                f"them on the instance, or pass the class {cls.__name__}"
            )
        )
    return resolved


def _check_name(resolved: ResolvedRequest, name: str) -> None:
    if resolved.kitchen is not None and resolved.kitchen.blobs is not None:
        with resolved.collecting():
            check_new_run_name(resolved.kitchen.blobs, name)


def _build_adapters(
    resolved: ResolvedRequest, adapters: Mapping[str, Any], runs: Folder | None
) -> None:
    """Build the adapters given by name around those given as objects, and collect problems."""
    add_cwd_to_path()  # an adapter may be a class in this folder
    problems_before = len(resolved.problems)
    adapter_choice = _adapter_choice(adapters, runs)
    objects = _objects(adapters)
    class_names = {port: _class_name(adapter) for port, adapter in objects.items()}
    resolved.names = {**adapter_choice.chosen(), **class_names}
    resolved.objects = [
        port
        for port, adapter in objects.items()
        if port != "blobs" and signature(type(adapter)).parameters
    ]
    for port in {**resolved.names, **resolved.adapter_settings}:
        with resolved.collecting():
            if port not in PORTS:
                near = did_you_mean(port, PORTS)
                raise ConfigError(f"adapter_settings: there is no port {port!r}; {near}")
            if port not in objects:
                check_adapter(resolved, port, resolved.names[port], adapter_choice.runs)
            elif port in resolved.adapter_settings or (port == "blobs" and runs is not None):
                raise ConfigError(
                    f"the {port} adapter is an object that is set up already: give it no settings"
                    + ", and no runs" * (port == "blobs")
                )
    if len(resolved.problems) == problems_before:
        with resolved.collecting():
            resolved.kitchen = Kitchen.named(resolved.names, resolved.adapter_settings, objects)


def _objects(adapters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the adapters that were given as objects, by port."""
    return {
        port: adapter
        for port, adapter in adapters.items()
        if adapter is not None and not isinstance(adapter, str)
    }


def _class_name(adapter: Any) -> str:
    return f"{type(adapter).__module__}:{type(adapter).__qualname__}"


def _adapter_choice(adapters: Mapping[str, Any], runs: Folder | None) -> AdapterChoice:
    names = {port: adapter for port, adapter in adapters.items() if isinstance(adapter, str)}
    return AdapterChoice(names, runs=None if runs is None else os.fspath(runs))


def _open_store(blobs: BlobStore | str | None, runs: Folder | None) -> BlobStore:
    if blobs is None or isinstance(blobs, str):
        return open_blobs(_adapter_choice({"blobs": blobs}, runs))
    return blobs


def _find_recorded_recipe(run: str, order: Order) -> type[Recipe]:
    try:
        return find_recipe(order.recipe)
    except ConfigError as error:
        if not order.recipe.startswith(f"{_MAIN}:"):
            raise
        raise ResumeError(
            f"the recipe of run {run!r}, {order.recipe}, was defined in a notebook or script and "
            "is not here: define it again, or pass it as recipe=..."
        ) from error


def _resume_call(
    name: str, order: Order, store: BlobStore, blobs: BlobStore | str | None, root: Folder | None
) -> str:
    """Return the Python call that resumes a run; empty if its record is lost with its store."""
    built_by_name = blobs is None or isinstance(blobs, str)
    if built_by_name and store.locate(name).startswith("memory://"):
        return ""
    arguments = {}
    if root is not None and os.fspath(root) != DEFAULT_RUNS_FOLDER:
        arguments["runs"] = repr(os.fspath(root))
    if blobs is not None:
        arguments["blobs"] = repr(blobs) if isinstance(blobs, str) else "..."
    arguments |= dict.fromkeys(order.objects, "...")
    if needs_trust(order, same_process=True):
        arguments["trust"] = "True"
    suffix = "".join(f", {key}={value}" for key, value in arguments.items())
    return f"kitchen.resume({name!r}{suffix})"
