"""`thinker run` from a SciFact folder to a report, on the packaged model, killed and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import adapters.local.claims
from adapters.local.blobs import LocalBlobs
from kitchen.runs.store import read_journal
from tests.support.commands import in_folder, invoke
from tests.support.pipeline_files import thinker
from tests.support.polling import wait_until
from tests.support.recording import without_clocks

CLAIMS = Path(adapters.local.claims.__file__).parent
MODEL = "packaged:smollm2-135m-instruct"
PIPELINE = f"""tests:
  path: tests
data_validation:
  path: small.jsonl
  schema:
    - {{name: prompt, type: string, allow_empty: false}}
    - {{name: completion, type: string, check: claim_lines}}
training:
  backend: hf_peft
  config_path: lora.yaml
evaluation:
  base_model: {MODEL}
  checkpoint_dir: checkpoints/claims
  claims_file: {CLAIMS}/claims_held_out.jsonl
  corpus_file: {CLAIMS}/corpus.jsonl
  max_samples: 6
  max_new_tokens: 128
  output_path: predictions.jsonl
"""
LORA = f"""model:
  name: {MODEL}
lora:
  r: 16
training:
  per_device_batch_size: 4
  learning_rate: 1e-3
  num_epochs: 1
data:
  train_file: small.jsonl
output:
  checkpoint_dir: checkpoints/claims
  save_steps: 4
"""
ROWS = 96
STEPS = ROWS // 4


def write_pipeline(folder: Path) -> None:
    """Convert the packaged claims, and keep the first rows to train on."""
    (folder / "tests").mkdir()
    (folder / "tests/test_it.py").write_text("def test_it():\n    pass\n")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    (folder / "lora.yaml").write_text(LORA)
    result = thinker("data", "setup", str(CLAIMS), "--out", "data")
    assert result.exit_code == 0, result.output
    rows = (folder / "data/train.jsonl").read_text().splitlines(keepends=True)
    (folder / "small.jsonl").write_text("".join(rows[:ROWS]))


def journal(run: str) -> list[dict[str, Any]]:
    return [without_clocks(row) for row in read_journal(LocalBlobs("runs"), run, "metrics")]


def kill_after_steps(name: str, steps: int) -> None:
    """Start `thinker run` in another process, and kill it once so many steps are recorded."""
    program = "from kitchen.cli.thinker_commands import main; main()"
    arguments = [sys.executable, "-c", program, "run", "--name", name]
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    metrics = Path("runs", name, "metrics.jsonl")

    def has_stepped() -> bool:
        return metrics.exists() and metrics.read_text().count("ReportClaimStep") >= steps

    wait_until(lambda: process.poll() is not None or has_stepped(), timeout=600)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_pipeline_resumes_on_the_real_model(tmp_path: Path) -> None:
    with in_folder(tmp_path):
        write_pipeline(tmp_path)
        whole = thinker("run", "--name", "whole")
        assert whole.exit_code == 0, whole.output
        kill_after_steps("killed", 14)
        resumed = invoke("resume", "killed", "--trust")
        assert resumed.exit_code == 0, resumed.output
        rows = journal("whole")
        assert journal("killed") == rows
        losses = [row["loss"] for row in rows if row["stage"] == "ReportClaimStep"]
        assert len(losses) == STEPS
        assert sum(losses[-4:]) / 4 < losses[0] / 4
        (report,) = (row for row in rows if row["stage"] == "ReportClaims")
        assert report["held_out/schema"] >= 0.5
        assert report["held_out/citation_valid"] >= 0.5
