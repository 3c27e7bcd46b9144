"""Entailment by classifiers whose classes come in any order, and folders that are refused."""

from __future__ import annotations

import asyncio
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from adapters.nli.entailment import NliClassifier, entailment_label
from kitchen.errors import BackendError
from stages.claims.scorers import TextPair, entailment_of
from tests.support.tiny_bert import tiny_bert

CLASSES = {"entailment": 0, "neutral": 1, "contradiction": 2}
PAIRS = [
    TextPair("the drug lowers pressure in mice .", "aspirin lowers pressure"),
    TextPair("aspirin raises pain .", "no effect of the drug was seen in men"),
    TextPair("the effect", "a drug"),
]


def score(scorer: NliClassifier, pairs: list[TextPair]) -> list[float]:
    return list(asyncio.run(scorer.score(pairs)))


def change(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_the_label_is_found_in_every_order(tmp_path: Path) -> None:
    """The ancestors read a fixed index, and measured "neutral"."""
    expected = None
    for number, labels in enumerate(permutations(CLASSES)):
        folder = tiny_bert(tmp_path / str(number), labels=labels, class_weights=CLASSES)
        scores = score(NliClassifier(str(folder)), PAIRS)
        expected = expected or scores
        assert scores == pytest.approx(expected, abs=1e-6)
    assert expected is not None
    assert max(expected) - min(expected) > 0.01


def test_scores_equal_those_of_transformers(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m", labels=("CONTRADICTION", "NEUTRAL", "ENTAILMENT"))
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        expected = [
            float(model(**tokenizer(*pair, return_tensors="pt")).logits.softmax(-1)[0, 2])
            for pair in PAIRS
        ]
    assert score(NliClassifier(str(folder)), PAIRS) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "labels, at",
    [
        (("Entailment", "Neutral", "Contradiction"), 0),
        (("entailment", "not_entailment"), 0),
        (("REFUTES", "NOT ENOUGH INFO", "SUPPORTS"), 2),
    ],
)
def test_other_names_of_the_class_are_known(
    tmp_path: Path, labels: tuple[str, ...], at: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"id2label": dict(enumerate(labels))}))
    assert entailment_label(tmp_path) == at


@pytest.mark.parametrize(
    "labels",
    [
        None,
        {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        {"0": "positive", "1": "negative"},
        {"0": "entailment", "1": "supports"},
        {"0": "not_entailment", "1": "neutral"},
        {"1": "entailment", "2": "neutral"},
        {"entailment": "0"},
    ],
)
def test_classes_without_one_entailment_are_refused(
    tmp_path: Path, labels: dict[str, str] | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
    with pytest.raises(BackendError, match=r"config\.json: .*id2label"):
        entailment_label(tmp_path)


def test_long_premises_are_cut_and_the_maximum_counts(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m", labels=CLASSES, length=16)
    scorer = NliClassifier(str(folder))
    sentences = ["the drug lowers pressure .", "no effect was seen in men .", "a pain of mice ."]
    whole = TextPair(" ".join(sentences), "aspirin lowers pain")
    assert not scorer.fits(whole)
    windows = [
        TextPair(text, whole.hypothesis) for text in (sentences[0], sentences[1], sentences[2])
    ]
    [found] = asyncio.run(entailment_of(scorer, [whole]))
    assert found == pytest.approx(max(score(scorer, windows)), abs=1e-6)


def test_custom_code_is_refused_and_never_run(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m", labels=CLASSES)
    marker = tmp_path / "ran"
    (folder / "modeling_odd.py").write_text(
        f"from pathlib import Path\nPath({str(marker)!r}).touch()"
    )
    auto = {
        "AutoConfig": "modeling_odd.C",
        "AutoModelForSequenceClassification": "modeling_odd.M",
    }
    change(folder, model_type="odd", auto_map=auto)
    with pytest.raises(BackendError, match="custom code"):
        NliClassifier(str(folder))
    assert not marker.exists()


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m", labels=CLASSES)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(BackendError, match=r"model\.safetensors is damaged"):
        NliClassifier(str(folder))


def test_a_folder_without_a_whole_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(BackendError, match=r"no config\.json: .*not a LoRA adapter"):
        NliClassifier(str(tmp_path))


def test_pickled_weights_are_not_opened(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m", labels=CLASSES)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BackendError, match="cannot be opened"):
        NliClassifier(str(folder))
