"""Negatives for the citation penalty: answers that cite a document which the prompt lacks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kitchen.errors import DataError
from kitchen.ports import Tokenizer
from kitchen.types import Array, Datum
from stages.chat.render import RenderDataset
from stages.claims.answer import ClaimAnswer
from stages.claims.rows import ClaimRow
from stages.claims.token_weights import token_ends

OTHER_ROWS = 0.5  # share of wrong ids that are those of documents of other rows


@dataclass(frozen=True)
class WrongCitation:
    """A right answer with one document id replaced by an id that the prompt lacks."""

    answer: ClaimAnswer
    right: str
    wrong: str


def wrong_citation(
    row: ClaimRow, others: Sequence[str], rng: random.Random
) -> WrongCitation | None:
    """Replace the document id of one evidence line by one that the prompt does not have.

    Half of the wrong ids are of `others`, documents of other rows; the other half is the right id
    with another first digit, because ids are copied digit by digit. Returns None for an answer
    without citations.
    """
    if row.answer is None or not row.answer.evidence:
        return None
    claim = rng.choice(row.answer.evidence)
    right = claim.document or ""
    wrong = _wrong_id(right, row, others, rng)
    claims = tuple(
        replace(other, document=wrong) if other is claim else other for other in row.answer.claims
    )
    return WrongCitation(replace(row.answer, claims=claims), right, wrong)


def _wrong_id(right: str, row: ClaimRow, others: Sequence[str], rng: random.Random) -> str:
    absent = [id for id in others if id not in row.documents]
    if absent and rng.random() < OTHER_ROWS:
        return rng.choice(absent)
    changed = [digit + right[1:] for digit in "123456789" if digit != right[0]]
    free = [id for id in changed if id not in row.documents]
    return rng.choice(free or [f"{right}{digit}" for digit in "123456789"])


def penalty_datum(
    row: ClaimRow, wrong: WrongCitation, tokenizer: Tokenizer, render: RenderDataset, weight: float
) -> Datum | None:
    """Return the datum whose loss is `weight` times the probability of the wrong id's tokens.

    The penalty is on the tokens of the wrong id from the first that differs from the right answer.
    The loss is importance sampling with sampling log-probabilities 0 and advantages -weight:
    -exp(lp - 0) * -weight = weight * p for each token, bounded by weight, whose gradient
    weight * p * d lp lowers p. Returns None if the datum is truncated before the id.
    """
    right_datum = _render(row, row.answer, tokenizer, render)
    datum = _render(row, wrong.answer, tokenizer, render)
    if right_datum is None or datum is None:
        return None
    last = _last_of_id(datum, wrong.wrong, tokenizer)
    if last is None:
        return None
    shorter = min(len(datum.targets), len(right_datum.targets))
    differ = datum.targets[:shorter] != right_datum.targets[:shorter]
    first = int(np.argmax(differ)) if differ.any() else shorter
    advantages = np.zeros(last + 1, np.float32)
    advantages[first:] = -weight
    inputs: dict[str, Array] = {
        "target_tokens": datum.targets[: last + 1],
        "logprobs": np.zeros(last + 1, np.float32),
        "advantages": advantages,
    }
    return Datum(datum.tokens[: last + 1], inputs)


def _render(
    row: ClaimRow, answer: ClaimAnswer | None, tokenizer: Tokenizer, render: RenderDataset
) -> Datum | None:
    conversation = replace(row, answer=answer).conversation()
    data = render.datums(conversation, tokenizer)
    if len(data) > 1:
        raise DataError(f"{row.where}: the chat template renders one answer as {len(data)} rows")
    return data[0] if data else None


def _last_of_id(datum: Datum, id: str, tokenizer: Tokenizer) -> int | None:
    """Return the index of the last target of a cited id; None if the citation is cut off."""
    trained = np.flatnonzero(datum.loss_inputs["weights"])
    answer = datum.targets[trained]
    citation = f"(Document {id})"
    start = tokenizer.decode(answer).find(citation)
    if start < 0:
        return None
    end = start + len(citation) - 1
    ends = token_ends(answer, tokenizer)
    return int(trained[next(at for at, stop in enumerate(ends) if stop >= end)])
