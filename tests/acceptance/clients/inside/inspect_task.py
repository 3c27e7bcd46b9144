"""A task of inspect_ai on the items of the proof: greedy answers, graded by exact match."""

from __future__ import annotations

import json
import os
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

LINES = Path(os.environ["PROOF_ITEMS"]).read_text().splitlines()


@task
def items() -> Task:
    rows = map(json.loads, LINES)
    return Task(
        dataset=[Sample(input=row["prompt"], target=row["completion"]) for row in rows],
        solver=[generate()],
        scorer=exact(),
        config=GenerateConfig(temperature=0, max_tokens=16),
    )
