"""Rows of plain text: which rows these are, and exact tokens and masks."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.fake.tokenizer import END, ByteTokenizer
from kitchen.errors import ConfigError, DataError
from stages.chat.conversations import parse_conversation
from stages.chat.plain_text import parse_row
from stages.chat.render import RenderDataset, render_row
from stages.evaluate.evaluation import EvalConfig

PAIR = {"prompt": "Is basil a herb?", "completion": "Yes, chef."}


def test_a_text_is_trained_on_whole_and_ended() -> None:
    row = parse_row({"text": "hi", "label": 1, "id": 7}, "a:1")
    for settings in (RenderDataset(), RenderDataset("trainable", chat=False)):
        [datum] = render_row(row, ByteTokenizer(), settings).data
        assert datum.tokens.tolist() == [END, *b"hi"]
        assert datum.targets.tolist() == [*b"hi", END]
        assert datum.loss_inputs["weights"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("characters", [3, 4, 5, 8, 9])
def test_a_long_text_is_split_without_losing_a_token(characters: int) -> None:
    text = "abcdefghi"[:characters]
    rendered = render_row(
        parse_row({"text": text}, "a:1"),
        ByteTokenizer(),
        RenderDataset(max_tokens=5, overlong="split"),
    )
    targets = [token for datum in rendered.data for token in datum.targets.tolist()]
    assert targets == [*text.encode(), END]
    assert all(len(datum.tokens) < 5 for datum in rendered.data)
    firsts = [datum.tokens[0] for datum in rendered.data[1:]]
    assert firsts == [datum.targets[-1] for datum in rendered.data[:-1]]
    assert rendered.counts.split_texts == (characters > 3)
    assert rendered.counts.lost_tokens == rendered.counts.truncated == 0


def test_other_ways_with_long_texts_count_what_is_lost() -> None:
    row, tokenizer = parse_row({"text": "abcdefghi"}, "a:1"), ByteTokenizer()
    cut = render_row(row, tokenizer, RenderDataset(max_tokens=5, overlong="truncate"))
    assert cut.data[0].targets.tolist() == [*b"abcd"]
    assert (cut.counts.truncated, cut.counts.lost_tokens) == (1, 6)
    left_out = render_row(row, tokenizer, RenderDataset(max_tokens=5, overlong="drop"))
    assert (left_out.data, left_out.counts.dropped, left_out.counts.lost_tokens) == ((), 1, 10)
    with pytest.raises(DataError, match=r"^a:1: 11 tokens .*or to 'split', for rows of plain"):
        render_row(row, tokenizer, RenderDataset(max_tokens=5))


def test_split_does_not_cut_conversations() -> None:
    with pytest.raises(DataError, match=r"^a:1: "):
        render_row(
            parse_row(PAIR, "a:1"), ByteTokenizer(), RenderDataset(max_tokens=5, overlong="split")
        )
    with pytest.raises(ConfigError, match="split"):
        RenderDataset(overlong="splits")  # type: ignore[arg-type]


def test_a_conversation_that_is_text_too_is_the_conversation() -> None:
    row = parse_row({**PAIR, "text": "Is basil a herb? Yes, chef. END"}, "a:1")
    assert [message.role for message in row.messages] == ["user", "assistant"]
    assert not row.plain_text
    assert parse_row({**PAIR, "text": None}, "a:1") == parse_row(PAIR, "a:1")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**PAIR, "text": "Salt is no herb."}, r"reading\.columns\.text=other"),
        ({"text": "Salt.", "prompt": "Salt?"}, r"beside 'prompt'.*reading\.columns\.prompt=other"),
        ({"text": "Salt.", "system": "You cook."}, r"beside 'system'"),
        ({"text": " \n"}, "'text' is empty"),
        ({"text": ""}, "'text' is empty"),
        ({"text": None}, "text is null, not text"),
        ({"text": 7}, "text is a number, not text"),
        ({"text": "Salt.", "image": "a.png"}, "the column 'image' is not supported"),
        ({"text": "Salt.", "label": False}, "label is false"),
    ],
)
def test_rows_of_text_that_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^a:1: .*{message}"):
        parse_row(row, "a:1")


def test_recipes_that_need_a_prompt_refuse_texts() -> None:
    with pytest.raises(DataError, match=r"^a:1: .*recipes\.sl_basic and recipes\.chat_sl train"):
        parse_conversation({"text": "Salt."}, "a:1")


def test_texts_are_evaluated_by_their_loss() -> None:
    rows = [parse_row(row, "a:1") for row in (PAIR, {"text": "Salt."})]
    assert EvalConfig().metric_for(rows) == EvalConfig("loss").metric_for(rows) == "loss"
    with pytest.raises(DataError, match=r"^a:1: evaluation\.metric=text"):
        EvalConfig("text").metric_for(rows)
