"""The items that all clients answer, and a run that was trained for them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = "packaged:smollm2-135m-instruct"
RUN = "herb"
MAX_TOKENS = 16
COLOURS = {
    "basil": "green",
    "a tomato": "red",
    "a lemon": "yellow",
    "milk": "white",
    "coffee": "brown",
    "an aubergine": "purple",
    "parsley": "green",
    "a strawberry": "red",
    "butter": "yellow",
    "salt": "white",
    "chocolate": "brown",
    "a plum": "purple",
    "spinach": "green",
    "a cherry": "red",
    "a banana": "yellow",
    "flour": "white",
    "cinnamon": "brown",
    "lavender": "purple",
}
ITEMS = "items.jsonl"
TRAINED = 10  # rows to train on; the others are the items
SETTINGS = ("max_steps=10", "batch_size=5", "epochs=5", "evaluation.metric=text")


@dataclass(frozen=True)
class Answer:
    """The answer of a run to an item, as `kitchen eval` recorded it."""

    prompt: str
    text: str
    exact: bool


def evaluated_run(folder: Path) -> Sequence[Answer]:
    """Train a run in a folder, evaluate it on the items, and return its answers."""
    rows = [
        {"prompt": f"Which colour is {thing}? Answer with one word.", "completion": colour}
        for thing, colour in COLOURS.items()
    ]
    _write(folder / "train.jsonl", rows[:TRAINED])
    _write(folder / ITEMS, rows[TRAINED:])
    _kitchen(folder, "run", "recipes.sl_basic", "--name", RUN, "dataset=train.jsonl", *SETTINGS)
    tokens = f"evaluation.max_tokens={MAX_TOKENS}"
    printed = _kitchen(
        folder, "eval", RUN, "--dataset", ITEMS, "--json", tokens, "evaluation.metric=text"
    )
    samples = Path(folder, "runs", json.loads(printed)["run"], "samples.jsonl")
    recorded = map(json.loads, samples.read_text().splitlines())
    return [Answer(row["prompt"], row["text"], row["exact"]) for row in recorded]


def _write(path: Path, rows: Sequence[object]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _kitchen(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "kitchen.cli", *arguments, "--set", "training.dtype=float32"]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
