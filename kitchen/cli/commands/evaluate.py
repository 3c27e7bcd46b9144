"""`kitchen eval`: a run of the recipe that evaluates, with the adapters of the weights."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.artifacts.open import missing_run_hint, rendering_settings, resolve_weights
from kitchen.artifacts.weights import WeightsName, resolve_model
from kitchen.cli.commands.held_out_rows import held_out_of_run
from kitchen.cli.commands.run import OutputOptions, run
from kitchen.cli.console import console
from kitchen.config.adapter_choice import AdapterChoice, open_blobs
from kitchen.config.discovery import find_recipe
from kitchen.config.request import RunRequest
from kitchen.config.settings import nested_settings
from kitchen.config.sources import Setting, from_mapping
from kitchen.config.yaml import yaml_value
from kitchen.errors import BackendError
from kitchen.runs.store import read_run

RECIPE = "recipes.evaluate"


def evaluate(
    weights: str,
    dataset: str | None,
    settings: Sequence[str],
    adapters: AdapterChoice,
    output: OutputOptions,
) -> int:
    """Evaluate weights in a new run; `settings` take precedence over those of the run.

    By default, the rows are those that the run held out, rendered as in training.
    """
    name, adapters = resolve_weights(weights, adapters, ("training", "hub", "datasets"))
    source = resolve_model(name, open_blobs(adapters))
    rows = held_out_of_run(source, dataset, settings, adapters)
    dataset_setting = f"dataset={yaml_value(rows.dataset)}"
    arguments = (*settings, f"weights={yaml_value(str(name))}", dataset_setting)
    if rows.settings:
        note = " ".join([f"the rows that {name} held out: {dataset_setting}", *rows.as_typed()])
        console(to_stderr=True).print(note, soft_wrap=True)
    implied = (*_rendering(source, adapters), *from_mapping(rows.settings, str(name)))
    code = run(RunRequest(RECIPE, arguments, (), adapters, implied=implied), output)
    if code == BackendError.exit_code:
        hint = missing_run_hint(name, adapters, open_blobs(adapters))
        if hint:
            console(to_stderr=True).print(f"  {hint}", soft_wrap=True)
    return code


def _rendering(name: WeightsName, adapters: AdapterChoice) -> Sequence[Setting]:
    """Return how the data of a run was rendered, as far as recipes.evaluate has the settings."""
    if name.kind != "run":
        return ()
    default = find_recipe(RECIPE).model_fields["rendering"].default
    known = nested_settings(type(default))
    recorded = rendering_settings(read_run(open_blobs(adapters), name.name))
    rendering = {key: value for key, value in recorded.items() if key in known}
    changed = {key: value for key, value in rendering.items() if value != getattr(default, key)}
    if changed:
        note = f"rendering={yaml_value(changed)}, as {name} was trained"
        console(to_stderr=True).print(note, soft_wrap=True)
    return list(from_mapping({"rendering": rendering}, str(name)))
