"""Negatives cite a document that the prompt lacks, and their loss lowers its probability."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from adapters.tokenizer import load_tokenizer
from kitchen.backend.losses import LOSSES
from kitchen.ports import Tokenizer
from stages.chat.render import RenderDataset
from stages.claims.answer import parse_answer
from stages.claims.negatives import WrongCitation, penalty_datum, wrong_citation
from stages.claims.rows import ClaimRow
from tests.support.tiny_model import tiny_model

RIGHT = """CLAIM[c1]: Water is wet.
CLAIM[c2] (Document 10): It is wet.
RELATION: c2 supports c1
CLAIM[c3] (Document 20): It is dry.
RELATION: c3 refutes c1"""
ROW = ClaimRow("prompt", {"10": "It is wet.", "20": "It is dry."}, parse_answer(RIGHT), "1", "x:1")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    pytest.importorskip("transformers")
    folder: Path = tiny_model(tmp_path_factory.mktemp("tiny"))
    return load_tokenizer(folder)


@pytest.mark.parametrize("seed", range(20))
def test_the_wrong_id_is_in_no_document_of_the_prompt(seed: int) -> None:
    found = wrong_citation(ROW, ["10", "20", "77"], random.Random(seed))
    assert found is not None
    assert found.right in ("10", "20")
    assert found.wrong not in ROW.documents
    right, wrong = f"(Document {found.right})", f"(Document {found.wrong})"
    assert found.answer.text() == RIGHT.replace(right, wrong)


def test_ids_with_another_first_digit_and_of_other_rows_occur() -> None:
    found = [wrong_citation(ROW, ["77"], random.Random(seed)) for seed in range(40)]
    ids = {wrong.wrong for wrong in found if wrong is not None}
    assert "77" in ids
    assert any(id[1:] == "0" for id in ids)


def test_an_answer_without_citations_has_no_negative() -> None:
    row = ClaimRow("prompt", {"1": "a"}, parse_answer("CLAIM[c1]: a"), "1", "x:1")
    assert wrong_citation(row, ["2"], random.Random(0)) is None


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("right", "wrong", "shown"),
    [
        ("20", "90", "9"),
        ("20", "27", "27"),
        ("10", "77", "7"),
        ("10", "109", "109"),
        ("10", "29", "29"),  # 2 may begin 20
        ("20", "1", "1)"),
    ],
)
def test_the_loss_is_the_probability_of_an_invalid_id(
    right: str, wrong: str, shown: str, chat: bool, tokenizer: Tokenizer
) -> None:
    text = RIGHT.replace(f"(Document {right})", f"(Document {wrong})")
    negative = WrongCitation(parse_answer(text), right, wrong)
    datum = penalty_datum(ROW, negative, tokenizer, RenderDataset(chat=chat), 5.0)
    assert datum is not None
    [last] = np.flatnonzero(datum.loss_inputs["advantages"])
    assert last == len(datum.targets) - 1
    assert tokenizer.decode(datum.targets).endswith(f"(Document {shown}")
    log_p = np.full(len(datum.targets), np.log(0.25))
    value, gradient = LOSSES["importance_sampling"].compute(log_p, datum.loss_inputs, {})
    assert value.sum() == pytest.approx(5.0 * 0.25)
    assert gradient[last] > 0


def test_a_datum_truncated_before_the_citation_has_no_penalty(tokenizer: Tokenizer) -> None:
    negative = wrong_citation(ROW, [], random.Random(0))
    assert negative is not None
    render = RenderDataset(max_tokens=20, overlong="truncate")
    assert penalty_datum(ROW, negative, tokenizer, render, 5.0) is None
