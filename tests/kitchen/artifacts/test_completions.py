"""Completions of a prompt, whole and streamed."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from kitchen.artifacts.completions import TextPieces


@pytest.mark.parametrize(
    ("prefix", "text", "pieces"),
    [("", "hé", ["h", "", "é"]), (" ", " ab", ["", "a", "b"]), (" ", "ab", ["a", "b"])],
)
def test_pieces_are_whole_characters_without_the_prefix(
    prefix: str, text: str, pieces: list[str]
) -> None:
    tokenizer = ByteTokenizer()
    stream = TextPieces(tokenizer, prefix)
    tokens = np.append(tokenizer.encode(text), tokenizer.stop_ids[0])
    assert [stream.add(int(token)) for token in tokens] == [*pieces, ""]
    assert stream.text == "".join(pieces)
