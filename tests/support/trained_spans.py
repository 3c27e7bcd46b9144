"""The text of a datum in spans, with marks of what is trained on."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from kitchen.ports import Tokenizer
from kitchen.types import Datum


def trained_spans(datum: Datum, tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """Return the datum's text in spans, each with a flag: whether it is trained on.

    A special token is shown as its id: "<2>".
    """
    tokens = np.concatenate([datum.tokens[:1], datum.targets])
    trained = [False, *(datum.loss_inputs["weights"] != 0).tolist()]
    special = [not tokenizer.decode(tokens[at : at + 1]) for at in range(len(tokens))]
    pieces: list[tuple[str, bool]] = []
    kinds = groupby(range(len(tokens)), key=lambda at: (trained[at], special[at]))
    for (is_trained, is_special), run in kinds:
        ids = tokens[list(run)]  # decoded together: one character may be several tokens
        text = "".join(f"<{token}>" for token in ids) if is_special else tokenizer.decode(ids)
        pieces.append((text, is_trained))
    spans: list[tuple[str, bool]] = []
    for is_trained, run_of_pieces in groupby(pieces, key=lambda piece: piece[1]):
        spans.append(("".join(text for text, _ in run_of_pieces), is_trained))
    return spans
