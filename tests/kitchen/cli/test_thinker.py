"""`thinker` as a user types it: a pipeline runs, or an error says what is wrong with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from adapters.local.blobs import LocalBlobs
from kitchen.cli.commands.thinker import report
from kitchen.config.pipeline import PipelineOptions, PipelineRun
from kitchen.config.yaml import read_yaml
from kitchen.errors import ConfigError, Interrupted
from kitchen.runs.store import read_run
from stages.claims.pipeline import ClaimPipeline
from stages.claims.setup import set_up_data
from stages.claims.written_files import exported_run, other_base_model
from tests.support.claims import CLAIMS, CORPUS
from tests.support.commands import in_folder, output
from tests.support.hub_server import HubServer
from tests.support.pipeline_files import (
    LORA,
    PIPELINE,
    change,
    thinker,
    write_project,
    write_rows,
    write_scifact,
)

TEST = Path("tests/test_it.py")
PIPELINE_FILE = Path("pipeline.yaml")
LORA_FILE = Path("lora.yaml")
SECRET = "hf_planted_and_never_shown"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    write_project(tmp_path)
    with in_folder(tmp_path):
        yield tmp_path


def record(run: str) -> dict[str, Any]:
    return read_run(LocalBlobs("runs"), run)


def manifest(run: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(Path(f"runs/{run}/manifest.json").read_text())
    return result


def prepared(command: Any = "run", **options: Any) -> PipelineRun:
    return ClaimPipeline().prepare(command, PIPELINE_FILE, PipelineOptions(**options))


def settings(run: PipelineRun) -> dict[str, Any]:
    return {".".join(item.keys): item.value for item in run.settings}


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_one_run_validates_trains_exports_and_evaluates(folder: Path) -> None:
    result = thinker("run", "--name", "first")
    assert result.exit_code == 0, result.output
    assert record("first")["recipe"] == "recipes.claim_extraction:ClaimExtraction"
    assert exported_run(folder / "checkpoints/claims") == "first"
    predictions = lines("predictions.jsonl")
    assert [row["claim_id"] for row in predictions] == ["0", "1", "2"]
    assert predictions[0]["scores"] == lines("runs/first/samples.jsonl")[0]["scores"]
    found = manifest("first")
    assert (found["status"], found["exit_status"], found["git_commit"]) == ("completed", 0, None)
    assert found["validation"] == {
        "pytest": "passed",
        "tests_passed": 1,
        "dataset_errors": 0,
        "rows": 6,
    }
    data = (folder / "data/train.jsonl").read_bytes()
    assert found["data"]["validated.sha256"] == sha256(data).hexdigest()
    assert found["training"]["metrics"]["loss"] > 0
    assert "held_out/schema" in found["evaluation"]["metrics"]
    assert found["files"]["lora"]["sha256"] == sha256(LORA_FILE.read_bytes()).hexdigest()
    assert json.loads(thinker("manifest").stdout) == found


def test_exported_weights_are_evaluated_alone(folder: Path) -> None:
    assert thinker("train", "--skip-validation", "--name", "trained").exit_code == 0
    assert not Path("predictions.jsonl").exists()
    result = thinker("eval", "--skip-validation", "--name", "scored")
    assert result.exit_code == 0, result.output
    weights = record("scored")["facts"]["weights.sha256"]
    assert record("scored")["facts"]["weights"] == f"path:{folder}/checkpoints/claims"
    assert weights == manifest("scored")["data"]["weights.sha256"]
    assert len(lines("predictions.jsonl")) == 3


def test_the_files_of_the_specification_run_unchanged(folder: Path) -> None:
    configs = folder / "thinker/configs"
    configs.mkdir(parents=True)
    (configs / "pipeline.yaml").write_text(PIPELINE)
    (configs / "lora_config.yaml").write_text(LORA)
    write_scifact(folder / "thinker/cns-support-models/data/raw/scifact")
    tests = folder / "thinker/cns-support-models/tests"
    tests.mkdir()
    (tests / "test_it.py").write_text(TEST.read_text())
    (tests / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    for parent in ("thinker", "."):
        rows = folder / parent / "cns-support-models/data/processed/scifact_claim_extractor.jsonl"
        write_rows(rows, lines("data/train.jsonl"))
    config = ("--config", str(configs / "pipeline.yaml"))
    assert thinker(*config, "validate").exit_code == 0
    result = thinker(*config, "run", "--backend", "fake", "--skip-validation", "--name", "spec")
    assert result.exit_code == 0, result.output
    values = record("spec")["order"]["settings"]
    assert (values["batch_size"], values["epochs"], values["warmup_steps"]) == (16, 3, 100)
    assert (values["lora_alpha"], values["lora_dropout"], values["lora_layers"]) == (
        32.0,
        0.05,
        "attention",
    )
    assert values["penalty"]["weight"] == 5.0
    assert values["gate"]["skip"]
    [table] = [row for row in lines("runs/spec/tables.jsonl") if row["title"] == "Not honoured"]
    assert {cell for [cell] in table["rows"]} == {
        "model.quantization: 4bit",
        "training.fp16: true",
        "data.validation_split: 0.1",
        "output.logging_steps: 10",
        f"evaluation.checkpoint_dir: {folder}/thinker/cns-support-models/checkpoints/"
        "claim-extractor-scifact",
    }


def test_a_changed_test_gives_a_new_verdict() -> None:
    TEST.write_text("def test_it():\n    assert 1 == 2\n")
    first = thinker("validate", "--name", "one")
    TEST.write_text("def test_it():\n    assert 1 == 1\n")
    assert (first.exit_code, thinker("validate", "--name", "two").exit_code) == (6, 0)
    assert "[thinker] error: tests: 1 failed" in first.stderr
    assert "assert 1 == 2" in first.stderr
    assert manifest("one")["validation"]["pytest"] == "failed"
    assert manifest("one")["exit_status"] == 6
    file = Path("runs/one/run.json")
    changed = {**json.loads(file.read_text()), "status": "interrupted", "exit_code": 130}
    file.write_text(json.dumps({**changed, "metrics": {"monitor/loss": 1.0, "dev/schema": 0.5}}))
    shown = json.loads(thinker("manifest", "one").stdout)
    assert shown["validation"]["pytest"] == "interrupted"
    assert shown["training"]["metrics"] == {"monitor/loss": 1.0}
    assert shown["evaluation"]["metrics"] == {"dev/schema": 0.5}


def test_failed_tests_stop_the_run_before_training() -> None:
    TEST.write_text("def test_it():\n    assert 0\n")
    assert thinker("run", "--name", "stopped").exit_code == 6
    assert not Path("runs/stopped/weights").exists()
    assert not Path("checkpoints").exists()
    skipped = thinker("train", "--skip-validation", "--name", "skipped")
    assert skipped.exit_code == 0
    assert record("skipped")["facts"]["validation"] == "skipped"
    assert manifest("skipped")["validation"]["pytest"] == "skipped"
    assert manifest("skipped")["arguments"]["skip_validation"]


def test_bad_rows_stop_the_run_before_training() -> None:
    change(PIPELINE_FILE, "  args:", "  enabled: false\n  args:")
    with Path("data/train.jsonl").open("a") as file:
        file.write('{"prompt": " "}\nnot json\n')
    result = thinker("train", "--name", "bad")
    assert result.exit_code == 3
    assert "[thinker] error: data_validation: 3 problems in 8 rows" in result.stderr
    assert "line 7: prompt is empty" in result.stderr
    assert len(lines("runs/bad/validation.jsonl")) == 3
    assert manifest("bad")["validation"] == {
        "pytest": "none",
        "tests_passed": None,
        "dataset_errors": 3,
        "rows": None,
    }
    assert not Path("runs/bad/weights").exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "command", "code", "message"),
    [
        (PIPELINE_FILE, "path: tests", "path: none", "validate", 2, "config: pipeline.yaml:2: tes"),
        (PIPELINE_FILE, "lora.yaml", "none.yaml", "train", 2, "training.config_path: there is no"),
        (PIPELINE_FILE, "backend: fake", "backend: faek", "run", 2, "did you mean 'fake'?"),
        (PIPELINE_FILE, "evaluation:", "evaluatoin:", "run", 2, "did you mean 'evaluation'?"),
        (PIPELINE_FILE, "base_model: tiny", "base_model: big", "run", 2, "name the same model"),
        (LORA_FILE, "data/train.jsonl", "none.jsonl", "train", 2, "data.train_file: there is no"),
        (LORA_FILE, "r: 4", "target_modules: [q_proj]", "run", 2, "every backend"),
        (PIPELINE_FILE, "backend", "backend", "eval", 2, "run `thinker train` first"),
        (LORA_FILE, "tiny", "packaged:none", "train", 4, "backend hf_peft, "),
        (LORA_FILE, "tiny", "tiny\n  device_map: cuda", "train", 4, "no CUDA device here"),
        (LORA_FILE, "tiny", "tiny\n  quantization: 4bit", "train", 4, "kitchen[4bit]'"),
        (LORA_FILE, "r: 4", "r: 4\n  lora_dropout: 0.5", "train", 2, "not honour lora_dropout"),
    ],
)
def test_failures_name_the_part_the_place_and_the_fix(
    file: Path, old: str, new: str, command: str, code: int, message: str
) -> None:
    change(file, old, new)
    options = {"train": ["--strict"], "validate": []}.get(command, [])
    if "4bit" in message and find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is installed")
    if "hf_peft" in message or "CUDA" in message or "4bit" in message:
        torch = pytest.importorskip("torch")
        if "CUDA" in message and torch.cuda.is_available():
            pytest.skip("needs a machine without CUDA")
        options = ["--backend", "hf_peft"]
    result = thinker(command, *options)
    assert result.exit_code == code, result.output
    assert "[thinker] error: " in result.stderr
    assert message in result.stderr
    assert not Path("runs").exists()


def test_a_suite_whose_tests_are_all_skipped_is_refused() -> None:
    TEST.write_text("import pytest\n@pytest.mark.skip\ndef test_it():\n    pass\n")
    result = thinker("validate")
    assert result.exit_code == 6
    assert "[thinker] error: tests: no test passed in " in result.stderr


def test_only_the_antagonist_needs_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert thinker("train", "--skip-validation").exit_code == 0
    result = thinker("run", "--skip-validation")
    assert result.exit_code == 4
    assert "[thinker] error: antagonist: the package networkx is not installed" in result.stderr
    assert "crucible-kitchen[claims]" in result.stderr


def test_errors_of_scorers_name_the_antagonist() -> None:
    write_rows(Path("predictions.jsonl"), [])
    with PIPELINE_FILE.open("a") as file:
        file.write("antagonist:\n  scorer: path:none\n")
    result = thinker("antagonist")
    assert result.exit_code == 4
    assert f"[thinker] error: antagonist: path:{Path.cwd()}/none: there is no" in result.stderr


def test_float16_on_a_cpu_is_refused() -> None:
    change(LORA_FILE, "name: tiny", "name: tiny\n  device_map: cpu")
    change(LORA_FILE, "num_epochs: 1", "num_epochs: 1\n  fp16: true")
    result = thinker("train", "--backend", "hf_peft")
    assert result.exit_code == 2
    assert f"{LORA_FILE.resolve()}:9: training.fp16: float16 needs a CUDA device" in result.stderr


def test_a_missing_key_of_tinker_fails_before_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tinker")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    result = thinker("train", "--backend", "tinker")
    assert result.exit_code == 4
    assert "[thinker] error: training: the environment variable TINKER_API_KEY" in result.stderr


def test_an_interrupted_run_names_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(Interrupted("stopped at step 22, and saved"), debug=False) == 130
    assert capsys.readouterr().err == "[thinker] error: stopped at step 22, and saved\n"


def test_a_refused_hub_token_names_backend_and_file(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    hub_server.repository("me/secret", private=True)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    change(LORA_FILE, "tiny", "me/secret")
    result = thinker("train", "--backend", "hf_peft")
    assert result.exit_code == 4
    assert f"(backend hf_peft, {LORA_FILE.resolve()})" in result.stderr
    assert "HF_TOKEN" in result.stderr
    assert SECRET not in result.output


def test_secrets_are_in_no_file_and_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "TINKER_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    TEST.write_text("import os\ndef test_it():\n    assert os.environ['HF_TOKEN'] == 'x'\n")
    failed = thinker("run", "--name", "failed")
    with Path("data/train.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": SECRET, "completion": SECRET}) + "\n")
    TEST.write_text("def test_it():\n    print('quiet')\n")
    bad = thinker("run", "--name", "bad", "--json")
    assert (failed.exit_code, bad.exit_code) == (6, 3)
    assert "***" in failed.stderr
    assert "***" in Path("runs/bad/validation.jsonl").read_text()
    written = [path.read_text() for path in Path("runs").rglob("*") if path.is_file()]
    assert len(written) > 8
    assert not any(SECRET[:9] in text for text in [*written, failed.output, bad.output])


def test_a_later_run_replaces_the_export_of_an_earlier_one(folder: Path) -> None:
    for name in ("one", "two"):
        assert thinker("train", "--skip-validation", "--name", name).exit_code == 0
    assert exported_run(folder / "checkpoints/claims") == "two"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["claims"]
    notes = folder / "checkpoints/claims/notes/NOTES.md"
    write_rows(notes, ["mine"])
    foreign = thinker("train", "--skip-validation")
    assert foreign.exit_code == 2
    assert "files that no run has exported there (notes/NOTES.md)" in foreign.stderr
    assert notes.exists()
    (folder / "checkpoints/claims/kitchen.json").unlink()
    result = thinker("train", "--skip-validation")
    assert result.exit_code == 2
    assert "checkpoint_dir: " in result.stderr
    assert "is not empty" in result.stderr


def test_settings_follow_the_backend() -> None:
    change(LORA_FILE, "name: tiny", "name: path:models/tiny\n  quantization: 4bit")
    change(PIPELINE_FILE, "base_model: tiny", "base_model: path:models/tiny")
    change(LORA_FILE, "num_epochs: 1", "gradient_checkpointing: true\n  claim_c1_weight: 3")
    change(LORA_FILE, "r: 4", "target_modules: [down_proj, up_proj, gate_proj]")
    local, remote = prepared(backend="hf_peft"), prepared(backend="tinker")
    assert settings(local)["model"] == f"path:{Path.cwd()}/models/tiny"
    assert settings(local)["lora_layers"] == "mlp"
    assert settings(local)["token_weights.claim"] == 3
    assert local.adapters == {"training": "peft"}
    assert local.adapter_settings == [
        "training.quantization=4bit",
        "training.checkpointing=true",
    ]
    assert (local.features, remote.adapter_settings) == ([], [])
    assert remote.features == ["model.quantization: 4bit", "training.gradient_checkpointing: true"]


def test_a_server_evaluates_the_run_of_the_export(folder: Path) -> None:
    write_rows(folder / "checkpoints/claims/rows.jsonl", [])
    with pytest.raises(ConfigError, match=r"run `thinker train --backend tinker` first"):
        prepared("eval", backend="tinker")
    (folder / "checkpoints/claims/kitchen.json").write_text('{"run": "first"}')
    assert settings(prepared("eval", backend="tinker"))["weights"] == "run:first@final"


@pytest.mark.parametrize(
    ("file", "written", "wanted"),
    [
        ("kitchen.json", {"run": "first", "model": "small"}, "small"),
        ("adapter_config.json", {"base_model_name_or_path": "owner/small"}, "owner/small"),
    ],
)
def test_an_evaluation_refuses_weights_of_another_model(
    file: str, written: dict[str, str], wanted: str, folder: Path
) -> None:
    write_rows(folder / "checkpoints/claims" / file, [written])
    with pytest.raises(ConfigError, match=f"base_model is 'tiny', and .* trained on '{wanted}'"):
        prepared("eval")
    change(PIPELINE_FILE, "base_model: tiny", f"base_model: {wanted}")
    assert settings(prepared("eval"))["weights"] == f"path:{folder}/checkpoints/claims"


def test_a_base_model_beside_the_export_is_compared(tmp_path: Path) -> None:
    for name in ("small", "other", "lora"):
        (tmp_path / name).mkdir()
    named = {"base_model_name_or_path": "path:small"}
    (tmp_path / "lora/adapter_config.json").write_text(json.dumps(named))
    assert other_base_model(tmp_path / "lora", f"path:{tmp_path / 'small'}") is None
    wrong = other_base_model(tmp_path / "lora", f"path:{tmp_path / 'other'}")
    assert wrong == f"path:{tmp_path / 'small'}"
    (tmp_path / "small").rmdir()
    assert other_base_model(tmp_path / "lora", f"path:{tmp_path / 'other'}") is None


def test_an_evaluation_uses_the_device_of_the_training(folder: Path) -> None:
    change(LORA_FILE, "name: tiny", "name: tiny\n  quantization: 4bit\n  device_map: cpu")
    change(LORA_FILE, "num_epochs: 1", "fp16: true\n  gradient_checkpointing: true")
    (folder / "checkpoints/claims").mkdir(parents=True)
    local, remote = prepared("eval", backend="hf_peft"), prepared("eval")
    assert local.adapter_settings == ["training.device=cpu", "training.quantization=4bit"]
    assert (local.features, local.float16) == ([], "")
    assert remote.features == ["model.device_map: cpu", "model.quantization: 4bit"]


@pytest.mark.parametrize(
    ("scorer", "expected", "training"),
    [
        ("lexical", "lexical", "fake"),
        ("path:../nli", "path:{parent}/nli", "fake"),
        ("path:..\\nli", "path:{parent}/nli", "fake"),
        ("hub:owner/nli", "hub:owner/nli", "fake"),
        ("judge:path:nli", "judge:path:{folder}/nli", "tinker"),
        ("judge:packaged:judge", "judge:packaged:judge", "tinker"),
    ],
)
def test_scorers_are_found_beside_the_file(
    scorer: str, expected: str, training: str, folder: Path
) -> None:
    (folder / "inner").mkdir()
    with PIPELINE_FILE.open("a") as file:
        file.write(f"antagonist:\n  chirality: 0.4\n  scorer: {scorer}\n")
    write_rows(folder / "predictions.jsonl", [])
    write_rows(folder / "checkpoints/claims/kitchen.json", [{"run": "first", "model": "tiny"}])
    with in_folder(folder / "inner"):
        for command in ("antagonist", "eval", "run"):
            options = PipelineOptions("tinker")
            run = ClaimPipeline().prepare(command, folder / PIPELINE_FILE, options)
            wanted = expected.format(folder=folder, parent=folder.parent)
            assert settings(run)["scorers.entailment"] == wanted
            assert settings(run)["antagonist.chirality"] == 0.4
            assert run.adapters["training"] == (training if command == "antagonist" else "tinker")


def test_info_shows_what_would_run() -> None:
    shown = json.loads(thinker("info", "--json").stdout)
    assert (shown["backend"], shown["settings"]["model"]) == ("fake", "tiny")
    assert shown["paths"]["data.train_file"] == str(Path.cwd() / "data/train.jsonl")
    assert shown["not_honoured"] == ["lora_alpha"]
    change(PIPELINE_FILE, "  output_path", "  metrics: [bleau]\n  output_path")
    refused = thinker("info", "--json")
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["settings"]["evaluation.metrics"] == ["bleau"]
    assert "did you mean 'bleu'?" in refused.stderr
    assert "run `thinker run` first" in thinker("manifest").stderr


def test_info_shows_settings_as_text() -> None:
    text = thinker("info").stdout
    assert "not honoured: lora_alpha (backend fake)" in text
    assert "pipeline.yaml:2" in text
    assert not Path("runs").exists()


def test_the_schema_fits_the_files_of_the_specification() -> None:
    schema = json.loads(output(0, "schema", "thinker"))
    validator = jsonschema.Draft202012Validator(schema)
    for text in (PIPELINE, LORA):
        document: dict[str, Any] = {}
        for item in read_yaml(text, "file"):
            section = document
            for key in item.keys[:-1]:
                section = section.setdefault(key, {})
            section[item.keys[-1]] = item.value
        validator.validate(document)
        assert not validator.is_valid({**document, "other": 1})


def test_data_setup_writes_splits_with_digests(folder: Path) -> None:
    result = thinker("data", "setup", "scifact", "--out", "rows")
    assert result.exit_code == 0, result.output
    digests = json.loads((folder / "rows/data.json").read_text())
    counts = {
        name: (split["rows"], split["completions"]) for name, split in digests["splits"].items()
    }
    assert counts == {"train": (6, 6), "dev": (3, 3), "test": (2, 0)}
    train = (folder / "rows/train.jsonl").read_bytes()
    assert digests["splits"]["train"]["sha256"] == sha256(train).hexdigest()
    assert lines("rows/train.jsonl")[0]["completion"] == (
        "CLAIM[c1]: Tea helps fever.\nCLAIM[c2] (Document 10): Tea lowers fever.\n"
        "RELATION: c2 supports c1"
    )
    assert "completion" not in lines("rows/test.jsonl")[0]
    again = thinker("data", "setup", "scifact", "--out", "rows")
    assert again.exit_code == 2
    assert "[thinker] error: data setup: rows is not empty" in again.stderr


def test_data_setup_leaves_nothing_behind(folder: Path) -> None:
    write_rows(folder / "broken/corpus.jsonl", CORPUS)
    write_rows(folder / "broken/claims_train.jsonl", CLAIMS)
    write_rows(folder / "broken/claims_dev.jsonl", [{**CLAIMS[0], "cited_doc_ids": [99]}])
    before = set(folder.iterdir())
    result = thinker("data", "setup", "broken", "--out", "rows")
    assert result.exit_code == 3
    assert "claims_dev.jsonl:1: cited_doc_ids: document 99 is not in the corpus" in result.stderr
    assert set(folder.iterdir()) == before
    with pytest.raises(ConfigError, match="there is no folder none"):
        set_up_data(Path("none"), Path("rows"))


def test_the_antagonist_reads_the_answers_of_an_evaluation() -> None:
    result = thinker("antagonist")
    assert result.exit_code == 2
    assert "run `thinker eval` first" in result.stderr
    answers = [
        {"claim_id": "0", "set": "held_out", "completion": "CLAIM[c1]: Tea helps fever."},
        {
            "claim_id": "1",
            "set": "held_out",
            "completion": "CLAIM[c1]: Tea.\nCLAIM[c2] (Document 99): No.\nRELATION: c2 supports c1",
        },
    ]
    write_rows(Path("predictions.jsonl"), answers)
    with PIPELINE_FILE.open("a") as file:
        file.write("antagonist:\n  chirality: 0.4\n")
    result = thinker("antagonist", "--name", "checked")
    assert result.exit_code == 0, result.output
    [flag] = lines("runs/checked/antagonist_flags.jsonl")
    assert (flag["claim_id"], flag["severity"]) == ("1", "HIGH")
    assert [issue["issue_type"] for issue in flag["issues"]] == ["CITATION_INVALID"]
    assert record("checked")["order"]["settings"]["antagonist"]["chirality"] == 0.4
    write_rows(Path("predictions.jsonl"), [{**answers[0], "claim_id": "77"}])
    wrong = thinker("antagonist")
    assert wrong.exit_code == 3
    assert "[thinker] error: antagonist: predictions.jsonl:1: held_out has no claim '77'" in (
        wrong.stderr
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "predictions.jsonl has no answers; run the evaluation again"),
        (b'\n{"claim_id": "0", "set": "held_out", "completion": "\xe9"}\n', "l:2: is not UTF-8"),
    ],
)
def test_unreadable_predictions_are_refused(content: bytes, message: str) -> None:
    Path("predictions.jsonl").write_bytes(content)
    result = thinker("antagonist")
    assert result.exit_code == 3
    assert message in result.stderr


def test_flags_have_every_separator_of_lines_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    text = f"CLAIM[c1]: Tea\u2028helps\x85fever.\nSo {SECRET} it is."
    row = {"claim_id": "0", "set": "held_out", "completion": text}
    Path("predictions.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\n", "utf-8")
    result = thinker("antagonist", "--name", "checked")
    assert result.exit_code == 0, result.output
    written = [path.read_bytes() for path in Path("runs/checked").rglob("*") if path.is_file()]
    assert len([content for content in written if b"So *** it is." in content]) == 1
    assert not any(SECRET.encode() in content for content in written)


def test_a_failed_run_is_resumed_after_its_export(folder: Path) -> None:
    change(PIPELINE_FILE, "  output_path", "  metrics: [file_metric:score]\n  output_path")
    (folder / "file_metric.py").write_text(
        "def score(text, right):\n    return float(open('score.txt').read())\n"
    )
    failed = thinker("run", "--skip-validation", "--name", "first")
    assert failed.exit_code == 1, failed.output
    assert "[thinker] error: evaluation: " in failed.stderr
    assert "score.txt" in failed.stderr
    assert "kitchen resume first" in failed.stderr
    assert (manifest("first")["status"], manifest("first")["exit_status"]) == ("failed", 1)
    (folder / "score.txt").write_text("0.5")
    whole = Path("runs/first/manifest.json").read_text()
    Path("runs/first/manifest.json").write_text(whole[:99])
    damaged = thinker("manifest", "first")
    assert damaged.exit_code == 3
    assert "runs/first/manifest.json is damaged (" in damaged.stderr
    assert "is damaged (" in output(3, "resume", "first", "--trust")
    Path("runs/first/manifest.json").write_text(whole)
    output(0, "resume", "first", "--trust")
    assert lines("predictions.jsonl")[0]["scores"]["score"] == 0.5
    assert exported_run(folder / "checkpoints/claims") == "first"
    assert (manifest("first")["status"], manifest("first")["exit_status"]) == ("completed", 0)
    assert json.loads(thinker("manifest", "first").stdout) == manifest("first")


def test_predictions_that_cannot_be_written_are_refused(folder: Path) -> None:
    change(PIPELINE_FILE, "predictions.jsonl", "pipeline.yaml/predictions.jsonl")
    result = thinker("run", "--skip-validation")
    assert result.exit_code == 2
    assert f"{folder}/pipeline.yaml is a file, so" in result.stderr
