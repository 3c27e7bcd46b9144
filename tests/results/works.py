"""What each recipe is shown to learn: which runs a seed takes, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import kitchen
from adapters.local.blobs import LocalBlobs
from kitchen.runs import run_names, run_summary

Measures = Mapping[str, float]


@dataclass(frozen=True)
class Cooking:
    """The runs of one seed, in a folder where finished ones are found again and others are gone on with."""

    root: Path
    seed: int
    training: str = "peft"

    def cook(self, recipe: str, name: str, settings: Mapping[str, Any]) -> tuple[str, Measures]:
        """The name of the run, and the last of each of its metrics."""
        blobs, run = LocalBlobs(str(self.root)), f"{name}-{self.seed}"
        if run not in run_names(blobs):
            kitchen.run(recipe, name=run, runs=self.root, training=self.training,
                        settings={**settings, "seed": self.seed})
        elif run_summary(blobs, run).status != "completed":
            kitchen.go_on(run, runs=self.root).finish()
        return run, run_summary(blobs, run).metrics


@dataclass(frozen=True)
class Work:
    """One row of the table: what is measured before and after, and what has to be reached."""

    title: str
    goals: tuple[str, ...]  # in words, one per measure
    measure: Callable[[Cooking], Measures]


HALF = {"max_steps": 35, "eval_every": 0, "save_every": 0, "reading.held_out_rows": 100}


def half_trained(cooking: Cooking) -> str:
    """The weights of a model that can do the task in part."""
    return f"run:{cooking.cook('recipes.sl_basic', 'half', HALF)[0]}"


def dpo_on_ingredients(cooking: Cooking) -> Measures:
    """The right answer against the model's own wrong ones."""
    _, found = cooking.cook("recipes.dpo", "dpo", {
        "model": half_trained(cooking), "reading.limit": 320, "reading.held_out_rows": 100, "learning_rate": 1e-4,
        "batch_size": 16, "epochs": 2, "eval_every": 0, "save_every": 0})
    before, after = (found[f"new_names/exact_match_{when}"] for when in ("before", "after"))
    return {"pair accuracy": found["new_names/pair_accuracy"], "exact match before": before,
            "exact match after": after, "exact match gained": after - before, "kl, nats an answer": found["kl"]}


WORKS: Mapping[str, Work] = MappingProxyType({
    "dpo": Work("`dpo` on ingredients, from a half-trained start, on new names",
                ("pair accuracy at least 0.9", "exact match gained at least 0.10"), dpo_on_ingredients),
})
