"""The YAML files of the Thinker specification load as they are, and errors name line and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from kitchen.errors import ConfigError
from stages.claims.pipeline_file import LoraFile, PipelineFile, read_with_lines
from tests.support.pipeline_files import LORA, PIPELINE


def written(folder: Path, text: str) -> Path:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_pipeline_of_the_specification_loads(tmp_path: Path) -> None:
    pipeline = read_with_lines(written(tmp_path, PIPELINE), PipelineFile).content
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
    lora = read_with_lines(written(tmp_path, LORA), LoraFile).content
    assert lora.training.batch_size == 16
    assert lora.training.learning_rate == 2e-4
    assert lora.lora.target_modules == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert lora.data.seed == 42
    with pytest.raises(ValidationError):
        lora.lora.r = 8  # type: ignore[misc]


def test_backslashes_separate_folders_too(tmp_path: Path) -> None:
    text = LORA.replace("../../cns-support-models/data/processed/", "data\\processed\\")
    lora = read_with_lines(written(tmp_path, text), LoraFile).content
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
        read_with_lines(written(tmp_path, PIPELINE.replace(old, new)), PipelineFile)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("hf_token: null", "hf_token: abcdefgh", ":5: model.hf_token: a token must not be in the"),
        ("learning_rate: 2e-4", "learning_rate: -1", ":17: training.learning_rate: input should"),
        ("learning_rate: 2e-4", "learning_rate: .inf", ":17: training.learning_rate: input"),
        ('bias: "none"', "bias: all", ":12: lora.bias='all' is unknown; there are: none"),
        ("data:\n", "dta:\n", "unknown key 'dta'; did you mean 'data'?"),
    ],
)
def test_wrong_lora_files_are_errors(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in LORA
    with pytest.raises(ConfigError) as caught:
        read_with_lines(written(tmp_path, LORA.replace(old, new)), LoraFile)
    assert message in str(caught.value)
    assert "abcdefgh" not in str(caught.value)


def test_missing_sections_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_with_lines(written(tmp_path, ""), LoraFile)
    assert "the section 'model' is missing" in str(caught.value)
    assert "the section 'output' is missing" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: cannot be read"):
        read_with_lines(tmp_path / "none.yaml", PipelineFile)
