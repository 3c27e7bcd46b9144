"""Recipes that run at once on one client and one store give the same numbers as each alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from kitchen import Event, Recipe
from kitchen.ports import BlobStore
from recipes.dpo import Dpo
from recipes.rl import Rl
from recipes.sl_basic import SlBasic
from tests.support.killed_runs import DATA, training_client
from tests.support.recording import numbers

pytestmark = pytest.mark.usefixtures("letters")
SHORT = {
    "batch_size": 3,
    "epochs": 2,
    "eval_every": 2,
    "warmup_steps": 0,
    "evaluation": {"max_tokens": 6},
}
ALPHABET = [{"prompt": f"say {n}", "completion": "abcdefghijklmnopqrstuvwxyz .,"} for n in range(6)]
MEETINGS = 3  # number of steps at which runs wait for each other


def short_recipes(model: str) -> list[Recipe]:
    """Return three recipes of six optimiser steps each."""
    shared: dict[str, Any] = {
        "model": model,
        "lora_rank": 4,
        "learning_rate": 1e-2,
        "save_every": 2,
    }
    return [
        SlBasic(dataset="chats", **SHORT, **shared),
        Dpo(dataset="pairs", **SHORT, **shared),
        Rl(
            dataset="alphabet",
            reward="letters",
            batch_size=2,
            group=8,
            steps=3,
            updates=2,
            kl_penalty=0.1,
            playing={"max_tokens": 6},
            **shared,
        ),
    ]


@pytest.fixture(params=["fake", "peft"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the name of a training adapter; the local one finds its model in the test's folder."""
    if request.param == "peft":
        pytest.importorskip("torch")
        pytest.importorskip("peft")
        from tests.support.tiny_model import tiny_model

        tiny_model(tmp_path / "model")
    return str(request.param)


@pytest.fixture
def cook(backend: str, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs recipes at once and returns the numbers of each."""

    def run_at_once(recipes: Sequence[Recipe]) -> list[Any]:
        blobs: BlobStore = FakeBlobs()
        data = FakeDatasets({**DATA, "alphabet": {"train": ALPHABET, "held": ALPHABET[:2]}})
        adapters = {
            "training": training_client(backend, blobs, tmp_path),
            "datasets": data,
            "blobs": blobs,
        }
        barrier = threading.Barrier(len(recipes))
        runs = [
            kitchen.submit(
                recipe, **adapters, name=type(recipe).__name__, on_progress=meeting(barrier)
            )
            for recipe in recipes
        ]
        return [numbers(blobs, run.result()) for run in runs]

    return run_at_once


def meeting(barrier: threading.Barrier) -> Callable[[Event], None]:
    """Return a listener that holds a run at its first steps until the others reach them."""
    losses: list[float] = []

    def listen(event: Event) -> None:
        if "loss" in event.metrics and event.kind == "progress" and len(losses) < MEETINGS:
            losses.append(event.metrics["loss"])
            barrier.wait(60)

    return listen


def test_three_recipes_at_once_equal_each_alone(backend: str, cook: Any, tmp_path: Path) -> None:
    recipes = short_recipes(f"path:{tmp_path / 'model'}" if backend == "peft" else "any")
    together, alone = cook(recipes), [cook([recipe])[0] for recipe in recipes]
    assert together == alone
    for metrics, _ in alone:
        assert sum(row.get("grad_norm", 0.0) > 0 for row in metrics) == 6, "each of them learns"
