"""A run resumes only with the weights that its completed stages used, wherever it stopped."""

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
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from tests.support.killing import KillAt

ROWS = [{"prompt": "?", "completion": "{}"}] * 4
PAIRS = [{"prompt": "?", "chosen": "{}", "rejected": "no"}] * 4
MIXED = [{"prompt": "?", "completion": answer} for answer in ("{}", "no", "{n}", "n")]
DATA = FakeDatasets(
    {
        "right": {"train": ROWS, "held": ROWS[:2]},
        "mixed": {"train": MIXED, "held": MIXED},
        "pairs": {"train": PAIRS, "held": PAIRS[:2]},
    }
)
SHORT = {"evaluation": {"max_tokens": 4}}
# the first stage after which other weights are refused, by the name of their facts
FIRST = {
    "teacher": "IdentifyWeights",
    "reference": "IdentifyWeights",
    "weights": "IdentifyWeights",
    "start": "IdentifyWeights",
    "judge.start": "IdentifyWeights",
    "reference of rl": "OpenReference",
}


def recipe_that_reads(name: str, folder: Path) -> Recipe:
    """Return a recipe whose facts of this name are of the weights in the folder."""
    weights = f"path:{folder}"
    training = {**SHORT, "model": "any", "batch_size": 4, "eval_every": 0}
    rollouts = {
        "dataset": "right",
        "batch_size": 4,
        "group": 4,
        "steps": 1,
        "playing": {"max_tokens": 12},
    }
    if name == "reference of rl":
        return Rl(model="any", reference=weights, **rollouts)
    if name in ("start", "judge.start"):
        model, judge = (weights, None) if name == "start" else ("run:first", weights)
        return Rlhf(
            model=model,
            reward="letters",
            judge={"batch_size": 4, "model": judge},
            ranking={"pairs": 2, "tries": 8},
            **rollouts,
        )
    if name == "teacher":
        return DistillationOffPolicy(
            dataset="right", teacher=weights, writing={"max_tokens": 9}, **training
        )
    if name == "reference":
        return Dpo(dataset="pairs", reference=weights, **training)
    return Evaluate(dataset="right", weights=weights, **SHORT)


@pytest.fixture(scope="module")
def trained() -> dict[str, FakeBlobs]:
    """By data set, blobs with two runs of sl_basic that trained on it: `first` and `other`."""
    stores = {}
    for dataset in ("mixed", "right"):
        blobs = FakeBlobs()
        for run, epochs in (("first", 60), ("other", 50)):
            recipe = SlBasic(
                model="any",
                dataset=dataset,
                batch_size=4,
                epochs=epochs,
                learning_rate=0.2,
                eval_every=0,
            )
            kitchen.run(recipe, training=FakeTraining(blobs), datasets=DATA, blobs=blobs, name=run)
        stores[dataset] = blobs
    return stores


def copied(blobs: FakeBlobs) -> FakeBlobs:
    copy = FakeBlobs()
    for name in blobs.list():
        copy.write(name, blobs.read(name) or b"")
    return copy


@pytest.mark.slow
@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("name", FIRST)
def test_other_weights_are_refused_wherever_the_run_was_stopped(
    name: str, trained: dict[str, FakeBlobs], tmp_path: Path
) -> None:
    blobs = copied(trained["mixed" if "start" in name else "right"])
    folder = tmp_path / "weights"
    training = FakeTraining(blobs)
    [first] = training.checkpoints("first/weights/final")
    [other] = training.checkpoints("other/weights/final")
    training.export(first, folder)
    recipe_to_kill = recipe_that_reads(name, folder)
    whole = KillAt()
    kitchen.run(recipe_to_kill, training=training, datasets=DATA, blobs=blobs, observers=[whole])
    from_call = whole.calls - whole.stages[::-1].index(FIRST[name])
    # the last call of each stage
    stops = {title: at for at, title in enumerate(whole.stages, 1) if at >= from_call}.values()
    assert stops
    for at in stops:
        with pytest.raises(RunFailed, match="Killed"):
            kitchen.run(
                recipe_to_kill,
                training=FakeTraining(blobs),
                datasets=DATA,
                blobs=blobs,
                name=f"at-{at}",
                observers=[KillAt(at)],
            )
    shutil.rmtree(folder)
    training.export(other, folder)
    fact = name.partition(" ")[0]
    for at in stops:
        with pytest.raises(ResumeError, match=rf"began with {fact}\.sha256 = .*start a new run"):
            kitchen.resume(
                f"at-{at}", training=FakeTraining(blobs), datasets=DATA, blobs=blobs
            ).finish()
