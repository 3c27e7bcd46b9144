"""Names of weights: their grammar, and the checkpoints that they find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen, Observer
from kitchen.artifacts.publish import evaluation
from kitchen.artifacts.weights import (
    find_weights,
    naming_damaged,
    parse_typed_name,
    parse_weights_name,
)
from kitchen.config.order import Order
from kitchen.errors import BackendError, ConfigError, CorruptCheckpoint, QualityError
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from kitchen.types import Checkpoint
from recipes.sl_basic import SlBasic
from tests.support.killing import KillAt, Killed

CHATS = [
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "{}"}]}
] * 8
DATA = FakeDatasets({"chats": {"train": CHATS, "held": CHATS[:2]}})


def trained(
    blobs: FakeBlobs, *observers: Observer, run: str = "dish", **settings: Any
) -> FakeTraining:
    """Train for 12 steps with a held-out loss and an export after every third."""
    training = FakeTraining(blobs)
    defaults = {"batch_size": 2, "epochs": 3, "learning_rate": 0.5, "eval_every": 3}
    recipe = SlBasic(
        **{"model": "tiny", "dataset": "chats", "warmup_steps": 0, **defaults, **settings}
    )
    order = Order("recipes.sl_basic:SlBasic", recipe.model_dump(mode="json"))
    execute(order, recipe, Kitchen(training, DATA, None, blobs), run, observers)
    return training


@pytest.fixture
def blobs() -> FakeBlobs:
    return FakeBlobs()


@pytest.mark.parametrize(
    ("text", "kind", "name", "at"),
    [
        ("owner/model", "hub", "owner/model", ""),
        ("gpt2", "hub", "gpt2", ""),
        ("owner/model@v1.0", "hub", "owner/model", "v1.0"),
        ("owner/model@refs/pr/3", "hub", "owner/model", "refs/pr/3"),
        ("packaged:tiny", "packaged", "tiny", ""),
        ("path:./a folder@home", "path", "./a folder@home", ""),
        ("path:C:/models", "path", "C:/models", ""),
        ("run:dish", "run", "dish", "final"),
        ("run:dish@best", "run", "dish", "best"),
        ("run:dish@0050", "run", "dish", "50"),
        ("tinker://a/weights/b", "tinker", "//a/weights/b", ""),
    ],
)
def test_names_parse_and_print_round_trip(text: str, kind: str, name: str, at: str) -> None:
    found = parse_weights_name(text)
    assert (found.kind, found.name, found.at) == (kind, name, at)
    assert parse_weights_name(str(found)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' names no weights; write NAME"),
        ("run:", "names no weights"),
        ("path:", "names no weights"),
        ("@v1", "names no weights"),
        ("run:a/b", "names no weights"),
        ("packaged:tiny@v1", "has one version"),
        ("rum:dish", "'rum' is not a kind of weights; did you mean 'run'"),
        ("run:dish@bset", "did you mean 'best'"),
        ("run:dish@", "by a step, 'final' or 'best', not ''"),
    ],
)
def test_malformed_names_are_explained(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_weights_name(text)
    assert why in str(error.value)


def test_run_may_be_typed_without_prefix(blobs: FakeBlobs) -> None:
    blobs.write("dish/run.json", b"{}")
    assert str(parse_typed_name("dish", blobs)) == "run:dish@final"
    assert str(parse_typed_name("dish@12", blobs)) == "run:dish@12"
    assert str(parse_typed_name("gpt2", blobs)) == "gpt2"
    assert (
        str(parse_typed_name("sl_basic-20261121-055301-3f2a", blobs))
        == "run:sl_basic-20261121-055301-3f2a@final"
    )


def test_model_name_is_its_own_source(blobs: FakeBlobs) -> None:
    found = find_weights("owner/model@v1", FakeTraining(blobs), None)
    assert (found.source, found.model, found.run) == ("owner/model@v1", "owner/model@v1", "")
    with pytest.raises(BackendError):
        find_weights("no model!", FakeTraining(blobs), blobs)


def test_run_name_finds_the_exports_of_the_run(blobs: FakeBlobs) -> None:
    training = trained(blobs)
    for at, path, step in (("", "final", 12), ("@final", "final", 12), ("@9", "step-000009", 9)):
        found = find_weights(f"run:dish{at}", training, blobs)
        assert isinstance(found.source, Checkpoint)
        assert (found.source.path, found.source.step) == (f"dish/weights/{path}", step)
        assert (found.model, found.run) == ("tiny", "dish")
        training.sampler(found.source)


def test_best_is_the_export_with_lowest_held_out_loss(blobs: FakeBlobs) -> None:
    training = trained(blobs, learning_rate=30.0, schedule="constant", keep=1, epochs=4)
    losses = {
        row["step"] + 1: row["held_out_loss"]
        for row in read_journal(blobs, "dish", "metrics")
        if "held_out_loss" in row
    }
    best = min(losses, key=lambda step: losses[step])
    assert best != max(losses), "the run must get worse, else the last is the best anyway"
    found = find_weights("run:dish@best", training, blobs)
    assert isinstance(found.source, Checkpoint)
    assert found.source.step == best


def test_without_held_out_loss_final_weights_are_suggested(blobs: FakeBlobs) -> None:
    with pytest.raises(ConfigError, match=r"no held-out evaluation.* run:dish@final"):
        find_weights("run:dish@best", trained(blobs, eval_every=0), blobs)


@pytest.mark.parametrize(("at", "other"), [("final", None), ("12", None), ("9", 12)])
def test_evaluation_is_that_of_the_final_weights(
    blobs: FakeBlobs, at: str, other: int | None
) -> None:
    found = evaluation(find_weights(f"run:dish@{at}", trained(blobs), blobs), blobs)
    assert found.of_other_step == other
    assert found.run is not None
    assert any("measure" in table.columns for table in found.run.tables)
    assert bool(found.tables()) == (other is None)


def test_deleted_export_is_not_found(blobs: FakeBlobs) -> None:
    training = trained(blobs, keep=1)
    recorded = {row["step"] for row in read_journal(blobs, "dish", "checkpoints")}
    assert 3 in recorded
    with pytest.raises(
        ConfigError,
        match=r"\(completed\) has no weights of step 3; it has: 9, 12, final \(step 12\)",
    ):
        find_weights("run:dish@3", training, blobs)


def test_unknown_run_gets_a_suggestion(blobs: FakeBlobs) -> None:
    training = trained(blobs)
    with pytest.raises(ConfigError, match="there is no run 'dihs'; did you mean 'dish'"):
        find_weights("run:dihs", training, blobs)
    with pytest.raises(ConfigError, match="without a blob store"):
        find_weights("run:dish", training, None)


def test_final_weights_of_a_failed_run_are_found(blobs: FakeBlobs) -> None:
    with pytest.raises(QualityError):
        trained(blobs, learning_rate=1e-6, evaluation={"at_least": 1.0})
    assert find_weights("run:dish", FakeTraining(blobs), blobs).record is not None


def test_unfinished_run_lists_the_weights_it_has(blobs: FakeBlobs) -> None:
    training = trained(blobs, keep=9)
    training.delete(Checkpoint("dish/weights/final", 12, "weights"))
    with pytest.raises(ConfigError, match="has no final weights; it has: 3, 6, 9, 12"):
        find_weights("run:dish", training, blobs)
    for step in (3, 6, 9, 12):
        training.delete(Checkpoint(f"dish/weights/step-{step:06d}", step, "weights"))
    # completed: there is nothing to resume
    with pytest.raises(ConfigError, match=r"has no final weights; it has none$"):
        find_weights("run:dish", training, blobs)
    record = json.loads(blobs.read("dish/run.json") or b"")
    blobs.write("dish/run.json", json.dumps({**record, "status": "interrupted"}).encode())
    for name in blobs.list("dish/save/"):
        blobs.delete(name)
    with pytest.raises(ConfigError, match="it has none; resume the run first"):
        find_weights("run:dish", training, blobs)


def test_interrupted_run_has_the_weights_of_its_last_save_point(
    blobs: FakeBlobs, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        trained(blobs, KillAt(40), save_every=2, eval_every=0)
    training = FakeTraining(blobs)  # as in another process
    found = find_weights("run:dish", training, blobs)
    assert isinstance(found.source, Checkpoint)
    step = found.source.step
    assert 0 < step < 12
    assert found.name == f"run:dish@{step}"
    assert f"last save point, after {step} optimiser steps" in capsys.readouterr().err
    assert find_weights(f"run:dish@{step}", training, blobs).source == found.source
    training.sampler(found.source).close()
    listed = rf"no weights of step 11; it has: .*\b{step} \(save point\)"
    with pytest.raises(ConfigError, match=listed):
        find_weights("run:dish@11", training, blobs)
    trained(blobs, save_every=2, eval_every=0)
    final = find_weights("run:dish", training, blobs).source
    assert isinstance(final, Checkpoint)
    assert final.path == "dish/weights/final"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"step": 1}'])
def test_a_damaged_save_point_does_not_hide_others(
    damage: bytes, blobs: FakeBlobs, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        trained(blobs, KillAt(60), save_every=1, eval_every=0)
    training = FakeTraining(blobs)
    points = [point for point in training.checkpoints("dish/save/") if point.kind == "training"]
    older, newer = points[-2:]
    assert older.step < newer.step
    for damaged, intact in ((older, newer), (newer, older)):
        manifest = f"{damaged.path}/checkpoint.json"
        before = blobs.read(manifest) or b""
        blobs.write(manifest, damage)
        assert find_weights("run:dish", training, blobs).source == intact
        assert f"a damaged save point is skipped: {manifest}" in capsys.readouterr().err
        with pytest.raises(ConfigError, match=rf"no weights of .* {intact.step} \(save point\)"):
            find_weights(f"run:dish@{damaged.step}", training, blobs)
        blobs.write(manifest, before)
    for point in points:
        blobs.write(f"{point.path}/checkpoint.json", damage)
    with pytest.raises(CorruptCheckpoint, match="dish/save/"):
        find_weights("run:dish", training, blobs)


def test_damaged_checkpoint_is_named(blobs: FakeBlobs) -> None:
    training = trained(blobs)
    blobs.write("dish/weights/final/checkpoint.json", b"{")
    with pytest.raises(CorruptCheckpoint, match="dish/weights/final/checkpoint"):
        find_weights("run:dish", training, blobs)
    assert find_weights("run:dish@12", training, blobs).run == "dish"


@pytest.mark.parametrize("at", ["3", "final"])
def test_damaged_weights_are_named_with_others(at: str, blobs: FakeBlobs) -> None:
    training = trained(blobs, keep=9)
    weights = find_weights(f"run:dish@{at}", training, blobs)
    assert isinstance(weights.source, Checkpoint)
    for name in blobs.list(f"{weights.source.path}/"):
        if not name.endswith(".json"):
            blobs.write(name, b"0")
    with (
        pytest.raises(CorruptCheckpoint, match=rf"^run:dish@{at}: .*has also .*run:dish@6,"),
        naming_damaged(weights, training, blobs),
    ):
        training.sampler(weights.source)


def test_damaged_export_does_not_hide_others(blobs: FakeBlobs) -> None:
    training = trained(blobs, keep=9)
    for name in blobs.list("dish/weights/step-000006/"):
        blobs.write(name, b"{")
    for at in ("3", "12", "final", "best"):
        assert find_weights(f"run:dish@{at}", training, blobs).run == "dish"
    with pytest.raises(CorruptCheckpoint, match="step-000006"):
        find_weights("run:dish@6", training, blobs)
    with pytest.raises(
        ConfigError, match=r"no weights of step 7; it has: 3, 6, damaged, 9, 12, final"
    ):
        find_weights("run:dish@7", training, blobs)


def test_unrecorded_export_is_found(blobs: FakeBlobs) -> None:
    training = trained(blobs, keep=9)
    blobs.delete("dish/checkpoints.jsonl")
    for at, step in (("3", 3), ("final", 12)):
        found = find_weights(f"run:dish@{at}", training, blobs)
        assert isinstance(found.source, Checkpoint)
        assert found.source.step == step


def test_record_without_a_model_is_refused(blobs: FakeBlobs) -> None:
    training = trained(blobs)
    record = json.loads(blobs.read("dish/run.json") or b"")
    blobs.write("dish/run.json", json.dumps({**record, "facts": {}}).encode())
    with pytest.raises(ConfigError, match="does not say which model"):
        find_weights("run:dish", training, blobs)
