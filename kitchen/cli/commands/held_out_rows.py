"""The held-out rows of a run, as the settings of recipes.evaluate that choose them."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.artifacts.weights import WeightsName
from kitchen.config.adapter_choice import AdapterChoice, open_blobs
from kitchen.config.order import nested_value
from kitchen.config.request import Problems, ResolvedRequest, resolve_adapters
from kitchen.config.splits import GENERATED, assign_splits
from kitchen.config.yaml import yaml_value
from kitchen.errors import ConfigError, DataError
from kitchen.ports import DatasetStore
from kitchen.recipe import Recipe
from kitchen.runs.store import read_run

# typed settings by which the user chooses the rows
_CHOOSING = ("splits", "reading.held_out", "reading.held_out_rows")


@dataclass(frozen=True)
class HeldOutOfRun:
    """The data set of an evaluation, and settings that leave out the rows a run trained on."""

    dataset: str
    settings: Mapping[str, Any]  # empty for a data set that the run was not trained on

    def as_typed(self) -> Sequence[str]:
        """Return the settings as a user would type them."""
        reading = self.settings.get("reading", {})
        values = {key: value for key, value in self.settings.items() if key != "reading"}
        values |= {f"reading.{key}": value for key, value in reading.items()}
        return [f"{key}={yaml_value(value)}" for key, value in values.items()]


def held_out_of_run(
    name: WeightsName, dataset: str | None, typed: Sequence[str], adapters: AdapterChoice
) -> HeldOutOfRun:
    """Return the held-out rows of a run: of `dataset`, or of its only data set if that is None.

    Raises ConfigError if there is no such data set, and DataError if the data has changed since.
    """
    if name.kind != "run":
        if dataset is None:
            raise ConfigError(f"{name}: name a data set to evaluate on: --dataset NAME")
        return HeldOutOfRun(dataset, {})
    record = read_run(open_blobs(adapters), name.name)
    settings = nested_value(record, "order.settings")
    trained_on = _datasets(settings)
    given = dataset is not None
    dataset = _only(name, trained_on) if dataset is None else dataset
    if dataset.startswith(GENERATED):
        raise ConfigError(
            f"{name}: the problems of {dataset} are generated, and have no rows; the run has their "
            f"held-out rewards (kitchen runs show {name.name}); name another data set to evaluate "
            "on: --dataset NAME"
        )
    same = [each for each in trained_on if os.path.normpath(each) == os.path.normpath(dataset)]
    chooses = any(argument.partition("=")[0] in _CHOOSING for argument in typed)
    reading = settings.get("reading")
    if not same or chooses or not isinstance(reading, Mapping) or "held_out" not in reading:
        return HeldOutOfRun(dataset, {})
    try:
        return HeldOutOfRun(dataset, _chosen(name, dataset, reading, record, _store(adapters)))
    except DataError as error:
        if given:
            raise
        raise DataError(
            f"{name}: its held-out rows cannot be evaluated: {error}; or name another data set "
            "(--dataset NAME)"
        ) from error


def _datasets(settings: Mapping[str, Any]) -> Sequence[str]:
    """Return the data sets that a run with these settings was trained on."""
    for several in ("mixture", "teachers"):
        if settings.get(several):
            return tuple(settings[several])
    dataset = settings.get("preferences") or settings.get("dataset")
    return (dataset,) if isinstance(dataset, str) else ()


def _only(name: WeightsName, datasets: Sequence[str]) -> str:
    if not datasets:
        raise _no_dataset(name)
    if len(datasets) > 1:
        raise ConfigError(
            f"{name}: the run was trained on {len(datasets)} data sets, {', '.join(datasets)}: "
            "choose the one whose held-out rows to evaluate on (--dataset NAME)"
        )
    return datasets[0]


def _no_dataset(name: WeightsName) -> ConfigError:
    return ConfigError(
        f"{name}: the run has no data set with held-out rows; name one to evaluate on: "
        "--dataset NAME"
    )


def _chosen(
    name: WeightsName,
    dataset: str,
    reading: Mapping[str, Any],
    record: Mapping[str, Any],
    store: DatasetStore,
) -> Mapping[str, Any]:
    """Return the settings that choose the held-out rows of a data set as the run did."""
    roles = assign_splits(store.info(dataset), reading.get("train"), reading.get("test"))
    chosen: dict[str, Any] = {"held_out_rows": reading["held_out_rows"]}
    chosen |= {"columns": reading["columns"]} if reading.get("columns") else {}
    chosen |= {"bad_rows": "drop"} if reading.get("bad_rows") == "drop" else {}
    if roles.held_out:
        return {"splits": list(roles.held_out), "reading": chosen}
    if reading.get("stream"):
        raise DataError(
            f"{dataset}: the run streamed its rows and held out some of them, which cannot be "
            "separated from those it trained on; choose splits with other rows (splits=[NAME])"
        )
    _check_unchanged(name, dataset, roles.train, record, store)
    return {"splits": [roles.train], "reading": {**chosen, "held_out": reading["held_out"]}}


def _check_unchanged(
    name: WeightsName, dataset: str, split: str, record: Mapping[str, Any], store: DatasetStore
) -> None:
    """Raise DataError if a split has other rows than the run read, so that others are chosen."""
    facts = record.get("facts", {})
    keys = (f"data.{split}.sha256", f"data.{dataset}.{split}.sha256")
    recorded = next((facts[key] for key in keys if key in facts), None)
    bad_rows: list[DataError] = []
    found = store.load(dataset, split=split, on_bad_row=bad_rows.append).fingerprint
    if recorded is not None and recorded != found:
        raise DataError(
            f"{dataset}: the split {split!r} has changed since the run {name.name!r}, so that its "
            "held-out rows are not known any more, and evaluating on others could measure rows "
            "that it trained on; restore the data, or choose the rows yourself (splits=[NAME])"
        )


def _store(adapters: AdapterChoice) -> DatasetStore:
    resolved = ResolvedRequest(Recipe)  # type: ignore[type-abstract] # no recipe is run
    resolve_adapters(adapters, resolved)
    if resolved.kitchen is None or resolved.kitchen.datasets is None:
        raise Problems(resolved.problems)
    return resolved.kitchen.datasets
