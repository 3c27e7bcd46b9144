"""Weights that a kept stage has asked must be the same when a run is gone on with, in whatever stage it was stopped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Recipe
from kitchen.errors import ResumeError, RunFailed
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.sl_basic import SlBasic
from tests.kitchen.test_resume import Fuse

ROWS = [{"prompt": "?", "completion": "{}"}] * 4
PAIRS = [{"prompt": "?", "chosen": "{}", "rejected": "no"}] * 4
DATA = FakeDatasets({"right": {"train": ROWS, "held": ROWS[:2]}, "pairs": {"train": PAIRS, "held": PAIRS[:2]}})
SHORT = {"evaluation": {"max_tokens": 4}}


def dish(name: str, folder: Path) -> Recipe:
    weights, training = f"path:{folder}", {**SHORT, "model": "any", "batch_size": 4, "eval_every": 0}
    if name == "teacher":
        return DistillationOffPolicy(dataset="right", teacher=weights, writing={"max_tokens": 9}, **training)
    if name == "reference":
        return Dpo(dataset="pairs", reference=weights, **training)
    return Evaluate(dataset="right", weights=weights, **SHORT)


@pytest.mark.parametrize("what", ["teacher", "reference", "weights"])
def test_other_weights_are_refused_wherever_the_run_was_stopped(what: str, tmp_path: Path) -> None:
    blobs, folder = FakeBlobs(), tmp_path / "asked"
    training = FakeTraining(blobs)
    for run, epochs in (("asked", 60), ("other", 50)):
        recipe = SlBasic(model="any", dataset="right", batch_size=4, epochs=epochs, learning_rate=0.2, eval_every=0)
        kitchen.run(recipe, training=training, datasets=DATA, blobs=blobs, name=run)
    asked, other = (training.checkpoints(f"{run}/weights/final")[0] for run in ("asked", "other"))
    training.export(asked, folder)
    whole = Fuse()
    kitchen.run(dish(what, folder), training=training, datasets=DATA, blobs=blobs, observers=[whole])
    first = whole.stages.index("IdentifyWeights") + 1
    for at in range(first, whole.calls + 1):
        with pytest.raises(RunFailed, match="Killed"):
            kitchen.run(dish(what, folder), training=FakeTraining(blobs), datasets=DATA, blobs=blobs, name=f"at-{at}",
                        observers=[Fuse(at)])
    shutil.rmtree(folder)
    training.export(other, folder)
    for at in range(first, whole.calls + 1):
        with pytest.raises(ResumeError, match=rf"began with {what}\.sha256 = .*start a new run"):
            kitchen.go_on(f"at-{at}", training=FakeTraining(blobs), datasets=DATA, blobs=blobs).finish()
