"""`kitchen.run`, `kitchen.submit` and `kitchen.resume`: from Python values to a run that is under
way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import isabstract, signature
from typing import Any

from kitchen.config.adapters import PORTS, Kitchen
from kitchen.config.discovery import add_cwd_to_path, find_recipe
from kitchen.config.order import Order
from kitchen.config.request import (
    DEFAULT_RUNS_FOLDER,
    AdapterChoice,
    Problems,
    ResolvedRequest,
    add_plan_to,
    check_adapter,
    check_run_name,
    open_blobs,
)
from kitchen.config.settings import leaf_keys, resolve_settings
from kitchen.config.sources import from_mapping
from kitchen.engine.observers import Observer
from kitchen.engine.stop import StopSignal
from kitchen.errors import ConfigError, ResumeError, did_you_mean
from kitchen.ports import BlobStore, DatasetStore, HubClient, TrainingClient
from kitchen.recipe import Recipe
from kitchen.runs.execute import execute, recipe_from_order
from kitchen.runs.handle import Outcome, Run, masks_secrets
from kitchen.runs.status import Listener
from kitchen.runs.store import (
    check_new_run_name,
    discard_failed_run,
    new_run_id,
    read_order,
    run_summary,
)
from kitchen.workflow import sequence

SupportsWorkflow = Recipe | type[Recipe] | str
Folder = str | os.PathLike[str]
# the module of what stands in a notebook or script, where no other process finds it
_TYPED_IN = "__main__"


@masks_secrets
def submit(
    recipe: SupportsWorkflow,
    *,
    settings: Mapping[str, Any] | None = None,
    training: TrainingClient | str | None = None,
    datasets: DatasetStore | str | None = None,
    hub: HubClient | str | None = None,
    blobs: BlobStore | str | None = None,
    adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
    runs: Folder | None = None,
    name: str | None = None,
    on_progress: Listener | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Set a recipe going as a new run, and come back. Raises Problems: all that `kitchen check`
    would list.

    The recipe is an instance, or a class or name with `settings`, which are nested or have dots.
    Adapters are names or objects; `adapter_settings` are by port; `runs` is the folder or URL that
    runs are kept in.
    """
    made = _prepared(recipe, settings or {})
    made.adapter_settings = {port: dict(each) for port, each in (adapter_settings or {}).items()}
    _open(made, {"training": training, "datasets": datasets, "hub": hub, "blobs": blobs}, runs)
    if made.recipe is not None:
        add_plan_to(made, made.recipe, False)
    if name is not None and made.kitchen is not None and made.kitchen.blobs is not None:
        with made.collecting():
            check_new_run_name(made.kitchen.blobs, name)
    order, dish, kitchen = made.require()
    short = made.cls.__name__.lower() if made.cls.__module__ == _TYPED_IN else order.recipe
    name, store, root = (
        name or new_run_id(short),
        kitchen.blobs,
        order.adapter_settings.get("blobs", {}).get("root"),
    )
    assert store is not None
    discard_failed_run(store, name)
    return Run(
        name,
        order.recipe,
        store,
        lambda stop_signal, standing: execute(
            order,
            dish,
            kitchen,
            name,
            (standing, *observers),
            stop_signal=stop_signal,
            plan=made.plan,
        ),
        on_progress=on_progress,
        earlier={},
        again=_again(name, order, store, blobs, root),
    )


def run(
    recipe: SupportsWorkflow,
    *,
    settings: Mapping[str, Any] | None = None,
    training: TrainingClient | str | None = None,
    datasets: DatasetStore | str | None = None,
    hub: HubClient | str | None = None,
    blobs: BlobStore | str | None = None,
    adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
    runs: Folder | None = None,
    name: str | None = None,
    on_progress: Listener | None = None,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Cook a recipe and wait for what comes of it: takes what `submit` takes, and waits as
    `Run.finish` does.
    """
    return submit(
        recipe,
        settings=settings,
        training=training,
        datasets=datasets,
        hub=hub,
        blobs=blobs,
        adapter_settings=adapter_settings,
        runs=runs,
        name=name,
        on_progress=on_progress,
        observers=observers,
    ).finish()


@masks_secrets
def resume(
    run: str,
    *,
    recipe: type[Recipe] | None = None,
    training: TrainingClient | None = None,
    datasets: DatasetStore | None = None,
    hub: HubClient | None = None,
    blobs: BlobStore | str | None = None,
    runs: Folder | None = None,
    other_machine: bool = False,
    take_over: bool = False,
    on_progress: Listener | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Go on with a run where it stopped, and come back; one that is completed is over at once.

    Recipe, settings and adapters are those of its record; give a class or objects for what cannot
    be built from it.
    """
    store = (
        open_blobs(_adapter_choice({"blobs": blobs}, runs))
        if blobs is None or isinstance(blobs, str)
        else blobs
    )
    order, so_far = read_order(store, check_run_name(run)), run_summary(store, run)
    start = partial(
        Run,
        run,
        order.recipe,
        store,
        on_progress=on_progress,
        earlier=so_far.metrics,
        again=_again(run, order, store, blobs, runs),
    )
    if so_far.status == "completed":
        return start(_nothing_left)
    given = {"training": training, "datasets": datasets, "hub": hub, "blobs": blobs}
    chosen = {port: each for port, each in given.items() if each is not None}
    if lost := order.lost(chosen):
        raise Problems(
            [
                ConfigError(f"run {run!r}: {why}; give it again, {port}=...")
                for port, why in lost.items()
            ]
        )
    made = ResolvedRequest(recipe or _found_again(run, order))
    made.adapter_settings = {
        port: dict(each)
        for port, each in order.adapter_settings.items()
        if port != "blobs" and port not in chosen
    }
    _open(made, {**order.adapters, "blobs": None, **chosen}, runs)
    dish = recipe_from_order(made.cls, run, order)
    add_plan_to(made, dish, False)
    if made.problems or made.kitchen is None:
        raise Problems(made.problems)
    kitchen = made.kitchen
    return start(
        lambda stop_signal, standing: execute(
            order,
            dish,
            kitchen,
            run,
            (standing, *observers),
            stop_signal=stop_signal,
            other_machine=other_machine,
            take_over=take_over,
            plan=made.plan,
        )
    )


def _nothing_left(_: StopSignal, standing: Observer) -> None:
    """What a run that is completed tells of itself."""
    standing.began("", sequence())
    standing.ended(None)


def _prepared(recipe: SupportsWorkflow, settings: Mapping[str, Any]) -> ResolvedRequest:
    if isinstance(recipe, Recipe):
        sources = {
            ".".join(leaf): "recipe" if leaf[0] in recipe.model_fields_set else "default"
            for leaf in leaf_keys(type(recipe))
        }
        made = ResolvedRequest(type(recipe), recipe, sources)
        if settings:
            made.problems.append(
                ConfigError(
                    f"the recipe is made already, so settings={settings} come too late: "
                    f"write them into it, or give the class {type(recipe).__name__}"
                )
            )
        return made
    made = ResolvedRequest(find_recipe(recipe) if isinstance(recipe, str) else recipe)
    if not issubclass(made.cls, Recipe) or isabstract(made.cls):
        raise ConfigError(
            f"{made.cls.__name__} is no recipe: write a subclass of kitchen.Recipe with a workflow"
        )
    settled = resolve_settings(made.cls, list(from_mapping(settings, "settings")))
    made.recipe, made.sources, made.problems = settled.recipe, settled.sources, [*settled.problems]
    return made


def _open(made: ResolvedRequest, adapters: Mapping[str, Any], runs: Folder | None) -> None:
    """The adapters, those with a name built around those that are there; what is wrong is noted."""
    add_cwd_to_path()  # an adapter may be a class in this folder
    before, adapter_choice = len(made.problems), _adapter_choice(adapters, runs)
    objects = {
        port: each
        for port, each in adapters.items()
        if each is not None and not isinstance(each, str)
    }
    made.names = {
        **adapter_choice.chosen(),
        **{port: _class_name(each) for port, each in objects.items()},
    }
    made.objects = [
        port
        for port, each in objects.items()
        if port != "blobs" and signature(type(each)).parameters
    ]
    for port in {**made.names, **made.adapter_settings}:
        with made.collecting():
            if port not in PORTS:
                raise ConfigError(
                    f"adapter_settings: there is no port {port!r}; {did_you_mean(port, PORTS)}"
                )
            if port not in objects:
                check_adapter(made, port, made.names[port], adapter_choice.runs)
            elif port in made.adapter_settings or (port == "blobs" and runs is not None):
                raise ConfigError(
                    f"the {port} adapter is an object that is set up already: give it no settings"
                    + ", and no runs" * (port == "blobs")
                )
    if len(made.problems) == before:
        with made.collecting():
            made.kitchen = Kitchen.named(made.names, made.adapter_settings, objects)


def _class_name(adapter: Any) -> str:
    return f"{type(adapter).__module__}:{type(adapter).__qualname__}"


def _adapter_choice(adapters: Mapping[str, Any], runs: Folder | None) -> AdapterChoice:
    return AdapterChoice(
        {port: each for port, each in adapters.items() if isinstance(each, str)},
        runs=None if runs is None else os.fspath(runs),
    )


def _found_again(run: str, order: Order) -> type[Recipe]:
    try:
        return find_recipe(order.recipe)
    except ConfigError as error:
        if not order.recipe.startswith(f"{_TYPED_IN}:"):
            raise
        raise ResumeError(
            f"run {run!r} was cooked from {order.recipe}, which was typed into a notebook or "
            "script and "
            "is not here: type it in again, or give it as recipe=..."
        ) from error


def _again(
    name: str, order: Order, store: BlobStore, blobs: BlobStore | str | None, root: Folder | None
) -> str:
    """How to go on with it; empty where the record goes with the store that it is in."""
    if (blobs is None or isinstance(blobs, str)) and store.locate(name).startswith("memory://"):
        return ""
    given = {
        "runs": None
        if root is None or os.fspath(root) == DEFAULT_RUNS_FOLDER
        else repr(os.fspath(root)),
        "blobs": repr(blobs) if isinstance(blobs, str) else "..." if blobs is not None else None,
        **dict.fromkeys(order.objects, "..."),
    }
    more = "".join(f", {key}={each}" for key, each in given.items() if each is not None)
    return f"kitchen.resume({name!r}{more})"
