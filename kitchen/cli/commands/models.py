"""`kitchen models`: the registry of models in the store of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kitchen.artifacts.open import open_weights
from kitchen.artifacts.registry import (
    ModelVersion,
    add_version,
    check_alias,
    find_version,
    model_aliases,
    model_names,
    model_versions,
    set_alias,
)
from kitchen.artifacts.weights import parse_typed_name, parse_weights_name, resolve_model
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.console import console, table
from kitchen.config.adapter_choice import DEFAULT_RUNS_FOLDER, AdapterChoice, open_blobs
from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports import BlobStore
from kitchen.runs.store import list_runs, read_journal, read_run, run_exists
from kitchen.secrets import printable
from kitchen.types import Checkpoint, Table

# what the weights in a fact of a run are to it; the other facts are named as they are
_RELATIONS: Mapping[str, str] = {"weights": "trained from", "teacher": "distilled from"}
_DIGEST = ".sha256"  # the end of the fact with the digest of weights
_NO_WEIGHTS = ("data.", "machine.", "samples.")  # beginnings of other facts with a digest
_MOST_ANCESTORS = 20  # a chain of runs that is longer is cut


def list_models(adapters: AdapterChoice, *, json: bool) -> int:
    """Print one line per model, or with `json` all versions."""
    blobs = open_blobs(adapters)
    names = model_names(blobs)
    if json:
        print_json({name: _as_json(blobs, name) for name in names})
        return 0
    if not names:
        where = printable(adapters.runs or DEFAULT_RUNS_FOLDER)
        text = f"there are no models in {where}; `kitchen models add NAME RUN` adds one"
        console().print(text, soft_wrap=True)
        return 0
    rows = tuple(_row(blobs, name) for name in names)
    columns = ("model", "versions", "aliases", "newest", "added, UTC")
    console().print(table(Table("Models", columns, rows)))
    return 0


def _row(blobs: BlobStore, name: str) -> tuple[str, ...]:
    versions = model_versions(blobs, name)
    aliases = [f"{alias}: {version}" for alias, version in model_aliases(blobs, name).items()]
    newest = versions[-1]
    added = newest.added[:16].replace("T", " ")
    return name, str(len(versions)), ", ".join(aliases), newest.weights, added


def _as_json(blobs: BlobStore, name: str) -> Mapping[str, Any]:
    versions = [asdict(version) for version in model_versions(blobs, name)]
    return {"versions": versions, "aliases": model_aliases(blobs, name)}


def add_model(name: str, typed: str, alias: str, adapters: AdapterChoice, *, json: bool) -> int:
    """Add weights of a run as a version of a model, and print its name."""
    if alias:
        check_alias(alias)
    blobs = open_blobs(adapters)
    if resolve_model(parse_typed_name(typed, blobs), blobs).kind != "run":
        near = did_you_mean(typed, [run.id for run in list_runs(blobs)])
        raise ConfigError(
            f"{typed}: only weights of a run can be registered, as RUN[@STEP], and there is no "
            f"such run; {near}"
        )
    with open_weights(typed, adapters) as opened:
        weights = opened.weights
    checkpoint, record = weights.source, weights.record or {}
    if not isinstance(checkpoint, Checkpoint) or checkpoint.kind == "training":
        raise ConfigError(
            f"{typed}: the run has no exported weights yet, and a save point is deleted when the "
            "run goes on; complete the run first"
        )
    at = parse_weights_name(weights.name).at
    version, is_new = add_version(
        blobs,
        name,
        alias,
        run=weights.run,
        at=at if at == "final" else str(checkpoint.step),
        step=checkpoint.step,
        sha256=checkpoint.sha256,
        recipe=str(record.get("recipe", "")),
        base_model=weights.model,
    )
    if json:
        print_json({**asdict(version), "new": is_new})
        return 0
    also = f"; {alias} stands for it now" if alias else ""
    text = "is" if is_new else "was already"
    console().print(f"{version} {text} {version.weights}{also}", soft_wrap=True)
    return 0


def alias_model(typed: str, alias: str, adapters: AdapterChoice) -> int:
    """Let an alias stand for a version."""
    blobs = open_blobs(adapters)
    version = _typed_version(typed, blobs)
    set_alias(blobs, version, alias)
    console().print(f"model:{version.name}@{alias} is {version}", soft_wrap=True)
    return 0


def show_model(typed: str, adapters: AdapterChoice, *, json: bool) -> int:
    """Print a version with its lineage and the evaluation of its run."""
    blobs = open_blobs(adapters)
    version = _typed_version(typed, blobs)
    lineage = list(_lineage(version, blobs))
    if json:
        keys = ("relation", "weights", "sha256")
        ancestors = [dict(zip(keys, of, strict=True)) for of in lineage]
        print_json({**asdict(version), "lineage": ancestors})
        return 0
    aliases = [
        alias
        for alias, number in model_aliases(blobs, version.name).items()
        if number == version.version
    ]
    rows = (
        ("weights", version.weights),
        ("aliases", ", ".join(aliases)),
        ("recipe", version.recipe),
        ("optimiser steps", str(version.step)),
        ("SHA-256", version.sha256),
        ("base model", version.base_model),
        ("added", version.added),
    )
    out = console()
    out.print(table(Table(str(version), ("property", "value"), rows)))
    out.print()
    related = tuple((relation, name, digest[:12]) for relation, name, digest in lineage)
    out.print(table(Table("Lineage", ("relation", "weights", "SHA-256"), related)))
    for evaluation in _evaluations(version, blobs):
        out.print()
        out.print(table(evaluation))
    return 0


def _typed_version(typed: str, blobs: BlobStore) -> ModelVersion:
    name, _, at = typed.removeprefix("model:").partition("@")
    return find_version(blobs, name, at)


def _lineage(version: ModelVersion, blobs: BlobStore) -> Iterator[tuple[str, str, str]]:
    """Yield the weights that a version comes from: relation, name and digest, the nearest first."""
    run: str | None = version.run
    for _ in range(_MOST_ANCESTORS):
        if run is None or not run_exists(blobs, run):
            return
        facts = read_run(blobs, run)["facts"]
        for key in _facts_of_weights(facts):
            relation = f"{_RELATIONS.get(key, key.replace('_', ' '))} (of {run})"
            yield relation, str(facts[key]), str(facts[f"{key}{_DIGEST}"])
        parent = facts.get("weights")
        if parent is None:
            digest = str(facts.get(f"model{_DIGEST}", ""))
            yield f"base model (of {run})", str(facts.get("model", "")), digest
            return
        source = resolve_model(parse_weights_name(str(parent)), blobs)
        run = source.name if source.kind == "run" else None


def _facts_of_weights(facts: Mapping[str, Any]) -> Sequence[str]:
    """Return the facts that name weights other than the base model of a run."""
    keys = [key.removesuffix(_DIGEST) for key in facts if key.endswith(_DIGEST)]
    return [
        key for key in keys if key in facts and key != "model" and not key.startswith(_NO_WEIGHTS)
    ]


def _evaluations(version: ModelVersion, blobs: BlobStore) -> Iterator[Table]:
    """Yield the tables of evaluations with intervals that the run has recorded."""
    if not run_exists(blobs, version.run):
        return
    last = {row["title"]: row for row in read_journal(blobs, version.run, "tables")}
    for title, row in last.items():
        if title.endswith("intervals"):
            rows = tuple(tuple(cells) for cells in row["rows"])
            of = "" if version.at == "final" else f", of run:{version.run}@final"
            yield Table(f"{title}{of}", tuple(row["columns"]), rows)
