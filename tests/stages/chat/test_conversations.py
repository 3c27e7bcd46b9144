"""Parsing of rows into conversations, and errors that name the place."""

from typing import Any

import pytest

from kitchen.errors import DataError
from stages.chat.conversations import FORMATS, Conversation, Message, parse_conversation

ASK, ANSWER = Message("user", "2+2?"), Message("assistant", "4")


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "4"},
            ],
            "answer": "4",
        },
        {"prompt": "2+2?", "completion": "4", "id": 7},
        {"prompt": [{"role": "user", "content": "2+2?"}], "completion": "4"},
        {
            "prompt": [{"role": "user", "content": "2+2?"}],
            "completion": [{"role": "assistant", "content": "4"}],
        },
        {"instruction": "2+2?", "response": "4"},
        {"instruction": "2+2?", "input": "", "output": "4"},
        {"instruction": "2+2?", "context": None, "response": "4", "category": "sums"},
        {"input": "2+2?", "output": "4"},
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]},
        {"conversations": [{"from": "user", "value": "2+2?"}, {"from": "assistant", "value": "4"}]},
        {"messages": None, "prompt": "2+2?", "completion": "4"},
    ],
)
def test_every_format_gives_the_same_conversation(row):
    assert parse_conversation(row, "sums.jsonl:1") == Conversation(
        (ASK, ANSWER), "sums.jsonl:1", single_turn=True
    )


@pytest.mark.parametrize("field", ["input", "context"])
def test_instruction_input_follows_after_a_blank_line(field):
    read = parse_conversation({"instruction": "Translate.", field: "chat", "output": "cat"}, "a:1")
    assert read.messages == (Message("user", "Translate.\n\nchat"), Message("assistant", "cat"))


def test_first_matching_format_is_used():
    row = {
        "prompt": "no",
        "completion": " yes",
        "messages": [{"role": "assistant", "content": "yes"}],
    }
    assert parse_conversation(row, "a:1").messages == (Message("assistant", "yes"),)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"prompt": "?", "completion": "no"}, "'messages' and 'completion'"),
        ({"conversations": [{"from": "gpt", "value": "no"}]}, "'messages' and 'conversations'"),
        ({"instruction": "?", "output": "no"}, "'messages' and 'output'"),
    ],
)
def test_two_different_answers_are_refused(columns, named):
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}]}
    with pytest.raises(
        DataError, match=rf"^a:1: .*different answers in {named}.*columns\.\w+=other"
    ):
        parse_conversation({**row, **columns}, "a:1")


@pytest.mark.parametrize(
    "message",
    [
        {"from": "human", "value": "a", "role": "assistant"},
        {"from": "human", "value": "a", "role": "user", "content": "b"},
    ],
)
def test_a_message_in_two_forms_is_refused(message):
    with pytest.raises(DataError, match=r"^a:1: messages\[0\] has different values in 'from'"):
        parse_conversation({"messages": [message, {"role": "assistant", "content": "c"}]}, "a:1")


def test_many_turns_keep_order_and_trainable_marks():
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hm", "trainable": False},
            {"role": "tool", "content": "{}"},
            {"role": "assistant", "content": "Hello", "trainable": True},
        ]
    }
    read = parse_conversation(row, "a:1")
    assert [m.role for m in read.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [m.trainable for m in read.messages] == [None, None, False, None, True]
    assert not read.single_turn


@pytest.mark.parametrize("name", ["tool", "function"])  # OpenAI's older name
def test_result_of_a_tool_has_the_role_tool(name):
    call = {"name": "time", "arguments": "{}"}
    row = {
        "messages": [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": None, "function_call": call},
            {"role": name, "name": "time", "content": "12:00"},
            {"role": "assistant", "content": "Noon."},
        ],
        "functions": [{"name": "time", "description": "The time.", "parameters": {}}],
    }
    messages = parse_conversation(row, "a:1").messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2] == Message("tool", "12:00", fields={"name": "time"})


def bad_message(**message):
    return {
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, message]
    }


@pytest.mark.parametrize(
    "row, expected",
    [
        (
            bad_message(role="assistant", content=5),
            "messages[2].content is a number",
        ),
        (
            bad_message(role="assistant", content=None),
            "messages[2].content is null",
        ),
        (
            bad_message(role="assistant", content=["x"]),
            "messages[2].content is a list",
        ),
        (
            bad_message(role="assistant", content="half \ud83d"),
            "messages[2].content has half",
        ),
        (
            bad_message(role="asistant", content="x"),
            "did you mean 'assistant'?",
        ),
        (bad_message(role="assistant"), "messages[2] has no 'content'"),
        (
            bad_message(role="assistant", content="x", trainable=1),
            "messages[2].trainable is a number",
        ),
        (
            bad_message(role="assistant", content="", tool_calls=[{"id": 1}]),
            "messages[2].tool_calls[0]",
        ),
        (
            bad_message(role="assistant", content="x", weight=0.5),
            "messages[2].weight is a number",
        ),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hello"}, "messages is text"),
        ({"messages": ["hello"]}, "messages[0] is text"),
        (
            {"conversations": [{"from": "humann", "value": "x"}]},
            "conversations[0].from 'humann'",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            "no assistant message",
        ),
        (
            {"prompt": "a", "completion": True},
            "completion is true or false",
        ),
        (
            {"prompt": "a", "completion": "b", "label": False},
            "recipes.kto",
        ),
        (
            {"prompt": "a", "completion": "b", "label": "False"},
            "recipes.kto",
        ),
        (
            {**bad_message(role="assistant", content="x"), "label": False},
            "drop the row",
        ),
        (
            {"instruction": "a", "input": {"b": 1}, "output": "c"},
            "input is an object",
        ),
    ],
)
def test_bad_field_is_reported_with_its_place(row, expected):
    with pytest.raises(DataError) as caught:
        parse_conversation(row, "chats.jsonl:12")
    assert expected in str(caught.value)
    assert str(caught.value).startswith("chats.jsonl:12: ")


def test_unknown_row_is_shown_with_the_formats():
    with pytest.raises(DataError) as caught:
        parse_conversation(
            {"question": "why " * 1_000_000, "replies": ["because"] * 1_000}, "faq.csv:3"
        )
    expected = str(caught.value)
    assert expected.startswith("faq.csv:3: no known format")
    assert all(form in expected for form in FORMATS)
    assert len(expected) < 500


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "why?"}, "'completion' is missing"),
        ({"prompt": "why?", "completion": None}, "'completion' is null"),
        (
            {"prompt": "why?", "answer": "so"},
            "reading.columns.answer=completion",
        ),
        (
            {"id": 1, "question": "why?", "answer": "so"},
            "reading.columns.question=prompt reading.columns.answer=completion",
        ),
    ],
)
def test_missing_column_is_named_with_a_rename_hint(row: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError) as error:
        parse_conversation(row, "faq.csv:3")
    assert str(error.value).startswith("faq.csv:3: ")
    assert why in str(error.value)
