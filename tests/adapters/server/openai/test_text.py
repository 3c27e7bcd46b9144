"""The text of completions, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tinker")
pytest.importorskip("starlette")
pytest.importorskip("transformers")

from adapters.fake.tokenizer import END_OF_TURN, ByteTokenizer
from adapters.server.openai.text import CompletionText
from adapters.server.openai.tool_text import ToolText
from adapters.tokenizer import FolderTokenizer
from tests.support.tokenizers import trained_tokenizer

CALL = '<tool_call>{"name": "timer", "arguments": {"minutes": 3}}</tool_call>'


@pytest.fixture(scope="module", params=["byte-level", "metaspace", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> FolderTokenizer:
    return trained_tokenizer(request.param)


def pieces(text: CompletionText, tokens: Sequence[int]) -> list[str]:
    return [*map(text.add, tokens), text.finish()]


@given(st.lists(st.integers(0, 120), max_size=12))
def test_pieces_join_to_the_decoded_text(tokenizer: FolderTokenizer, tokens: list[int]) -> None:
    kept = [token for token in tokens if token not in tokenizer.stop_ids]
    assert "".join(pieces(CompletionText(tokenizer), kept)) == tokenizer.decode(kept)


@given(st.text("ab é😀", max_size=40))
def test_no_token_is_longer_than_the_longest(tokenizer: FolderTokenizer, text: str) -> None:
    assert len(text) <= len(tokenizer.encode(text)) * tokenizer.longest_token


@given(st.text(max_size=12))
def test_characters_are_never_cut(text: str) -> None:
    parts = pieces(CompletionText(ByteTokenizer()), ByteTokenizer().encode(text).tolist())
    assert "".join(parts) == text
    assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


def test_a_cut_character_is_shown_at_the_end_only() -> None:
    tokens = [*"é!".encode()[:2], 0xE2, 0x82]
    assert pieces(CompletionText(ByteTokenizer()), tokens) == ["", "é", "", "", "\ufffd"]


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    completion = CompletionText(ByteTokenizer(), stop)
    parts = pieces(completion, [*text.encode(), END_OF_TURN])
    ends = [index for index in range(1, len(text) + 1) if text[:index].endswith(tuple(stop))]
    completed = text[: ends[0]] if stop and ends else text
    places = [completed.find(one) for one in stop if one in completed]
    assert "".join(parts) == (completed[: min(places)] if places else text)
    assert completion.is_stopped == bool(places)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain <tool text", "plain <tool text", 0),
        (f"Let me see.\n{CALL}", "Let me see.", 1),
        (f"{CALL}\n{CALL}", "", 2),
        ('{"name": "timer", "arguments": {}}', "", 1),
        ('{"minutes": 3}', '{"minutes": 3}', 0),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", 0),
        ("  spaced  ", "  spaced  ", 0),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_never_shown_as_text(text: str, content: str, calls: int, size: int) -> None:
    parts = ToolText()
    shown = [parts.add(text[start : start + size]) for start in range(0, len(text), size)]
    rest, found = parts.finish()
    assert "".join(shown) + rest == content
    assert len(found) == calls
    assert len({call["id"] for call in found}) == calls
