"""The pipeline files of the Thinker specification as they are, and a small project for the fake."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from kitchen.cli.thinker_commands import app
from tests.support.claims import CLAIMS, CORPUS

PIPELINE = """tests:
  path: ../cns-support-models/tests
  markers: "not slow"
  args: ["-v"]
  enabled: true

data_validation:
  path: ../cns-support-models/data/processed/scifact_claim_extractor.jsonl
  schema:
    - name: prompt
      type: string
      required: true
      allow_empty: false
    - name: completion
      type: string
    - name: metadata
      type: object
      required: false
  max_examples: 2000

training:
  backend: hf_peft
  config_path: lora_config.yaml

evaluation:
  base_model: "meta-llama/Llama-3.1-8B-Instruct"
  checkpoint_dir: ../cns-support-models/checkpoints/claim-extractor-scifact
  claims_file: ../cns-support-models/data/raw/scifact/claims_dev.jsonl
  corpus_file: ../cns-support-models/data/raw/scifact/corpus.jsonl
  max_samples: 50
  output_path: ../../runs/thinker_eval/scifact_dev_eval.jsonl
"""
LORA = """model:
  name: "meta-llama/Llama-3.1-8B-Instruct"
  quantization: "4bit"
  device_map: "auto"
  hf_token: null  # optional

lora:
  r: 16
  lora_alpha: 32
  lora_dropout: 0.05
  target_modules: ["q_proj", "k_proj", "v_proj", "o_proj"]
  bias: "none"

training:
  per_device_batch_size: 2
  gradient_accumulation_steps: 8
  learning_rate: 2e-4
  num_epochs: 3
  warmup_steps: 100
  max_seq_length: 2048
  claim_c1_weight: 5.0
  evidence_weight: 2.0
  optim: "adamw_torch"
  weight_decay: 0.01
  lr_scheduler_type: "cosine"
  fp16: true
  gradient_checkpointing: false

data:
  train_file: ../../cns-support-models/data/processed/scifact_claim_extractor.jsonl
  validation_split: 0.1
  shuffle: true
  seed: 42

output:
  checkpoint_dir: ../../cns-support-models/checkpoints/claim-extractor-scifact
  logging_steps: 10
  eval_steps: 100
  save_steps: 200
  save_total_limit: 3
  report_to: "none"
"""

SMALL_PIPELINE = """tests:
  path: tests
  args: ["-q", "-p", "no:cacheprovider"]

data_validation:
  path: data/train.jsonl
  schema:
    - {name: prompt, type: string, allow_empty: false}
    - {name: completion, type: string, check: claim_lines}

training:
  backend: fake
  config_path: lora.yaml

evaluation:
  base_model: tiny
  checkpoint_dir: checkpoints/claims
  claims_file: scifact/claims_dev.jsonl
  corpus_file: scifact/corpus.jsonl
  output_path: predictions.jsonl
"""
SMALL_LORA = """model:
  name: tiny
lora:
  r: 4
training:
  per_device_batch_size: 2
  num_epochs: 1
data:
  train_file: data/train.jsonl
output:
  checkpoint_dir: checkpoints/claims
"""


def thinker(*arguments: str, **environment: str) -> Result:
    """Run a `thinker` command in this process and in the current folder."""
    result = CliRunner(env=environment).invoke(app, arguments, prog_name="thinker")
    assert "Traceback" not in result.output, result.output
    return result


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_scifact(folder: Path) -> None:
    """Write a SciFact folder of six claims, with a test file without evidence."""
    without = [{key: row[key] for key in row if key != "evidence"} for row in CLAIMS[:2]]
    write_rows(folder / "claims_train.jsonl", CLAIMS)
    write_rows(folder / "claims_dev.jsonl", CLAIMS[:3])
    write_rows(folder / "claims_test.jsonl", without)
    write_rows(folder / "corpus.jsonl", CORPUS)


def write_project(folder: Path) -> None:
    """Write a pipeline of one passing test, a few claims and a run on the fake."""
    write_scifact(folder / "scifact")
    rows = [
        {"prompt": "Document 10: \nTea lowers fever.", "completion": f"CLAIM[c1]: {row['claim']}"}
        for row in CLAIMS
    ]
    write_rows(folder / "data/train.jsonl", rows)
    (folder / "tests").mkdir()
    (folder / "tests/test_it.py").write_text("def test_it():\n    pass\n")
    (folder / "pipeline.yaml").write_text(SMALL_PIPELINE)
    (folder / "lora.yaml").write_text(SMALL_LORA)


def change(path: Path, old: str, new: str) -> None:
    """Replace a text in a file that has it."""
    text = path.read_text()
    assert old in text, text
    path.write_text(text.replace(old, new, 1))
