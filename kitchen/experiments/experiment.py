"""Experiments: classes whose fields are axes, and whose method is the recipe of one point."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from kitchen.config.adapter_choice import AdapterChoice, check_run_name, open_blobs
from kitchen.config.adapters import PORTS
from kitchen.config.discovery import code_place, import_named, recipe_code_error
from kitchen.config.request import Problems, RunRequest
from kitchen.config.run_files import SUFFIXES
from kitchen.config.settings import explain_validation
from kitchen.config.sources import from_arguments, from_mapping
from kitchen.config.trust import check_trusted_order
from kitchen.config.yaml import yaml_value
from kitchen.engine.stop import handling_signals
from kitchen.errors import ConfigError, Interrupted, KitchenError, did_you_mean
from kitchen.experiments.axes import Axis
from kitchen.experiments.driver import driver_of
from kitchen.experiments.ledger import Ledger, PointStatus
from kitchen.experiments.sweep import (
    PointRecipes,
    SweepRequest,
    check_folder,
    create_sweep,
    device_ids,
    plan_sweep,
    store_of,
)
from kitchen.experiments.worker import WorkerOptions
from kitchen.ports import BlobStore
from kitchen.recipe import Recipe
from kitchen.runs.handle import masks_secrets
from kitchen.runs.store import new_run_id

if TYPE_CHECKING:
    from kitchen.statistics.levels import LevelComparison

T = TypeVar("T")
Folder = str | os.PathLike[str]
Listener = Callable[[PointStatus], object]
_VALUES = "over"  # key of the values of an axis, beside the schema of its field


def over(*values: T) -> T:
    """Declare an axis of an experiment and its values: `rank: int = kitchen.over(8, 16, 32)`.

    The field has the type of one value, because an instance of an experiment is one point.
    """
    return cast("T", Field(json_schema_extra={_VALUES: to_jsonable_python(values)}))


@dataclass(frozen=True)
class ExperimentOutcome:
    """The points of an experiment after its run, and the report on them."""

    name: str
    points: Sequence[PointStatus]
    blobs: BlobStore

    @property
    def completed(self) -> bool:
        """True if all points have completed."""
        return all(status.state == "completed" for status in self.points)

    def compare(self) -> Sequence[LevelComparison]:
        """Compare the completed runs by the values of `compare_by`, on each of the `measures`.

        Raises ConfigError for an experiment that compares nothing.
        """
        from kitchen.experiments.reports.levels import compare_points

        sweep = Ledger(self.blobs, self.name).sweep()
        if not sweep.compare_by:
            raise ConfigError(
                f"the experiment {self.name!r} compares nothing: its class needs compare_by, an "
                "axis with two or more values, and measures"
            )
        return compare_points(sweep, self.points)

    def report(self, *formats: str, out: Folder = ".") -> Sequence[Path]:
        """Write the report as `kitchen report` does, and return its files: `report("html", "md")`.

        Raises ConfigError for an unknown format, or if no point has completed.
        """
        from kitchen.experiments.reports.build import build_report
        from kitchen.experiments.reports.write import find_renderers, stem_of, write_report

        renderers = find_renderers(formats or ("html",))
        content = build_report(self.blobs, [self.name])
        return write_report(content, renderers, Path(out), stem_of([self.name]))


class Experiment(BaseModel, ABC):
    """Base class of experiments: fields declared by `over` are axes, `recipe` builds one point.

    An instance is one point, so that derived settings are Python: `lora_alpha=2 * self.rank`.
    The runs of a point train and evaluate as its recipe says. Afterwards, the report compares the
    runs by the values of the axis `compare_by`, on the final metrics in `measures`.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
    compare_by: ClassVar[str] = ""
    measures: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recipe(self) -> Recipe: ...

    @classmethod
    @masks_secrets
    def run(
        cls,
        *,
        settings: Mapping[str, Any] | None = None,
        training: str | None = None,
        sampling: str | None = None,
        datasets: str | None = None,
        hub: str | None = None,
        blobs: str | None = None,
        adapter_settings: Mapping[str, Mapping[str, Any]] | None = None,
        runs: Folder | None = None,
        name: str | None = None,
        jobs: int | None = None,
        devices: Sequence[str] = (),
        executor: str = "local",
        observe: Sequence[str] = (),
        on_change: Listener = bool,
    ) -> ExperimentOutcome:
        """Check every point, then run all of them in processes, as `kitchen sweep` does.

        `settings` are further settings of the recipe, or values of fields. Adapters are names.
        `on_change` is called when a point starts or ends. Raises Problems if any point is wrong,
        and Interrupted after Ctrl-C or `kitchen sweep stop`.
        """
        names = dict(zip(PORTS, (training, sampling, datasets, hub, blobs), strict=True))
        typed = list(_as_typed(adapter_settings or {}))
        adapters = AdapterChoice(names, typed, None if runs is None else os.fspath(runs))
        fixed = {key: value for key, value in (settings or {}).items() if key in cls.model_fields}
        others = {key: value for key, value in (settings or {}).items() if key not in fixed}
        implied = tuple(from_mapping(others, "settings"))
        trackers = [observe] if isinstance(observe, str) else observe
        run = RunRequest("", (), (), adapters, implied=implied, observe=trackers)
        gpus = device_ids(",".join(map(str, devices)))
        request = SweepRequest(run, (), jobs=jobs, devices=gpus, executor=executor)
        request = _with_experiment(cls, request, fixed)
        planned = plan_sweep(request, name or new_run_id(cls.__name__.lower()))
        ledger = create_sweep(planned)
        store = store_of(planned.points[0].order)
        return _outcome(ledger, store, WorkerOptions(trust=True), on_change, retry_failed=False)

    @classmethod
    @masks_secrets
    def resume(
        cls,
        name: str,
        *,
        blobs: str | None = None,
        runs: Folder | None = None,
        retry_failed: bool = False,
        take_over: bool = False,
        other_machine: bool = False,
        other_code: bool = False,
        accept_lost_metrics: bool = False,
        trust: bool = False,
        on_change: Listener = bool,
    ) -> ExperimentOutcome:
        """Run what is left of an experiment, as `kitchen sweep resume` does.

        Finished points are kept, so that this also returns the outcome of a finished experiment.
        Raises NotTrusted for code that only `trust=True` loads from the record, and Interrupted.
        """
        store = AdapterChoice({"blobs": blobs}, (), None if runs is None else os.fspath(runs))
        ledger = Ledger(open_blobs(store), check_run_name(name))
        check_folder(ledger.sweep())
        for point in ledger.points():  # here, where the recipe may have been imported
            check_trusted_order(point.run, point.order, trust=trust)
        options = WorkerOptions(take_over, other_machine, other_code, accept_lost_metrics, True)
        return _outcome(ledger, store, options, on_change, retry_failed=retry_failed)


def find_experiment(name: str) -> type[Experiment] | None:
    """Return the experiment in `FILE.py:Weights` or `MODULE:Weights`; None if it is a recipe.

    A module with one experiment and no recipe stands for it. Raises ConfigError, and the errors of
    `import_named`.
    """
    if name.endswith(SUFFIXES):
        return None
    module, class_name = import_named(name)
    experiments, recipes = _classes(module, Experiment), _classes(module, Recipe)
    if class_name:
        if experiments and class_name not in {**experiments, **recipes}:
            near = did_you_mean(class_name, [*experiments, *recipes])
            name = module.__name__
            raise ConfigError(f"{name} has no experiment or recipe {class_name!r}; {near}")
        return experiments.get(class_name)
    own = [
        key
        for key, cls in {**experiments, **recipes}.items()
        if cls.__module__ == module.__name__ and not isabstract(cls)
    ]
    if len(own) > 1 and set(own) & set(experiments):
        candidates = ", ".join(f"{module.__name__}:{key}" for key in own)
        raise ConfigError(
            f"{module.__name__} defines several experiments and recipes; say which: {candidates}"
        )
    return experiments.get(own[0]) if own else None


def _classes(module: ModuleType, base: Any) -> Mapping[str, Any]:
    """Return the subclasses of a class among the names of a module."""
    return {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }


def experiment_request(cls: type[Experiment], request: SweepRequest) -> SweepRequest:
    """Return the request for a sweep over the axes of an experiment.

    An axis of the request replaces the values of the class. A setting that is a field has one
    value; the other settings go to the recipe. Raises ConfigError.
    """
    fixed: dict[str, Any] = {}
    others: list[str] = []
    for text in request.run.settings:
        entries = from_arguments([text])
        if entries[0].keys[0] in cls.model_fields and entries[0].keys == (text.partition("=")[0],):
            fixed[entries[0].keys[0]] = entries[0].value
        else:
            others.append(text)
    run = replace(request.run, settings=tuple(others))
    return _with_experiment(cls, replace(request, run=run), fixed)


def _as_typed(adapter_settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield settings of adapters as typed after --set."""
    for port, values in adapter_settings.items():
        for key, value in values.items():
            yield f"{port}.{key}={yaml_value(value)}"


def _with_experiment(
    cls: type[Experiment], request: SweepRequest, fixed: Mapping[str, Any]
) -> SweepRequest:
    given = {axis.key: axis for axis in request.axes}
    for key in given:
        if key not in cls.model_fields:
            near = did_you_mean(key, cls.model_fields)
            raise ConfigError(f"--over {key}: {cls.__name__} has no field {key!r}; {near}")
        if key in fixed:
            raise ConfigError(f"{key} is both a setting and an axis (--over); remove one")
    declared = {axis.key: axis for axis in _declared_axes(cls)}
    axes = {key: axis for key, axis in {**declared, **given}.items() if key not in fixed}
    _check_class(cls, axes)
    entries = (*from_arguments(request.run.settings), *request.run.implied)
    others = [entry.keys[0] for entry in entries]
    recipes = PointRecipes(
        f"{cls.__module__}:{cls.__name__}",
        partial(_recipe_of, cls, fixed, others),
        cls.compare_by if cls.compare_by in axes else "",
        cls.measures,
    )
    return replace(request, axes=tuple(axes.values()), recipes=recipes)


def _declared_axes(cls: type[Experiment]) -> Iterator[Axis]:
    """Yield the axes of an experiment, in the order of its fields; raises ConfigError."""
    for name, info in cls.model_fields.items():
        extra = info.json_schema_extra
        if not isinstance(extra, dict) or _VALUES not in extra:
            continue
        values: Any = extra[_VALUES]
        if len(values) < 2:
            raise ConfigError(
                f"{cls.__name__}.{name}: an axis has two or more values, as in over(2, 5) or "
                "over(*range(3)); write a single one as the default of the field"
            )
        yield Axis(name, [yaml_value(value) for value in values])


def _check_class(cls: type[Experiment], axes: Mapping[str, Axis]) -> None:
    """Raise ConfigError for a class without a recipe, or a comparison of something unknown."""
    if isabstract(cls):
        raise ConfigError(f"{cls.__name__} has no recipe: write its method `recipe(self)`")
    if cls.compare_by and cls.compare_by not in cls.model_fields:
        near = did_you_mean(cls.compare_by, axes)
        raise ConfigError(
            f"{cls.__name__}.compare_by: there is no field {cls.compare_by!r}; {near}"
        )
    if isinstance(cls.measures, str):
        raise ConfigError(
            f"{cls.__name__}.measures is a text: write a tuple of names, ({cls.measures!r},)"
        )
    if bool(cls.compare_by) != bool(cls.measures):
        raise ConfigError(
            f"{cls.__name__}: compare_by and measures belong together: an axis, and the metrics "
            "on which its values are compared"
        )


def _recipe_of(
    cls: type[Experiment],
    fixed: Mapping[str, Any],
    others: Sequence[str],
    values: Mapping[str, Any],
) -> Recipe:
    """Return the recipe of a point, of which `others` must be settings; raises Problems."""
    point = ", ".join(f"{key}={yaml_value(value)}" for key, value in values.items())
    problem = f"{cls.__name__}, {point}"
    try:
        instance = cls(**fixed, **values)
    except ValidationError as error:
        raise _problems(problem, error, cls) from error
    try:
        recipe = instance.recipe()
    except ValidationError as error:
        at = f"{problem}: {code_place(error)}"
        raise _problems(at, error, _class_named(error.title)) from error
    except KitchenError as error:
        raise Problems([ConfigError(f"{problem}: {error}")]) from error
    except Exception as error:
        raise Problems([recipe_code_error(problem, error)]) from error
    if not isinstance(recipe, Recipe):
        returned = "None" if recipe is None else f"a {type(recipe).__name__}"
        raise Problems([ConfigError(f"{problem}: recipe returned {returned}, not a recipe")])
    if type(recipe).__module__ == "__main__":
        name = type(recipe).__name__
        raise Problems(
            [
                ConfigError(
                    f"{cls.__name__}: the points are processes, which cannot import the recipe "
                    f"{name} from a notebook or script: write it into a file"
                )
            ]
        )
    _check_settings(cls, recipe, others)
    return recipe


def _check_settings(cls: type[Experiment], recipe: Recipe, names: Sequence[str]) -> None:
    """Raise Problems for a misspelt field; other unknown names are reported with the recipe's."""
    for name in names:
        known = name in type(recipe).model_fields
        if not known and get_close_matches(name, cls.model_fields):
            text = f"{cls.__name__} has no field {name!r}, and its recipe no such setting"
            near = did_you_mean(name, cls.model_fields)
            raise Problems([ConfigError(f"{text}; {near}")])


def _problems(at: str, error: ValidationError, cls: type[BaseModel]) -> Problems:
    return Problems([ConfigError(f"{at}: {text}") for text in explain_validation(error, cls)])


def _class_named(name: str) -> type[BaseModel]:
    """Return the recipe of this name, as far as it has been imported."""
    left = Recipe.__subclasses__()
    while left:
        cls = left.pop()
        if cls.__name__ == name:
            return cls
        left += cls.__subclasses__()
    return BaseModel


def _outcome(
    ledger: Ledger,
    store: AdapterChoice,
    options: WorkerOptions,
    on_change: Listener,
    *,
    retry_failed: bool,
) -> ExperimentOutcome:
    driver = driver_of(ledger, store, options, on_change)
    with handling_signals(driver.stop):  # the second Ctrl-C ends the points without saving
        statuses = driver.run(retry_failed=retry_failed)
    outcome = ExperimentOutcome(ledger.name, statuses, ledger.blobs)
    if driver.stopping and not outcome.completed:
        raise Interrupted(
            f"the experiment {ledger.name!r} was stopped, and its running points have saved their "
            f"progress; its method `resume` continues it: resume({ledger.name!r})"
        )
    return outcome
