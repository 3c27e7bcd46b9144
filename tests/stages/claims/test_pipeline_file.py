"""The YAML files of the Thinker specification load as they are, and errors name line and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from kitchen.errors import ConfigError
from stages.claims.pipeline_file import read_lora_file, read_pipeline_file

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


def written(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_pipeline_of_the_specification_loads(tmp_path: Path) -> None:
    pipeline = read_pipeline_file(written(tmp_path, PIPELINE))
    assert pipeline.tests is not None
    assert pipeline.tests.path == tmp_path.parent / "cns-support-models/tests"
    assert pipeline.tests.args == ("-v",)
    assert pipeline.data_validation is not None
    assert [field.name for field in pipeline.data_validation.fields] == [
        "prompt",
        "completion",
        "metadata",
    ]
    assert [field.required for field in pipeline.data_validation.fields] == [True, True, False]
    assert pipeline.training is not None
    assert pipeline.training.config_path == tmp_path / "lora_config.yaml"
    assert pipeline.evaluation is not None
    assert pipeline.evaluation.max_samples == 50


def test_the_lora_file_of_the_specification_loads(tmp_path: Path) -> None:
    lora = read_lora_file(written(tmp_path, LORA))
    assert lora.training.batch_size == 16
    assert lora.training.learning_rate == 2e-4
    assert lora.lora.target_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert lora.data.seed == 42
    with pytest.raises(ValidationError):
        lora.lora.r = 8  # type: ignore[misc]


def test_backslashes_separate_folders_too(tmp_path: Path) -> None:
    text = LORA.replace("../../cns-support-models/data/processed/", "data\\processed\\")
    lora = read_lora_file(written(tmp_path, text))
    assert lora.data.train_file == tmp_path / "data/processed/scifact_claim_extractor.jsonl"


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("  markers:", "  marker:", ":3: unknown key 'tests.marker'; did you mean 'markers'?"),
        ("training:", "trainign:", ":22: unknown key 'trainign'; did you mean 'training'?"),
        ("backend: hf_peft", "backend: hf_pfet", "training.backend='hf_pfet' is unknown; did you"),
        ("  path: ../cns-support-models/tests\n", "", ":2: the key 'tests.path' is missing"),
        ('["-v"]', "-v", ':4: tests.args: must be a list, such as ["-v"]'),
        ("max_examples: 2000", "max_examples: 0", ":19: data_validation.max_examples: input"),
        ("type: object", "type: objct", "did you mean 'object'?"),
        (PIPELINE, "- 1", ":1: the file must be a mapping of sections"),
    ],
)
def test_wrong_pipelines_are_errors(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in PIPELINE
    with pytest.raises(ConfigError) as caught:
        read_pipeline_file(written(tmp_path, PIPELINE.replace(old, new)))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("hf_token: null", "hf_token: abcdefgh", ":5: model.hf_token: a token must not be in the"),
        ("learning_rate: 2e-4", "learning_rate: -1", ":17: training.learning_rate: input should"),
        ('bias: "none"', "bias: all", ":12: lora.bias='all' is unknown; there are: none"),
        ("data:\n", "dta:\n", "unknown key 'dta'; did you mean 'data'?"),
    ],
)
def test_wrong_lora_files_are_errors(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in LORA
    with pytest.raises(ConfigError) as caught:
        read_lora_file(written(tmp_path, LORA.replace(old, new)))
    assert message in str(caught.value)
    assert "abcdefgh" not in str(caught.value)


def test_missing_sections_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_lora_file(written(tmp_path, ""))
    assert "the section 'model' is missing" in str(caught.value)
    assert "the section 'output' is missing" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: cannot be read"):
        read_pipeline_file(tmp_path / "none.yaml")
