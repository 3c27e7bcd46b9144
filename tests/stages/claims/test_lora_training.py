"""A claim extractor is trained from Python: configuration, progress, result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.local.blobs import LocalBlobs
from kitchen.errors import ConfigError, DataError
from kitchen.runs.status import Event
from kitchen.runs.store import read_run, run_names
from stages.claims.lora_training import LoraConfig, run, submit
from tests.support.claims import CLAIMS

ROWS = [
    {"prompt": "Document 10:\nTea.", "expected_output": f"CLAIM[c1]: {row['claim']}"}
    for row in CLAIMS
]
SMALL = {"epochs": 2, "batch_size": 2, "lora_rank": 4, "learning_rate": 0.1, "warmup_steps": 0}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "", "name is required"),
        ("base_model", "", "base_model is required"),
        ("name", "../x", "name is '../x': .* cannot be the name of a run"),
        ("lora_rank", 0, "lora_rank is 0: input should be greater than 0"),
        ("lora_rank", 1.5, "lora_rank is 1.5: input should be a valid integer"),
        ("lora_rank", "16", "lora_rank is '16': input should be a valid integer"),
        ("epochs", None, "epochs is None: input should be a valid integer"),
        ("batch_size", True, "batch_size is True: input should be a valid integer"),
        ("learning_rate", 0.0, "learning_rate is 0.0: input should be greater than 0"),
        ("learning_rate", float("inf"), "learning_rate is inf: input should be a finite number"),
        ("warmup_steps", -3, "warmup_steps is -3: input should be greater than or equal to 0"),
        ("citation_validity_weight", -1, "citation_validity_weight is -1: input should be"),
        ("seed", -1, "seed is -1: input should be greater than or equal to 0"),
    ],
)
def test_wrong_values_are_errors(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"LoraConfig: {message}"):
        LoraConfig(**{"name": "a", "base_model": "b", field: value})


def test_every_wrong_value_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"name is required; .*; learning_rate is -1: .*; seed is"
    ):
        LoraConfig("", "", learning_rate=-1, seed=-1)


def test_the_defaults_are_those_of_the_specification() -> None:
    config = LoraConfig("a", "b")
    assert (config.lora_rank, config.lora_alpha, config.learning_rate) == (16, 32, 2e-4)
    assert (config.epochs, config.batch_size, config.warmup_steps) == (3, 8, 100)
    assert config.citation_validity_weight == 5.0


def test_a_training_reports_progress_and_its_result(tmp_path: Path) -> None:
    events: list[Event] = []
    config = LoraConfig("extractor", "tiny", **SMALL)
    result = run(config, ROWS, on_progress=events.append, runs=tmp_path, training="fake")
    steps = [event for event in events if event.kind == "progress" and event.loss is not None]
    assert [event.kind for event in events][:: len(events) - 1] == ["start", "complete"]
    assert [(event.epoch, event.step) for event in steps][-1] == (2, 6)
    assert steps[0].loss is not None
    assert result.final_loss == steps[-1].loss
    assert result.final_loss < steps[0].loss
    assert result.duration > 0
    assert result.checkpoint is not None
    blobs = LocalBlobs(str(tmp_path))
    assert list(run_names(blobs)) == ["extractor"]
    settings = read_run(blobs, "extractor")["order"]["settings"]
    assert (settings["lora_alpha"], settings["penalty"]["weight"]) == (32.0, 5.0)


def test_a_submitted_training_can_be_awaited(tmp_path: Path) -> None:
    started = submit(LoraConfig("a", "tiny", **SMALL), ROWS, runs=tmp_path, training="fake")
    assert started.result(timeout=60).loss is not None
    assert started.status().state == "completed"


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"prompt": "a"}],
        [{"completion": "a"}],
        [{"prompt": b"a", "completion": "a"}],
        [{"prompt": "a", "completion": "\ud800"}],
        [{"prompt": "a", "completion": " "}],
        ["prompt, completion"],
    ],
)
def test_rows_without_texts_are_errors(rows: list[Any], tmp_path: Path) -> None:
    with pytest.raises(DataError):
        run(LoraConfig("a", "tiny"), rows, runs=tmp_path, training="fake")
    assert not list(tmp_path.iterdir())


def test_equal_rows_share_a_file_that_stays_as_it_is(tmp_path: Path) -> None:
    def train(name: str) -> Path:
        run(LoraConfig(name, "tiny", **SMALL), ROWS, runs=tmp_path, training="fake")
        [path] = (tmp_path / "datasets").iterdir()
        return path

    path = train("first")
    content, identity = path.read_bytes(), path.stat().st_ino
    assert train("second").stat().st_ino == identity
    path.write_bytes(content[:10])
    assert train("third").read_bytes() == content


def test_columns_that_are_not_read_are_refused(tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "system": "Be brief."}]
    with pytest.raises(DataError, match="row 1: the column 'system' is not supported"):
        submit(LoraConfig("a", "tiny"), rows, runs=tmp_path, training="fake")
