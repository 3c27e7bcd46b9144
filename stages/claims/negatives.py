"""Negatives for the citation penalty: answers that cite a document which the prompt lacks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kitchen.errors import DataError
from kitchen.ports import Tokenizer
from kitchen.types import Array, Datum
from stages.chat.joining import common_length
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
    """Return the datum whose loss is `weight` times the probability of the wrong id.

    The penalty is on the token with which the id stops being the beginning of any id in the prompt,
    and the datum ends with it. Tokens before it may begin a valid id. Those after it are not
    penalised either: after a wrong digit, a model rightly copies the digits that follow in the
    prompt, with probabilities near 1.

    The loss is importance sampling with a sampling log-probability of 0 and the advantage -weight:
    -exp(lp - 0) * -weight = weight * p, bounded by weight, whose gradient weight * p * d lp lowers
    p. Returns None if the datum is truncated before the id.
    """
    datum = _render(row, wrong.answer, tokenizer, render)
    if datum is None:
        return None
    start = _answer_text(datum, tokenizer).find(f"(Document {wrong.wrong})")
    valid = _longest_beginning(wrong.wrong, row.documents)
    end = start + len("(Document ") + valid + 1
    cut = _cut_after(datum, end, tokenizer) if start >= 0 else None
    if cut is None:
        return None
    advantages = np.zeros(len(cut.targets), np.float32)
    advantages[-1] = -weight
    inputs: dict[str, Array] = {
        "target_tokens": cut.targets,
        "logprobs": np.zeros(len(cut.targets), np.float32),
        "advantages": advantages,
    }
    return Datum(cut.tokens, inputs)


def _longest_beginning(wrong: str, documents: Iterable[str]) -> int:
    """Return how many characters of a wrong id begin an id of the prompt."""
    return max(common_length(wrong, id) for id in documents)


def preference_pair(
    row: ClaimRow, wrong: WrongCitation, tokenizer: Tokenizer, render: RenderDataset, weight: float
) -> tuple[Datum, Datum] | None:
    """Return the right and the wrong answer up to the end of the document id, for a pair loss.

    Only the tokens of the ids, from the first that differs, have a weight. Returns None if either
    answer is truncated before the id, or if one id begins the other.
    """
    pair = _citations(row, wrong, tokenizer, render)
    if pair is None or pair[2] >= min(len(datum.targets) for datum in pair[:2]):
        return None
    right, datum, first = pair
    return _weighted_from(first, right, weight), _weighted_from(first, datum, weight)


def _weighted_from(first: int, datum: Datum, weight: float) -> Datum:
    weights = np.zeros(len(datum.targets), np.float32)
    weights[first:] = weight
    return Datum(datum.tokens, {"target_tokens": datum.targets, "weights": weights})


def _citations(
    row: ClaimRow, wrong: WrongCitation, tokenizer: Tokenizer, render: RenderDataset
) -> tuple[Datum, Datum, int] | None:
    """Return both answers, each cut after the id, and the index of the first target that differs.

    Returns None if either is truncated before the id.
    """
    right_datum = _render(row, row.answer, tokenizer, render)
    datum = _render(row, wrong.answer, tokenizer, render)
    if right_datum is None or datum is None:
        return None
    start = _answer_text(datum, tokenizer).find(f"(Document {wrong.wrong})")
    ends = (start + len(f"(Document {id}") for id in (wrong.right, wrong.wrong))
    right, other = (
        _cut_after(of_answer, end, tokenizer)
        for of_answer, end in zip((right_datum, datum), ends, strict=True)
    )
    if start < 0 or right is None or other is None:
        return None
    shorter = min(len(other.targets), len(right_datum.targets))
    differ = other.targets[:shorter] != right_datum.targets[:shorter]
    return right, other, int(np.argmax(differ)) if differ.any() else shorter


def _render(
    row: ClaimRow, answer: ClaimAnswer | None, tokenizer: Tokenizer, render: RenderDataset
) -> Datum | None:
    conversation = replace(row, answer=answer).conversation()
    data = render.datums(conversation, tokenizer)
    if len(data) > 1:
        raise DataError(f"{row.where}: the chat template renders one answer as {len(data)} rows")
    return data[0] if data else None


def _answer_text(datum: Datum, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(datum.targets[datum.loss_inputs["weights"] != 0])


def _cut_after(datum: Datum, end: int, tokenizer: Tokenizer) -> Datum | None:
    """Cut a datum after the token that completes `end` characters of the answer.

    Returns None if the datum ends before.
    """
    trained = np.flatnonzero(datum.loss_inputs["weights"])
    ends = token_ends(datum.targets[trained], tokenizer)
    reached = [at for at, stop in enumerate(ends) if stop >= end]
    if not reached:
        return None
    count = int(trained[reached[0]]) + 1
    inputs = {name: values[:count] for name, values in datum.loss_inputs.items()}
    return Datum(datum.tokens[:count], inputs)
