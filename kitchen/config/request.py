"""From what was typed to what can be cooked, or to every problem with it at once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from kitchen.config.adapters import (
    DEFAULTS,
    PORT_TYPES,
    PORTS,
    Kitchen,
    adapter_class,
    adapter_settings,
    build,
)
from kitchen.config.discovery import (
    add_cwd_to_path,
    build_workflow,
    find_recipe,
    import_path,
    recipe_code_error,
)
from kitchen.config.extras import check_installed
from kitchen.config.order import Order
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import Setting, from_arguments, from_file
from kitchen.engine.plan import Plan, check
from kitchen.engine.preview import verify
from kitchen.errors import ConfigError, KitchenError, did_you_mean
from kitchen.ports import BlobStore, blob_name
from kitchen.recipe import Recipe
from kitchen.types import RunId
from kitchen.workflow import Step

DEFAULT_RUNS_FOLDER = "runs"  # the folder that runs are kept in unless told otherwise


class Problems(KitchenError):
    """Everything that is wrong with an order."""

    def __init__(self, found: Sequence[KitchenError]) -> None:
        super().__init__("\n".join(map(str, found)))
        self.found = tuple(found)
        # what is typed wrongly comes first
        self.exit_code = min(problem.exit_code for problem in found)


@dataclass(frozen=True)
class AdapterChoice:
    """Which adapters were asked for."""

    names: Mapping[str, str | None]  # port to name; None: the default
    settings: Sequence[str] = ()  # "training.device=cpu"
    runs: str | None = None  # folder or URL

    def chosen(self) -> dict[str, str]:
        given = {port: name for port, name in self.names.items() if name is not None}
        url = {"blobs": "fsspec"} if self.runs and "://" in self.runs else {}
        return {**DEFAULTS, **url, **given}

    def store_options(self) -> str:
        """The options that find the runs again: `--set blobs.root=DIR` comes before `--runs`, as
        for the run itself.
        """
        typed = [
            one.value
            for text in self.settings
            for one in from_arguments([text])
            if one.keys == ("blobs.root",)
        ]
        given = {
            "--runs": str(typed[-1]) if typed else self.runs,
            "--blobs": self.names.get("blobs"),
        }
        return "".join(
            f" {option} {shlex.quote(value)}"
            for option, value in given.items()
            if value is not None
        )


@dataclass(frozen=True)
class RunRequest:
    """What was typed after `kitchen run` or `kitchen check`."""

    recipe: str
    settings: Sequence[str]
    config: Path | None
    adapter_choice: AdapterChoice
    strict: bool = False
    implied: Sequence[Setting] = ()  # what is known without being typed


@dataclass
class ResolvedRequest:
    """As much of an order as could be made out."""

    cls: type[Recipe]
    recipe: Recipe | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    adapter_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: Sequence[str] = ()  # ports whose adapter cannot be built again
    kitchen: Kitchen | None = None
    step: Step | None = None
    plan: Plan | None = None
    problems: list[KitchenError] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """What goes wrong in the block is a problem of this order, beside the others."""
        try:
            yield
        except KitchenError as error:
            self.problems.append(error)

    def require(self) -> tuple[Order, Recipe, Kitchen]:
        """What can be cooked; raises Problems."""
        if self.problems or self.recipe is None or self.kitchen is None:
            raise Problems(self.problems)
        settings = self.recipe.model_dump(mode="json")
        order = Order(
            import_path(self.cls),
            settings,
            self.sources,
            self.names,
            self.adapter_settings,
            self.objects,
        )
        return order, self.recipe, self.kitchen


def resolve_request(request: RunRequest) -> ResolvedRequest:
    """Raises ConfigError or BackendError if there is no such recipe; every other problem is listed."""
    made = ResolvedRequest(find_recipe(request.recipe))
    given = [*request.implied]
    with made.collecting():
        given += from_file(request.config) if request.config else ()
    for text in request.settings:
        with made.collecting():
            given += from_arguments([text])
    settled = resolve_settings(made.cls, given)
    made.problems += settled.problems
    if not made.problems:
        made.recipe, made.sources = settled.recipe, settled.sources
    resolve_adapters(request.adapter_choice, made)
    if made.recipe is not None:
        add_plan_to(made, made.recipe, request.strict)
    return made


def resolve_adapters(adapter_choice: AdapterChoice, made: ResolvedRequest) -> None:
    """The adapters with their settings, and with what is missing noted."""
    add_cwd_to_path()  # an adapter may be a class in this folder
    before = len(made.problems)
    made.names = adapter_choice.chosen()
    for text in adapter_choice.settings:
        with made.collecting():
            _set(made.adapter_settings, *from_arguments([text]))
    for port, name in made.names.items():
        with made.collecting():
            check_adapter(made, port, name, adapter_choice.runs)
    if len(made.problems) == before:
        with made.collecting():
            made.kitchen = Kitchen.named(made.names, made.adapter_settings)


def check_adapter(made: ResolvedRequest, port: str, name: str, runs: str | None) -> None:
    """See that an adapter is there with all that it needs; that of blobs is told where runs are
    kept.
    """
    cls = adapter_class(port, name)
    check_installed(port, name, cls)
    if port == "blobs" and (place := _kept_at(cls, runs)):
        made.adapter_settings[port] = {**place, **made.adapter_settings.get(port, {})}


def check_run_name(typed: str) -> str:
    """The name, if a run can have it: one part of a path; raises ConfigError."""
    try:
        name = blob_name(typed)
    except ValueError:
        name = ""
    if not name or "/" in name:
        raise ConfigError(
            f"{typed!r} cannot be the name of a run: it is one part of a path; `kitchen runs` "
            "lists them"
        )
    return name


def open_blobs(adapter_choice: AdapterChoice) -> BlobStore:
    """Where the runs are kept, and no other adapter; raises ConfigError or BackendError."""
    add_cwd_to_path()
    name, cls = (
        adapter_choice.chosen()["blobs"],
        adapter_class("blobs", adapter_choice.chosen()["blobs"]),
    )
    check_installed("blobs", name, cls)
    found: BlobStore = build(
        "blobs", {"blobs": name}, {"blobs": _kept_at(cls, adapter_choice.runs)}
    )
    return found


def _kept_at(cls: Any, runs: str | None) -> dict[str, Any]:
    """Where runs are kept, for an adapter that has a setting for it or that was told."""
    return (
        {"root": runs or DEFAULT_RUNS_FOLDER}
        if runs is not None or "root" in adapter_settings(cls)
        else {}
    )


def _set(settings: dict[str, dict[str, Any]], one: Setting, *more: Setting) -> None:
    port, *rest = ".".join(one.keys).split(".")
    if port not in PORTS or len(rest) != 1 or more:
        near = f"; {did_you_mean(port, PORTS)}" if port not in PORTS else ""
        raise ConfigError(f"--set {'.'.join(one.keys)}: write it as PORT.SETTING=VALUE{near}")
    settings.setdefault(port, {})[rest[0]] = one.value


def add_plan_to(made: ResolvedRequest, recipe: Recipe, strict: bool) -> None:
    """The steps of the recipe and their plan, with what is wrong noted."""
    try:
        made.step = build_workflow(recipe)
        port_types = dict.fromkeys(chain.from_iterable(PORT_TYPES.values()))
        ports = made.kitchen.ports() if made.kitchen else port_types
        given: Any = {**ports, RunId: RunId("check")} if made.kitchen else {*ports, RunId}
        made.plan = check(made.step, given, recipe.outputs)
    except KitchenError as error:
        made.problems.append(error)
        return
    except Exception as error:  # noqa: BLE001 whatever the code of a recipe does
        made.problems.append(
            recipe_code_error(f"the workflow of {recipe.title()} cannot be laid out", error)
        )
        return
    made.problems += map(ConfigError, made.plan.problems)
    if strict:
        made.problems += [
            ConfigError(
                f"{name} is not honoured by the training adapter {made.names['training']!r}, "
                "and --strict was given"
            )
            for name in made.plan.not_honoured
        ]
    if made.kitchen is not None:
        made.problems += verify(made.step, made.kitchen.ports())
