"""claim_extraction on the fake: it learns, penalises wrong citations and publishes measures."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.errors import ConfigError, DataError
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from recipes.claim_extraction import ClaimExtraction
from stages.claims.measures import MEASURES
from tests.support.claims import CLAIM_SPLITS, CLAIMS, CORPUS
from tests.support.killed_runs import order_of
from tests.support.recording import RecordingObserver

DATA = {
    "claims": CLAIM_SPLITS,
    "rows": {"train": CLAIMS},
    "documents": {"train": CORPUS},
    "new": {"train": CLAIMS[1:3]},
}


def run(**settings: Any) -> tuple[RecordingObserver, FakeBlobs]:
    seen, blobs = RecordingObserver(), FakeBlobs()
    defaults: dict[str, Any] = {
        "model": "tiny",
        "batch_size": 2,
        "epochs": 4,
        "learning_rate": 0.05,
        "eval_every": 6,
        "evaluation": {"max_tokens": 60},
    }
    recipe = ClaimExtraction(**{**defaults, **settings})
    kitchen = Kitchen(FakeTraining(blobs), FakeDatasets(DATA), None, blobs)
    execute(order_of(recipe), recipe, kitchen, "run", [seen])
    return seen, blobs


def test_both_losses_fall_and_measures_are_published() -> None:
    seen, blobs = run(penalty={"weight": 20.0})
    losses, penalties = seen.series("loss"), seen.series("penalty")
    assert len(losses) == 12
    assert losses[-1] < 0.8 * losses[0]
    assert min(penalties[-3:]) < min(penalties[:3])
    assert seen.series("held_out_loss")[-1] < losses[0]
    assert seen.series("claims_dev/citation_valid") == [1.0]
    assert seen.series("claims_dev/schema_low") == [0.0]
    rows = read_journal(blobs, "run", "samples")
    assert [row["claim"] for row in rows] == ["0", "1", "2"]
    assert all(row["set"] == "claims_dev" and row["item"] for row in rows)
    assert rows[0]["wanted"].startswith("CLAIM[c1]: Tea helps fever.\nCLAIM[c2] (Document 10)")
    assert {"schema", "c1_f1", "answer_exact"} <= rows[0]["scores"].keys() <= MEASURES.keys()


@pytest.mark.parametrize("penalty", [{"kind": "none"}, {"weight": 0.0}])
def test_no_penalty_is_computed_without_one(penalty: dict[str, Any]) -> None:
    seen, _ = run(max_steps=1, penalty=penalty)
    assert seen.series("penalty") == []
    assert len(seen.series("loss")) == 1


def test_documents_and_held_out_claims_may_be_other_files() -> None:
    reading = {"limit": 1}  # the other rows are in the held-out file, too
    seen, _ = run(dataset="rows", corpus="documents", held_out="new", max_steps=1, reading=reading)
    assert len(seen.series("held_out/schema")) == 1
    assert seen.tables[0].rows == (("held_out", "2 of 2"), ("train", "1, to train on"))


def test_claims_that_cite_documents_need_a_corpus() -> None:
    with pytest.raises(DataError, match=r"fake:rows:train:0: .* set corpus=FILE"):
        run(dataset="rows")


def test_an_unknown_metric_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.metrics=\[bleuu\]"):
        run(evaluation={"metrics": ("bleuu",)})
