"""The gate stops a run whose tests fail or whose data does not follow the schema."""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.blobs import LocalBlobs
from kitchen.config.discovery import find_recipe
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import from_mapping
from kitchen.engine.plan import check
from kitchen.errors import ConfigError, DataError, SuiteFailed
from kitchen.ports import BlobStore
from kitchen.types import RunId
from recipes.claim_validation import ClaimValidation
from stages.claims.gate import (
    GateConfig,
    RunTestSuite,
    SchemaConfig,
    SkipGate,
    SuiteConfig,
    ValidateData,
    gate_stages,
)
from stages.claims.validation import SchemaField

FIELDS = (SchemaField("prompt", "string", allow_empty=False), SchemaField("n", "integer"))
RUN = RunId("run")


def rows_file(folder: Path, *rows: Any) -> SchemaConfig:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return SchemaConfig(str(path), FIELDS, shown=2)


def suite(folder: Path, text: str, **options: Any) -> RunTestSuite:
    path = folder / "test_mine.py"
    path.write_text(text)
    return RunTestSuite(SuiteConfig(str(path), **options))


def problems(blobs: BlobStore) -> list[dict[str, Any]]:
    text = blobs.read("run/validation.jsonl")
    assert text is not None
    return [json.loads(line) for line in text.splitlines()]


def test_valid_data_passes_with_its_digest(tmp_path: Path) -> None:
    config = rows_file(tmp_path, {"prompt": "a", "n": 1}, {"prompt": "b", "n": 2})
    blobs = FakeBlobs()
    metrics, facts, _ = ValidateData(config).run(blobs, RUN)
    assert metrics == {"rows_validated": 2}
    assert facts == {"validated.sha256": sha256(Path(config.path).read_bytes()).hexdigest()}
    assert problems(blobs) == []


@pytest.mark.parametrize("kind", ["fake", "local"])
def test_every_problem_is_in_the_file(kind: str, tmp_path: Path) -> None:
    blobs = FakeBlobs() if kind == "fake" else LocalBlobs(str(tmp_path / "runs"))
    blobs.write("run/validation.jsonl", b"of an earlier attempt\n")
    config = rows_file(tmp_path, {"prompt": " ", "n": "1"}, {"n": 1}, {"prompt": "b", "n": 2})
    with pytest.raises(DataError) as caught:
        ValidateData(config).run(blobs, RUN)
    assert problems(blobs) == [
        {"line": 1, "field": "prompt", "message": "is empty"},
        {"line": 1, "field": "n", "message": 'must be of type integer, and is "1"'},
        {"line": 2, "field": "prompt", "message": "is missing"},
    ]
    assert "3 problems in 3 rows" in str(caught.value)
    assert "line 1: n must be of type integer" in str(caught.value)
    assert "and 1 more" in str(caught.value)
    assert blobs.locate("run/validation.jsonl") in str(caught.value)


def test_a_secret_in_the_data_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted_secret")
    blobs = FakeBlobs()
    with pytest.raises(DataError):
        ValidateData(rows_file(tmp_path, {"prompt": "a", "n": "hf_planted_secret"})).run(blobs, RUN)
    assert problems(blobs)[0]["message"] == 'must be of type integer, and is "***"'


def test_data_without_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no rows"):
        ValidateData(rows_file(tmp_path)).run(FakeBlobs(), RUN)


def test_a_passing_suite_is_counted(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    tests = "def test_one():\n    print('shown')\n\ndef test_two():\n    pass\n"
    metrics, _ = suite(tmp_path, tests, args=("-k", "one", "-s")).run(blobs, RUN)
    assert metrics == {"tests_passed": 1, "tests_skipped": 0}
    assert b"shown" in (blobs.read("run/tests.txt") or b"")


def test_a_failing_suite_stops_the_run(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    with pytest.raises(SuiteFailed) as caught:
        suite(tmp_path, "def test_a():\n    assert 1 == 2\n").run(blobs, RUN)
    assert caught.value.exit_code == 6
    assert "1 failed or could not run, 0 passed" in str(caught.value)
    assert "test_mine.py::test_a" in str(caught.value)
    assert "assert 1 == 2" in str(caught.value)
    assert b"assert 1 == 2" in (blobs.read("run/tests.txt") or b"")


def test_wrong_arguments_of_pytest_are_a_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--no-such-option"):
        suite(tmp_path, "def test_a(): pass\n", args=("--no-such-option",)).run(FakeBlobs(), RUN)


def test_missing_files_are_found_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file or folder .*none"):
        RunTestSuite(SuiteConfig(str(tmp_path / "none"))).verify()
    with pytest.raises(DataError, match=r"no file .*none.jsonl"):
        ValidateData(SchemaConfig(str(tmp_path / "none.jsonl"), FIELDS)).verify()


def test_a_gate_has_the_stages_it_needs(tmp_path: Path) -> None:
    tests, data = SuiteConfig(str(tmp_path)), rows_file(tmp_path)
    assert gate_stages(GateConfig()) == []
    assert gate_stages(GateConfig(tests, data)) == [RunTestSuite(tests), ValidateData(data)]
    assert gate_stages(GateConfig(tests, data, skip=True)) == [SkipGate()]
    for config in (GateConfig(), GateConfig(tests, skip=True)):
        with pytest.raises(ConfigError, match=r"set gate\.tests\.path"):
            gate_stages(config, required=True)


def test_settings_make_the_gate_of_the_recipe() -> None:
    settings = {
        "gate.tests.path": "tests",
        "gate.data": {"path": "rows.jsonl", "fields": [{"name": "prompt", "type": "string"}]},
    }
    resolved = resolve_settings(
        find_recipe("recipes.claim_validation"), list(from_mapping(settings, "settings"))
    )
    assert not resolved.problems
    recipe = resolved.recipe
    assert isinstance(recipe, ClaimValidation)
    assert recipe.gate.tests == SuiteConfig(str(Path.cwd() / "tests"))
    assert recipe.gate.data is not None
    assert recipe.gate.data.fields == (SchemaField("prompt", "string"),)
    assert ClaimValidation.model_validate(recipe.model_dump(mode="json")) == recipe
    plan = check(recipe.workflow(), [BlobStore, RunId])
    assert [line.text.partition("(")[0] for line in plan.lines] == ["RunTestSuite", "ValidateData"]
    assert not plan.problems


MEASURE = """
import json, re, sys
from pathlib import Path
from adapters.local.blobs import LocalBlobs
from kitchen.errors import DataError
from kitchen.types import RunId
from stages.claims.gate import SchemaConfig, ValidateData
from stages.claims.validation import SchemaField

fields = (SchemaField("prompt", "string"), SchemaField("completion", "string", max_length=40))
stage = ValidateData(SchemaConfig(sys.argv[1], fields))
try:
    stage.run(LocalBlobs(sys.argv[2]), RunId("run"))
except DataError as error:
    print(str(error).splitlines()[0], file=sys.stderr)
status = Path("/proc/self/status").read_text()
print(int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """400 MB of which every second row has a problem, validated in under 200 MB."""
    path = tmp_path / "rows.jsonl"
    short = json.dumps({"prompt": "p" * 460, "completion": "c" * 20}) + "\n"
    long = json.dumps({"prompt": "p" * 430, "completion": "c" * 50}) + "\n"
    block = (short + long) * 1000
    with path.open("w") as file:
        for _ in range(400):
            file.write(block)
    assert path.stat().st_size > 400e6
    command = [sys.executable, "-c", MEASURE, str(path), str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "400,000 problems in 800,000 rows" in done.stderr
    assert float(done.stdout) < 200, f"{done.stdout} MB"
    written = (tmp_path / "runs/run/validation.jsonl").read_text()
    assert written.count("\n") == 400_000
    print(f"peak memory {done.stdout.strip()} MB for {path.stat().st_size / 1e6:.0f} MB")
