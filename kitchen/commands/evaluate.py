"""`kitchen eval`: the recipe that evaluates, cooked with the adapters of the weights."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.commands.opening import made_with
from kitchen.commands.ordering import Larder, Wish
from kitchen.commands.run import Manner, run
from kitchen.yaml import yaml_value

RECIPE = "recipes.evaluate"


def evaluate(typed: str, dataset: str, settings: Sequence[str], larder: Larder, manner: Manner) -> int:
    """Cook it as a run of its own; `settings` are the other ones of that recipe."""
    name, larder = made_with(typed, larder)
    given = (*settings, f"weights={yaml_value(str(name))}", f"dataset={yaml_value(dataset)}")
    return run(Wish(RECIPE, given, None, larder), manner)
