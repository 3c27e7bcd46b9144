"""claim_extraction on the fake: scores of meaning, flags, targets, and resuming with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.errors import ConfigError, KitchenError, QualityError
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from kitchen.types import Table
from kitchen.workflow import walk
from recipes.claim_extraction import ClaimExtraction
from stages.claims.open_scorers import OpenScorers
from stages.claims.quality import CheckTargets
from tests.support.claims import CLAIM_SPLITS
from tests.support.killed_runs import order_of
from tests.support.recording import RecordingObserver


def run(
    seen: RecordingObserver | None = None, **settings: Any
) -> tuple[RecordingObserver, FakeBlobs]:
    seen, blobs = seen or RecordingObserver(), FakeBlobs()
    defaults: dict[str, Any] = {
        "model": "tiny",
        "batch_size": 3,
        "epochs": 3,
        "learning_rate": 0.05,
        "eval_every": 2,
        "evaluation": {"max_tokens": 60},
    }
    recipe = ClaimExtraction(**{**defaults, **settings})
    kitchen = Kitchen(FakeTraining(blobs), FakeDatasets({"claims": CLAIM_SPLITS}), None, blobs)
    execute(order_of(recipe), recipe, kitchen, "run", [seen])
    return seen, blobs


def table(seen: RecordingObserver, title: str) -> Table:
    return next(table for table in seen.tables if table.title.startswith(title))


def test_nothing_of_meaning_is_measured_by_default() -> None:
    seen, blobs = run()
    assert {row[3] for row in table(seen, "Entailment and similarity").rows} == {"not measured"}
    assert seen.series("claims_dev/entailment") == seen.series("entailment_auc") == []
    verdicts = {row[1]: row[5] for row in table(seen, "Quality targets").rows}
    assert verdicts["entailment"] == verdicts["overall_pass"] == "not met (not measured)"
    assert verdicts["train_citation_invalid"] == verdicts["convergence_steps"] == "met"
    assert verdicts["loss_reduction"] == "not met"
    values = {row[1]: row[3] for row in table(seen, "Quality targets").rows}
    losses = seen.series("loss")
    expected = 1 - sum(losses[-2:]) / sum(losses[:2])
    assert float(values["loss_reduction"]) == pytest.approx(expected, abs=1e-5)
    assert all("entailment" not in row["scores"] for row in read_journal(blobs, "run", "samples"))


def test_the_scorer_is_calibrated_before_training() -> None:
    seen, _ = run(scorers={"entailment": "judge:tiny"}, epochs=1)
    [row] = table(seen, "Calibration of entailment").rows
    assert row[0] == "judge:tiny"
    assert seen.series("entailment_auc_low")[0] <= seen.series("entailment_auc")[0]
    titles = [shown.title.split(",")[0].split(" (")[0] for shown in seen.tables]
    assert titles.index("Calibration of entailment") < titles.index("Claims")


def test_flags_are_a_file_of_the_run() -> None:
    seen, blobs = run()
    lines = (blobs.read("run/antagonist_flags.jsonl") or b"").decode().splitlines()
    flags = [json.loads(line) for line in lines]
    assert all(flag["severity"] in ("HIGH", "MEDIUM") and flag["issues"] for flag in flags)
    assert seen.series("claims_dev/flagged") == [len(flags) / 3]


def test_required_targets_end_the_run_after_its_files(tmp_path: Path) -> None:
    targets = {"at_least": {"schema": 0.9}, "at_most": {}, "required": True}
    answers, seen = tmp_path / "answers.jsonl", RecordingObserver()
    with pytest.raises(QualityError, match="schema") as raised:
        run(seen, targets=targets, output={"predictions": str(answers)}, epochs=1)
    assert raised.value.exit_code == 5
    assert len(answers.read_text("utf-8").splitlines()) == 3
    assert table(seen, "Quality targets").rows[0][:2] == ("claims_dev", "schema")
    assert seen.series("claims_dev/targets_met") == [0.0]


def test_mistakes_are_found_before_the_run() -> None:
    settings: dict[str, Any] = {
        "targets": {"at_least": {"shema": 0.9}},
        "scorers": {"similarity": "path:/no/such/model"},
    }
    stages = {type(step): step for step in walk(ClaimExtraction(**settings).workflow())}
    targets, scorers = stages[CheckTargets], stages[OpenScorers]
    assert isinstance(targets, CheckTargets)
    assert isinstance(scorers, OpenScorers)
    with pytest.raises(ConfigError, match="did you mean 'schema'"):
        targets.verify()
    with pytest.raises(KitchenError):
        scorers.verify(FakeTraining())
