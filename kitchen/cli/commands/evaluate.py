"""`kitchen eval`: the recipe that evaluates, cooked with the adapters of the weights."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.artifacts.open import missing_run_hint, rendering_settings, resolve_weights
from kitchen.artifacts.weights import WeightsName
from kitchen.cli.commands.run import OutputOptions, run
from kitchen.cli.console import console
from kitchen.config.discovery import find_recipe
from kitchen.config.request import AdapterChoice, RunRequest, open_blobs
from kitchen.config.settings import nested_settings
from kitchen.config.sources import Setting, from_mapping
from kitchen.config.yaml import yaml_value
from kitchen.errors import BackendError
from kitchen.runs.store import read_run

RECIPE = "recipes.evaluate"


def evaluate(
    typed: str,
    dataset: str,
    settings: Sequence[str],
    adapter_choice: AdapterChoice,
    output: OutputOptions,
) -> int:
    """Cook it as a run of its own; `settings` are the other ones of that recipe, over how the run
    was rendered.
    """
    name, adapter_choice = resolve_weights(typed, adapter_choice, ("training", "hub", "datasets"))
    given = (*settings, f"weights={yaml_value(str(name))}", f"dataset={yaml_value(dataset)}")
    code = run(
        RunRequest(RECIPE, given, None, adapter_choice, implied=_rendering(name, adapter_choice)),
        output,
    )
    if code == BackendError.exit_code and (
        no_run := missing_run_hint(name, adapter_choice, open_blobs(adapter_choice))
    ):
        console(to_stderr=True).print(f"  {no_run}", soft_wrap=True)
    return code


def _rendering(name: WeightsName, adapter_choice: AdapterChoice) -> Sequence[Setting]:
    """How a run was trained, as far as the recipe that evaluates knows such settings."""
    if name.kind != "run":
        return ()
    default = find_recipe(RECIPE).model_fields["rendering"].default
    rendering = {
        key: value
        for key, value in rendering_settings(
            read_run(open_blobs(adapter_choice), name.name)
        ).items()
        if key in nested_settings(type(default))
    }
    if changed := {
        key: value for key, value in rendering.items() if value != getattr(default, key)
    }:
        console(to_stderr=True).print(
            f"rendering={yaml_value(changed)}, as {name} was trained", soft_wrap=True
        )
    return list(from_mapping({"rendering": rendering}, str(name)))
