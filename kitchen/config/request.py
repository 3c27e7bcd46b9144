"""Requests: from a recipe's name, settings and adapters to a run, or to every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from kitchen.config.adapter_choice import AdapterChoice, store_settings
from kitchen.config.adapters import (
    PORT_TYPES,
    PORTS,
    Kitchen,
    adapter_class,
    adapter_settings,
    validated_setting,
)
from kitchen.config.discovery import (
    build_workflow,
    find_recipe,
    import_path,
    recipe_code_error,
)
from kitchen.config.extras import check_installed
from kitchen.config.order import Order
from kitchen.config.run_files import SUFFIXES, RunFiles, read_run_files
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import COMMAND_LINE, Keys, Setting, SettingSource, from_arguments
from kitchen.config.trackers import OBSERVE, TrackerSettings, check_trackers, parse_arguments
from kitchen.config.working_folder import add_cwd_to_path
from kitchen.engine.plan import Plan, check
from kitchen.engine.preview import verify
from kitchen.errors import BackendError, ConfigError, KitchenError, did_you_mean, exits_as_failures
from kitchen.recipe import Recipe
from kitchen.types import RunId
from kitchen.workflow import Step


class Problems(KitchenError):
    """Every problem with a request, in one error."""

    def __init__(self, problems: Sequence[KitchenError]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
        # configuration errors have the lowest code and come first
        self.exit_code = min(problem.exit_code for problem in problems)


@dataclass(frozen=True)
class RunRequest:
    """A request to run or check a recipe, as typed after `kitchen run` or `kitchen check`."""

    recipe: str
    settings: Sequence[str]
    configs: Sequence[Path]  # YAML files, of which later ones override earlier ones
    adapter_choice: AdapterChoice
    strict: bool = False
    implied: Sequence[Setting] = ()  # settings that follow from other options; typed ones override
    observe: Sequence[str] = ()  # trackers, as typed after --observe


@dataclass
class ResolvedRequest:
    """A request as far as it could be resolved, with all of its problems."""

    cls: type[Recipe]
    recipe: Recipe | None = None
    sources: Mapping[str, SettingSource] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # port to adapter
    adapter_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    objects: Sequence[str] = ()  # ports whose adapter cannot be rebuilt from its name
    adapter_choice: AdapterChoice | None = None  # of the YAML files and the command line
    # "training" or "training.device" -> its source, unless it is the default
    adapter_sources: dict[str, SettingSource] = field(default_factory=dict)
    observers: dict[str, dict[str, Any]] = field(default_factory=dict)  # tracker -> settings
    kitchen: Kitchen | None = None
    step: Step | None = None
    plan: Plan | None = None
    problems: list[KitchenError] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect an error raised in the block as one of this request's problems."""
        try:
            yield
        except KitchenError as error:
            self.problems.append(error)

    def require(self) -> tuple[Order, Recipe, Kitchen]:
        """Return what is needed to execute the request; raises Problems if anything is wrong."""
        if self.problems or self.recipe is None or self.kitchen is None:
            raise Problems(self.problems)
        order = Order(
            recipe=import_path(self.cls),
            settings=self.recipe.model_dump(mode="json"),
            sources=self.sources,
            adapters=self.names,
            adapter_settings=self.adapter_settings,
            objects=self.objects,
            adapter_sources=self.adapter_sources,
            observers=self.observers,
        )
        return order, self.recipe, self.kitchen


def resolve_request(request: RunRequest) -> ResolvedRequest:
    """Find the recipe, merge its settings, build the adapters and plan the workflow.

    All problems are collected in the result. Only a recipe that cannot be found or imported raises
    ConfigError or BackendError.
    """
    names_file = request.recipe.endswith(SUFFIXES)
    first = [Path(request.recipe)] if names_file else []
    files = read_run_files([*first, *request.configs])
    resolved = ResolvedRequest(
        recipe_of_files(files, request.recipe) if names_file else find_recipe(request.recipe)
    )
    resolved.problems += [*files.problems, *hidden_settings(resolved.cls, files)]
    settings = [*request.implied, *files.settings]
    for text in request.settings:
        with resolved.collecting():
            settings += from_arguments([text])
    resolved_settings = resolve_settings(resolved.cls, settings)
    resolved.problems += resolved_settings.problems
    if not resolved.problems:
        resolved.recipe = resolved_settings.recipe
        resolved.sources = resolved_settings.sources
    resolve_trackers(resolved, files.observers, files.keys.get(OBSERVE))
    with resolved.collecting():
        resolve_trackers(resolved, parse_arguments(request.observe))
    resolve_adapters(files.choice(request.adapter_choice), resolved)
    if resolved.recipe is not None:
        plan_request(resolved, resolved.recipe, strict=request.strict)
    return resolved


def resolve_trackers(
    resolved: ResolvedRequest, trackers: TrackerSettings, source: SettingSource | None = None
) -> None:
    """Add trackers to a request, over earlier ones of the same name; problems are added, too."""
    for name, settings in trackers.items():
        with resolved.collecting(), _placed(source):
            resolved.observers |= check_trackers({name: settings})


def recipe_of(name: str) -> type[Recipe]:
    """Find a recipe by its name, or that of a YAML file; raises the errors of both."""
    if name.endswith(SUFFIXES):
        return recipe_of_files(read_run_files([Path(name)]), name)
    return find_recipe(name)


def recipe_of_files(files: RunFiles, path: str) -> type[Recipe]:
    """Return the recipe that the files name; raises Problems, ConfigError or BackendError."""
    if files.recipe is None:
        raise Problems([*files.problems, *files.without_recipe(path)])
    with _placed(files.recipe.source):
        return find_recipe(files.recipe.value)


def hidden_settings(cls: type[Recipe], files: RunFiles) -> Iterator[ConfigError]:
    """Refuse keys that have a meaning of their own in a file and are settings of this recipe."""
    for key, source in files.keys.items():
        if key in cls.model_fields:
            yield ConfigError(
                f"{source}: {cls.title()} has a setting {key!r}, but this key has a meaning of its "
                f"own in a file; give the setting on the command line, as {key}=VALUE"
            )


@contextmanager
def _placed(source: SettingSource | None) -> Iterator[None]:
    """Put the file and line of a setting, if it has any, in front of an error in the block."""
    try:
        yield
    except (ConfigError, BackendError) as error:
        if source is None:
            raise
        kind = ConfigError if isinstance(error, ConfigError) else BackendError
        raise kind(f"{source}: {error}") from error


def resolve_adapters(adapter_choice: AdapterChoice, resolved: ResolvedRequest) -> None:
    """Build the adapters with their settings; problems are added to the request."""
    add_cwd_to_path()  # an adapter may be a class in this folder
    problems_before = len(resolved.problems)
    resolved.adapter_choice = adapter_choice
    resolved.names = adapter_choice.chosen()
    _record_name_sources(resolved, adapter_choice)
    for setting in adapter_choice.file_settings:
        _add_adapter_setting(resolved, setting)
    for text in adapter_choice.settings:
        with resolved.collecting():
            _add_adapter_setting(resolved, _parse_adapter_setting(text))
    for port, name in resolved.names.items():
        with resolved.collecting(), _placed(adapter_choice.name_sources.get(port)):
            check_adapter(resolved, port, name, adapter_choice.runs)
    if len(resolved.problems) == problems_before:
        _check_file_settings(resolved, adapter_choice)
    if len(resolved.problems) == problems_before:
        with resolved.collecting():
            resolved.kitchen = Kitchen.named(resolved.names, resolved.adapter_settings)


def check_adapter(resolved: ResolvedRequest, port: str, name: str, runs: str | None) -> None:
    """Check that an adapter and its packages are installed; give a blob store the folder of runs.

    Raises ConfigError or BackendError.
    """
    cls = adapter_class(port, name)
    check_installed(port, name, cls)
    if port == "blobs":
        settings = {**store_settings(cls, runs), **resolved.adapter_settings.get(port, {})}
        if settings:
            resolved.adapter_settings[port] = settings


def _record_name_sources(resolved: ResolvedRequest, adapter_choice: AdapterChoice) -> None:
    for port, name in adapter_choice.names.items():
        if name is not None:
            source = adapter_choice.name_sources.get(port, COMMAND_LINE)
            resolved.adapter_sources[port] = source


def _check_file_settings(resolved: ResolvedRequest, adapter_choice: AdapterChoice) -> None:
    """Validate the adapters' settings in YAML files, so that errors name file and line."""
    for setting in adapter_choice.file_settings:
        port, name = setting.keys
        if resolved.adapter_sources[f"{port}.{name}"] != setting.source:
            continue  # overridden
        with resolved.collecting(), _placed(setting.source):
            known = adapter_settings(adapter_class(port, resolved.names[port]))
            validated_setting(port, resolved.names[port], known, name, setting.value)


def _add_adapter_setting(resolved: ResolvedRequest, setting: Setting) -> None:
    port, name = setting.keys
    resolved.adapter_settings.setdefault(port, {})[name] = setting.value
    resolved.adapter_sources[f"{port}.{name}"] = setting.source


def _parse_adapter_setting(text: str) -> Setting:
    """Parse `PORT.SETTING=VALUE`, where the value may be a mapping; raises ConfigError."""
    settings = from_arguments([text])
    typed = settings[0].keys[0]
    port, *names = typed.split(".")
    if port not in PORTS or len(names) != 1:
        near = f"; {did_you_mean(port, PORTS)}" if port not in PORTS else ""
        raise ConfigError(f"--set {typed}: write it as PORT.SETTING=VALUE{near}")
    value: Any = settings[0].value
    if len(settings[0].keys) > 1:
        value = _nested((setting.keys[1:], setting.value) for setting in settings)
    return Setting((port, names[0]), value, COMMAND_LINE)


def _nested(entries: Iterable[tuple[Keys, Any]]) -> dict[str, Any]:
    """Return the mapping of values by nested keys."""
    mapping: dict[str, Any] = {}
    for (*parents, last), value in entries:
        inner = mapping
        for key in parents:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return mapping


def plan_request(resolved: ResolvedRequest, recipe: Recipe, *, strict: bool) -> None:
    """Plan the recipe's workflow and verify its stages; problems are added to the request.

    With `strict`, a setting that the training adapter does not honour is a problem.
    """
    try:
        resolved.step = build_workflow(recipe)
        if resolved.kitchen is None:
            types = {*chain.from_iterable(PORT_TYPES.values()), RunId}
            resolved.plan = check(resolved.step, types, recipe.outputs)
        else:
            values = {**resolved.kitchen.ports(), RunId: RunId("check")}
            resolved.plan = check(resolved.step, values, recipe.outputs)
    except KitchenError as error:
        resolved.problems.append(error)
        return
    except Exception as error:  # noqa: BLE001 a recipe's code may raise anything
        resolved.problems.append(
            recipe_code_error(f"the workflow of {recipe.title()} cannot be built", error)
        )
        return
    resolved.problems += map(ConfigError, resolved.plan.problems)
    if strict:
        resolved.problems += [
            ConfigError(
                f"the training adapter {resolved.names['training']!r} does not honour {name}; "
                "leave the setting at its default, or omit --strict"
            )
            for name in resolved.plan.not_honoured
        ]
    if resolved.kitchen is not None:
        with resolved.collecting(), exits_as_failures():
            resolved.problems += verify(resolved.step, resolved.kitchen.ports())
