"""Weights of answer tokens follow the lines and their parts, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adapters.tokenizer import load_tokenizer
from kitchen.ports import Tokenizer
from stages.chat.render import RenderDataset
from stages.claims.answer import Claim, ClaimAnswer, Relation
from stages.claims.rows import ClaimRow
from stages.claims.token_weights import (
    BY_LINE,
    LineWeights,
    answer_weights,
    token_ends,
    weight_datum,
)
from tests.support.tiny_model import tiny_model

ANSWER = ClaimAnswer(
    (Claim("c1", "Water is wet, naïvely ☃."), Claim("c2", "It is.", "4983")),
    (Relation("c2", "supports", "c1"),),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pytest.importorskip("transformers")
    folder: Path = tiny_model(tmp_path_factory.mktemp("tiny"))
    return load_tokenizer(folder)


def weight_of_text(tokenizer: Tokenizer, weights: LineWeights) -> dict[str, set[float]]:
    """Return the weights of the tokens that end in each part of the answer."""
    text = ANSWER.text()
    tokens = tokenizer.encode(text)
    by_token = answer_weights(tokens, tokenizer, weights)
    ends = np.array(token_ends(tokens, tokenizer))
    result = {}
    for part in ("Water is wet", "4983", "It is", "supports", "CLAIM[c2", "RELATION", "\n"):
        start = text.index(part)
        inside = (ends > start) & (ends <= start + len(part))
        result[part] = set(by_token[inside].tolist())
    return result


def test_ends_count_the_characters_of_the_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(ANSWER.text())
    ends = token_ends(tokens, tokenizer)
    assert ends == sorted(ends)
    assert ends[-1] == len(ANSWER.text())


def test_lines_weigh_by_their_kind(tokenizer: Tokenizer) -> None:
    found = weight_of_text(tokenizer, BY_LINE)
    assert found["Water is wet"] == {5.0}
    assert found["4983"] == found["It is"] == {2.0}
    assert found["supports"] == found["RELATION"] == {1.0}
    assert found["\n"] == {5.0}


def test_parts_weigh_more_than_their_lines(tokenizer: Tokenizer) -> None:
    found = weight_of_text(tokenizer, LineWeights(1, 2, 3, line_start=4, document=5, verb=6))
    assert found["Water is wet"] == {1.0}
    assert found["It is"] == {2.0}
    assert found["4983"] == {5.0}
    assert found["supports"] == {6.0}
    assert found["RELATION"] == {4.0}
    assert 4.0 in found["CLAIM[c2"]
    assert found["\n"] == {4.0}


def test_a_rendered_row_weighs_its_answer_and_its_end(tokenizer: Tokenizer) -> None:
    row = ClaimRow("Hypothesis: supports", {}, ANSWER, "1", "claims.jsonl:1")
    [datum] = RenderDataset().datums(row.conversation(), tokenizer)
    weighted = weight_datum(datum, tokenizer, LineWeights(1, 2, 3, 4, 5, 6, end=7))
    before, after = datum.loss_inputs["weights"], weighted.loss_inputs["weights"]
    assert np.array_equal(before != 0, after != 0)
    assert after[before != 0][-1] == 7.0  # the stop token; a newline of the template follows
    assert set(after[before != 0].tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0}
