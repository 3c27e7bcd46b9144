"""Conversations in text columns: JSON, Python's notation, and dialogues in one text."""

from __future__ import annotations

import json

import pytest

from kitchen.errors import DataError
from stages.chat.conversations import parse_completion, parse_conversation
from stages.preference.comparisons import comparison

TURNS = [{"role": "user", "content": "It's salt?"}, {"role": "assistant", "content": "No."}]
SHARED = [{"from": "human", "value": "Salt?"}, {"from": "gpt", "value": "No."}]
OTHER = [TURNS[0], {"role": "assistant", "content": "Yes."}]


def pairs(messages: object) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "write", [json.dumps, repr, lambda value: f"\n {json.dumps(value, indent=1)} "]
)
def test_a_list_of_messages_as_text_is_read(write) -> None:  # fmt: skip
    for row, plain in (
        ({"messages": write(TURNS)}, {"messages": TURNS}),
        ({"conversations": write(SHARED)}, {"conversations": SHARED}),
        ({"prompt": write(TURNS[:1]), "completion": "No."}, {"messages": TURNS}),
        ({"prompt": write(TURNS[:1]), "completion": write(TURNS[1:])}, {"messages": TURNS}),
    ):
        read, wanted = parse_conversation(row, "d:1"), parse_conversation(plain, "d:1")
        assert read.messages == wanted.messages


def test_pairs_of_messages_as_text_are_read() -> None:
    pair = comparison({"chosen": json.dumps(TURNS), "rejected": json.dumps(OTHER)}, "d:1")
    assert pair.rejected is not None
    assert (pair.chosen.messages[-1].content, pair.rejected.messages[-1].content) == ("No.", "Yes.")


@pytest.mark.parametrize(
    "text", ["[1, 2]", '["a"]', "[sic] so he wrote", '[{"name": "salt"}]', "[]"]
)
def test_other_lists_stay_text(text: str) -> None:
    assert (
        parse_conversation({"prompt": text, "completion": text}, "d:1").messages[1].content == text
    )


@pytest.mark.parametrize("text", ["hi", '[{"role": "user"', "{}", "[{'role': f()}]"])
def test_text_that_is_no_list_is_an_error(text: str) -> None:
    with pytest.raises(DataError, match="d:1: messages is text"):
        parse_conversation({"messages": text}, "d:1")


@pytest.mark.parametrize(
    ("start", "prompt"),
    [
        ("\n\nHuman: Salt?", [("user", "Salt?")]),
        ("Human: Salt?", [("user", "Salt?")]),
        (
            "\n\nHuman: Hi!\n\nAssistant: Hello.\nHow are you?\n\nHuman: Is\n\nsalt a herb?",
            [
                ("user", "Hi!"),
                ("assistant", "Hello.\nHow are you?"),
                ("user", "Is\n\nsalt a herb?"),
            ],
        ),
    ],
)
def test_dialogues_are_split_at_their_turns(start: str, prompt: list[tuple[str, str]]) -> None:
    row = {name: f"{start}\n\nAssistant: {name}" for name in ("chosen", "rejected")}
    pair = comparison(row, "d:1")
    assert pair.rejected is not None
    assert pairs(pair.chosen.messages) == [*prompt, ("assistant", "chosen")]
    assert pairs(pair.rejected.messages) == [*prompt, ("assistant", "rejected")]
    with_prompt = {"prompt": f"{start}\n\nAssistant:", **row}
    assert comparison(with_prompt, "d:1").chosen == pair.chosen


def test_dialogues_that_make_no_pair_are_errors() -> None:
    first = "\n\nHuman: Salt?\n\nAssistant: No."
    for other, problem in (
        ("\n\nHuman: Sugar?\n\nAssistant: No.", "different prompts"),
        (f"{first}\n\nHuman: Sure?", "must be the assistant's answer"),
        (first, "are equal"),
    ):
        with pytest.raises(DataError, match=problem):
            comparison({"chosen": first, "rejected": other}, "d:1")


def test_text_that_mentions_turns_stays_text() -> None:
    row = {"prompt": "Who speaks?", "completion": "It is \n\nHuman: or\n\nAssistant: that speaks."}
    answer = parse_completion(row, "completion", "d:1").messages[-1]
    assert answer.content == row["completion"]


def test_columns_in_one_name_say_their_delimiter() -> None:
    with pytest.raises(DataError, match="separated by ';'"):
        parse_conversation({"prompt;completion": "a;b"}, "d:1")
