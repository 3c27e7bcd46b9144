"""Loss weights of an answer's tokens, by the kind of line and the part of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from pydantic import NonNegativeFloat

from kitchen.ports import Tokenizer
from kitchen.types import Datum, Floats, Tokens
from stages.chat.joining import common_length

_PART = re.compile(
    r"^[ \t]*(?P<start>CLAIM\[|RELATION\b)|\((?:Document|citing) (?P<document>[^()\s]+)\)"
    r"|\b(?P<verb>supports|refutes|contradicts)\b",
    re.I,
)
_MAIN = re.compile(r"[ \t]*CLAIM\[c1\]", re.I)
_RELATION = re.compile(r"[ \t]*RELATION\b", re.I)


@dataclass(frozen=True)
class LineWeights:
    """Loss weights of tokens by line; a weight of a part replaces that of its line, if it is set.

    Copying a claim is easy, while a line's start and the end (whether there is another document to
    cite), a document's id and the relation's verb are decisions; the defaults weight those. Whether
    another line follows is decided at the line break before it.
    """

    claim: NonNegativeFloat = 1.0  # the line of CLAIM[c1]
    evidence: NonNegativeFloat = 1.0  # the lines of other claims
    relation: NonNegativeFloat = 1.0  # the lines of relations
    # "CLAIM[" and "RELATION", and the line break before them; null for the line's weight
    line_start: NonNegativeFloat | None = 4.0
    document: NonNegativeFloat | None = 4.0  # ids of cited documents; null for the line's weight
    verb: NonNegativeFloat | None = 15.0  # "supports" and "refutes"; null for the line's weight
    end: NonNegativeFloat = 4.0  # stop tokens


# each token of c1 weighs 5, of evidence 2, of relations 1
BY_LINE = LineWeights(5.0, 2.0, 1.0, None, None, None, 1.0)
UNIFORM = LineWeights(1.0, 1.0, 1.0, None, None, None, 1.0)


def token_ends(tokens: Tokens, tokenizer: Tokenizer) -> list[int]:
    """Return, for each token, how many characters of the decoded text end with it.

    A token that completes no character has the end of the token before it.
    """
    text = tokenizer.decode(tokens)
    prefixes = (tokenizer.decode(tokens[: at + 1]) for at in range(len(tokens)))
    return [common_length(prefix, text) for prefix in prefixes]


def answer_weights(tokens: Tokens, tokenizer: Tokenizer, weights: LineWeights) -> Floats:
    """Return the (T,) weights of an answer's tokens: the largest weight of their characters.

    Tokens without characters, such as stop tokens, weigh `weights.end`.
    """
    by_character = np.array(list(_characters(tokenizer.decode(tokens), weights)), np.float32)
    result = np.full(len(tokens), weights.end, np.float32)
    start = 0
    for at, end in enumerate(token_ends(tokens, tokenizer)):
        if end > start:
            result[at] = by_character[start:end].max()
        start = end
    return result


def _characters(text: str, weights: LineWeights) -> Iterator[float]:
    """Yield the weight of each character of an answer."""
    for line in text.splitlines(keepends=True):
        if _MAIN.match(line):
            whole = weights.claim
        elif _RELATION.match(line):
            whole = weights.relation
        else:
            whole = weights.evidence
        by_character = [whole] * len(line)
        if weights.line_start is not None and line.endswith("\n"):
            by_character[-1] = weights.line_start
        for found in _PART.finditer(line):
            for part, weight in (
                ("start", weights.line_start),
                ("document", weights.document),
                ("verb", weights.verb if _RELATION.match(line) else None),
            ):
                if weight is not None and found[part] is not None:
                    start, end = found.span(part)
                    by_character[start:end] = [weight] * (end - start)
        yield from by_character


def weight_datum(datum: Datum, tokenizer: Tokenizer, weights: LineWeights) -> Datum:
    """Return a rendered datum whose trained-on tokens weigh by line instead of 1."""
    trained = datum.loss_inputs["weights"] != 0
    by_token = np.zeros(len(datum.tokens), np.float32)
    by_token[trained] = answer_weights(datum.targets[trained], tokenizer, weights)
    return replace(datum, loss_inputs={**datum.loss_inputs, "weights": by_token})
