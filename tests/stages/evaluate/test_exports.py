"""Exports that are kept and deleted during training."""

from __future__ import annotations

import pytest

from adapters.fake.training import FakeTraining
from kitchen.types import Lora
from stages.evaluate.exports import ExportedWeights, SavedExports, TrackBestExport
from stages.evaluate.selection import HeldOutMeasures

LOSSES = (5.0, 4.0, 1.0, 3.0, 2.0, 2.5, 2.2)  # the third export is the best


@pytest.mark.parametrize(
    ("last", "stay"),
    [
        (1, [3, 7]),
        (2, [3, 6, 7]),
        (3, [3, 5, 6, 7]),
        (4, [3, 4, 5, 6, 7]),
        (9, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_last_exports_and_the_best_are_kept(last: int, stay: list[int]) -> None:
    client, kept = FakeTraining(), SavedExports()
    session = client.open("any", Lora())
    for number, loss in enumerate(LOSSES, 1):
        saved = session.save_weights(f"soup/weights/{number}").result()
        export = ExportedWeights(saved.path, number, saved.kind, saved.sha256)
        for _ in range(2):  # the same export twice is counted once
            kept, metrics = TrackBestExport(last).run(
                kept, export, HeldOutMeasures({"loss": loss}), client
            )
        there = [int(each.path.rpartition("/")[2]) for each in client.checkpoints("soup/weights/")]
        assert len(there) == min(
            number, last + (min(LOSSES[:number]) not in LOSSES[max(0, number - last) : number])
        )
        assert metrics == {"held_out_loss": loss, "best_held_out_loss": min(LOSSES[:number])}
    assert there == stay == [each.step for each in kept.weights]
    assert kept.best is not None
    assert kept.best.step == 3


def test_exports_of_other_runs_are_not_deleted() -> None:
    """The state of a run from somebody else may name them."""
    client = FakeTraining()
    session = client.open("any", Lora())
    paths = ("stew/weights/1", "soup/other/1", "soup/weights/1", "soup/weights/2")
    saved = [session.save_weights(path).result() for path in paths]
    exports = [ExportedWeights(each.path, 1, each.kind, each.sha256) for each in saved]
    *forged, export = exports
    TrackBestExport(1).run(
        SavedExports(tuple(forged)), export, HeldOutMeasures({"loss": 1.0}), client
    )
    assert [bool(client.checkpoints(path)) for path in paths] == [True, True, False, True]
