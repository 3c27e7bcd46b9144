"""Parquet files of a run: reading them back gives the rows of its journals."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from kitchen.errors import ConfigError
from kitchen.runs.parquet import export_parquet
from kitchen.runs.store import read_journal
from tests.support.commands import output
from tests.support.fake_runs import run_recipe

NAMES = ("metrics", "requests", "samples", "tables")


def read_back(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, without nulls, in the types of a journal."""
    table = pyarrow.parquet.read_table(path)
    encoded = {field.name for field in table.schema if field.metadata}
    rows = []
    for row in table.to_pylist():
        values = {key: value for key, value in row.items() if value is not None}
        values |= {key: json.loads(values[key]) for key in encoded if key in values}
        if "started" in values:
            values["started"] = values["started"].isoformat(timespec="milliseconds")
        rows.append(values)
    return rows


def test_journals_are_equal_after_the_round_trip(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    run_recipe("sl_basic", FakeTraining(blobs), blobs)
    paths = export_parquet(blobs, "run", tmp_path / "out")
    assert [path.name for path in paths] == [f"{name}.parquet" for name in NAMES]
    for name, path in zip(NAMES, paths, strict=True):
        rows = read_journal(blobs, "run", name)
        assert len(rows) > 1
        assert read_back(path) == [
            {key: value for key, value in row.items() if value is not None} for row in rows
        ]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "int64"),
        ([1, 2.5], "double"),
        ([2**53 + 1, 0.5], "string"),
        ([2**64], "string"),
        (["a", ""], "string"),
        ([True, False], "bool"),
        ([True, 1], "string"),
        ([{"a": 1}, {}], "string"),
        ([[1, "b"], "text"], "string"),
    ],
    ids=str,
)
def test_column_type_holds_its_values_unchanged(
    values: list[Any], kind: str, tmp_path: Path
) -> None:
    blobs = FakeBlobs()
    rows = [{"n": n, "stage": "S", "step": 0, "x": value} for n, value in enumerate(values)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    blobs.write("run/samples.jsonl", lines.encode())
    *_, samples, _ = export_parquet(blobs, "run", tmp_path / "out")
    field = pyarrow.parquet.read_schema(samples).field("x")
    assert str(field.type) == kind
    assert [row.get("x") for row in read_back(samples)] == values


def test_nan_is_no_null(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    blobs.write("run/metrics.jsonl", b'{"n": 0, "loss": null}\n{"n": 1, "other": 2.0}\n')
    metrics, requests, *_ = export_parquet(blobs, "run", tmp_path / "out")
    first, second = pyarrow.parquet.read_table(metrics).column("loss").to_pylist()
    assert math.isnan(first)
    assert second is None
    columns = pyarrow.parquet.read_schema(requests).names
    assert {"duration_ms", "input_tokens", "error_type"} <= set(columns), "without any rows"


def test_half_of_a_surrogate_pair_is_escaped(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    blobs.write("run/samples.jsonl", b'{"n": 0, "stage": "S", "step": 0, "text": "a\\ud800"}\n')
    table = b'{"n": 0, "title": "T", "columns": ["\\udfff"], "rows": [["\\udfff"]]}\n'
    blobs.write("run/tables.jsonl", table)
    *_, samples, tables = export_parquet(blobs, "run", tmp_path / "out")
    assert read_back(samples)[0]["text"] == "a\\ud800"
    assert read_back(tables)[0]["rows"] == [["\\udfff"]]


@pytest.mark.parametrize(
    ("journal", "row", "named"),
    [
        ("requests", b'{"started": "yesterday"}', "'started' that is not of the type timestamp"),
        ("requests", b'{"step": "x"}', "'step' that is not of the type int64"),
        ("metrics", b'{"stage": 5}', "'stage' that is not of the type string"),
        ("tables", b'{"title": "T", "columns": ["a"], "rows": [[1]]}', "'rows' that is not"),
    ],
)
def test_value_of_a_wrong_type_is_named(
    journal: str, row: bytes, named: str, tmp_path: Path
) -> None:
    blobs = FakeBlobs()
    blobs.write(f"run/{journal}.jsonl", row + b"\n")
    with pytest.raises(ConfigError, match=rf"run/{journal}\.jsonl has a value of {named}"):
        export_parquet(blobs, "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_pyarrow_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'crucible-kitchen\[local\]'"):
        export_parquet(FakeBlobs(), "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_exports_into_a_new_folder(tmp_path: Path) -> None:
    blobs, runs, out = LocalBlobs(str(tmp_path / "runs")), str(tmp_path / "runs"), tmp_path / "out"
    run_recipe("sl_basic", FakeTraining(blobs), blobs)
    arguments = ("runs", "export", "run", "--parquet", "--out", str(out), "--runs", runs)
    assert str(out / "metrics.parquet") in output(0, *arguments)
    assert len(read_back(out / "metrics.parquet")) == len(read_journal(blobs, "run", "metrics"))
    assert "out" in output(2, *arguments), "the folder is in use"
    assert "--parquet" in output(2, "runs", "export", "run", "--runs", runs)
    assert "did you mean 'run'" in output(2, "runs", "export", "runn", "--parquet", "--runs", runs)
    with pytest.raises(ConfigError, match="out"):
        export_parquet(blobs, "run", out)
