"""Fields of other formats: each is read as its authors mean it, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kitchen.errors import DataError
from stages.chat.conversations import parse_conversation
from stages.chat.masks import trained_messages
from stages.chat.messages import parse_message
from stages.chat.row_fields import FLAGS
from stages.preference.comparisons import comparison

ASK = {"role": "user", "content": "Who?"}
BAD = {"role": "assistant", "content": "bad"}
GOOD = {"role": "assistant", "content": "good"}
PAIR = {"prompt": "Who?", "completion": "Ann"}


def parse(row: Mapping[str, Any]) -> Any:
    return parse_conversation(row, "rows.jsonl:1")


@pytest.mark.parametrize(
    "field",
    [
        {"loss": False},
        {"loss": 0},
        {"loss_mask": 0},
        {"loss_mask": False},
        {"loss_weight": 0.0},
        {"train_on_turn": False},
        {"masked": True},
    ],
)
def test_a_flag_of_peers_excludes_a_message(field: Mapping[str, Any]) -> None:
    row = parse({"messages": [ASK, {**BAD, **field}, ASK, GOOD]})
    assert trained_messages(row, "all_assistant_messages") == (False, False, False, True)


@pytest.mark.parametrize(
    "field", [{"loss": True}, {"loss_mask": 1}, {"train_on_turn": True}, {"masked": False}]
)
def test_a_flag_of_peers_selects_a_message(field: Mapping[str, Any]) -> None:
    row = parse({"messages": [ASK, BAD, ASK, {**GOOD, **field}]})
    assert trained_messages(row, "trainable") == (False, False, False, True)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ({"loss": 0.5}, r"messages\[1\].loss is a number, not 0, 1, true or false"),
        ({"loss_weight": 2}, r"messages\[1\].loss_weight is a number, not 0, 1, true or false"),
        ({"loss_mask": [0, 1]}, r"messages\[1\].loss_mask is a list, not 0, 1, true or false"),
        ({"masked": "yes"}, r"messages\[1\].masked is text, not true or false"),
        ({"masked": 1}, r"messages\[1\].masked is a number, not true or false"),
        ({"loss": True, "train": False}, "contradict"),
        ({"masked": True, "train": True}, "contradict"),
        ({"mask": 0}, r"messages\[1\].mask is not supported"),
    ],
)
def test_a_flag_that_is_no_flag_is_refused(field: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=f"rows.jsonl:1: .*{problem}"):
        parse({"messages": [ASK, {**GOOD, **field}]})


@pytest.mark.parametrize(("field", "shown"), [({"loss": True}, "true"), ({"loss_mask": 1}, "1")])
def test_a_mark_on_a_user_message_is_refused(field: Mapping[str, Any], shown: str) -> None:
    [name] = field
    problem = rf"messages\[0\].{name} is {shown}, but only .* can be marked with '{name}'"
    with pytest.raises(DataError, match=f"rows.jsonl:1: {problem}"):
        parse({"messages": [{**ASK, **field}, GOOD]})


@pytest.mark.parametrize("name", FLAGS)
def test_an_excluded_message_names_the_flags(name: str) -> None:
    row = parse({"messages": [ASK, {**BAD, name: name == "masked"}, ASK, GOOD]})
    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*\(by one of .*{name}.*\)"):
        trained_messages(row, "all_tokens")


@pytest.mark.parametrize("weight", [1, 1.0, "1", None, True])
def test_a_row_of_weight_1_is_read(weight: Any) -> None:
    assert parse({**PAIR, "weight": weight, "loss_scale": weight}).messages[-1].content == "Ann"


@pytest.mark.parametrize("weight", [0, 0.5, 2, "0", [1, 0], False])
def test_a_row_of_another_weight_is_refused(weight: Any) -> None:
    for name in ("weight", "sample_weight", "loss_weight", "loss_scale"):
        with pytest.raises(DataError, match=f"rows.jsonl:1: the column '{name}' is not supported"):
            parse({**PAIR, name: weight})


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content", "thought"])
def test_a_column_is_the_thought_of_the_answer(name: str) -> None:
    rows: tuple[Mapping[str, Any], ...] = (
        PAIR,
        {"instruction": "Who?", "output": "Ann"},
        {"prompt": [ASK], "completion": [{"role": "assistant", "content": "Ann"}]},
        {"question": "Who?", "choices": ["Ann", "Bob"], "answer": 0},
    )
    for row in rows:
        assert parse({**row, name: "Hm."}).messages[-1].fields == {name: "Hm."}
        assert parse({**row, name: ""}).messages[-1].fields == {}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": [ASK, GOOD], "reasoning": "Hm."}, "'reasoning' beside 'messages'"),
        ({"conversations": [ASK, GOOD], "thought": "Hm."}, "'thought' beside 'conversations'"),
        ({**PAIR, "completion": "<think>?</think>Ann", "thinking": "Hm."}, "keep one thought"),
        ({**PAIR, "reasoning": "Hm.", "thinking": "Hm."}, "which mean the same"),
        ({**PAIR, "reasoning": ["Hm."]}, "reasoning is a list, not text"),
    ],
)
def test_a_thought_without_a_clear_message_is_refused(row: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=f"rows.jsonl:1: .*{problem}"):
        parse(row)


@pytest.mark.parametrize("name", ["reasoning", "thinking"])
@pytest.mark.parametrize("value", [True, False, 1, "off", "ON", "False", " yes", "high", {"a": 1}])
def test_a_setting_is_no_thought(name: str, value: Any) -> None:
    for row in (PAIR, {"messages": [ASK, GOOD]}, {"instruction": "Who?", "output": "Ann"}):
        with pytest.raises(DataError, match=rf"rows.jsonl:1: {name} is .*{name}=other"):
            parse({**row, name: value})


@pytest.mark.parametrize("value", ["Turn it off.", "Yes, Ann.", "Hm"])
def test_a_short_text_is_a_thought(value: str) -> None:
    assert parse({**PAIR, "reasoning": value}).messages[-1].fields == {"reasoning": value}


@pytest.mark.parametrize(
    ("beside", "row"),
    [
        ("chosen", {"prompt": "Who?", "chosen": "Ann", "rejected": "Bob"}),
        ("rejected_response", {**PAIR, "rejected_response": "Bob"}),
        ("rejected_response", {"instruction": "Who?", "output": "Ann", "rejected_response": BAD}),
        ("rejected_messages", {**PAIR, "rejected_messages": [ASK, BAD]}),
    ],
)
@pytest.mark.parametrize("name", ["reasoning", "thought"])
def test_a_thought_beside_a_pair_is_refused(beside: str, row: Mapping[str, Any], name: str) -> None:
    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*'{name}' beside '{beside}'"):
        comparison({**row, name: "Hm."}, "rows.jsonl:1")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, GOOD], "rejected_response": "bad"},
        {"messages": [ASK, GOOD], "rejected_response": BAD},
        {"messages": [ASK, GOOD], "rejected_response": [BAD]},
        {"messages": [ASK, GOOD], "rejected_messages": [ASK, BAD]},
        {"instruction": "Who?", "output": "good", "rejected_response": "bad"},
        {"messages": [ASK, GOOD], "rejected_messages": [ASK, BAD], "system": "You cook."},
        {"messages": [ASK, GOOD], "rejected_response": "bad", "system": "You cook."},
    ],
)
def test_a_rejected_response_completes_a_pair(row: Mapping[str, Any]) -> None:
    pair = comparison(row, "rows.jsonl:1")
    assert pair.rejected is not None
    assert pair.chosen.messages[:-1] == pair.rejected.messages[:-1]
    assert pair.chosen.messages[-1].content == "good"
    assert pair.rejected.messages[-1].content == "bad"
    assert pair.chosen.prompt_length == pair.rejected.prompt_length == len(pair.chosen.messages) - 1


def test_equal_answers_of_a_pair_are_refused() -> None:
    row = {"messages": [ASK, GOOD], "rejected_response": "good"}
    with pytest.raises(DataError, match=r"rows.jsonl:1: chosen and rejected are equal"):
        comparison(row, "rows.jsonl:1")


def test_a_history_may_be_a_list_of_messages() -> None:
    history = [{"role": "user", "content": "Hello?"}, {"from": "gpt", "value": "Yes."}]
    messages = parse({**PAIR, "history": history}).messages
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
    mixed = [["Hello?", "Yes."], *history]
    assert len(parse({"instruction": "Who?", "output": "Ann", "history": mixed}).messages) == 6
    with pytest.raises(DataError, match=r"history\[0\] is neither a pair"):
        parse({**PAIR, "history": ["Hello?"]})


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("human", "user"),
        ("User", "user"),
        ("gpt", "assistant"),
        ("model", "assistant"),
        ("BOT", "assistant"),
        ("CHATBOT", "assistant"),
        ("ipython", "tool"),
        ("observation", "tool"),
        ("tool_response", "tool"),
        ("Developer", "system"),
    ],
)
def test_names_of_roles_in_any_format(name: str, role: str) -> None:
    for item in ({"role": name, "content": "?"}, {"from": name, "value": "?"}):
        assert parse_message(item, "messages[0]", "rows.jsonl:1").role == role


def test_a_tool_call_may_be_a_role() -> None:
    item = {"role": "tool_call", "content": '{"name": "timer", "arguments": {}}'}
    message = parse_message(item, "messages[0]", "rows.jsonl:1")
    assert message.fields["tool_calls"][0]["function"] == {"name": "timer", "arguments": {}}


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "input_text", "text": "Who"}, {"type": "output_text", "text": "?"}],
        [{"text": "Who"}, {"text": "?"}],
        [{"type": "text", "text": "Who?"}],
    ],
)
def test_parts_of_text_are_joined(parts: Any) -> None:
    item = {"role": "user", "content": parts}
    assert parse_message(item, "messages[0]", "rows.jsonl:1").content == "Who?"


@pytest.mark.parametrize("part", [{"type": "input_image"}, {"type": "tool_use"}, {"image": "a"}])
def test_other_parts_are_refused(part: Any) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:1: messages\[0\].content\[0\] has the type"):
        parse_message({"role": "user", "content": [part]}, "messages[0]", "rows.jsonl:1")


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"custom_id": "1", "body": {"messages": [ASK]}}, "as the column messages"),
        ({"contents": [{"role": "user", "parts": [{"text": "?"}]}]}, "write the row as messages"),
        ({"ctx": "A", "endings": ["b", "c"], "label": "0"}, "reading.columns.endings=choices"),
        ({"question": "?", "answers": {"text": ["a"]}}, "reading.columns.answers=completion"),
    ],
)
def test_hints_for_rows_of_other_formats(row: Mapping[str, Any], hint: str) -> None:
    with pytest.raises(DataError, match=f"rows.jsonl:1: .*{hint}"):
        parse(row)


def test_the_hints_lead_to_rows_that_are_read() -> None:
    swag = parse({"question": "A", "choices": ["b", "c"], "answer": "0", "activity_label": "x"})
    assert swag.messages[-1].content == "b"
    squad = {"text": ["Ann", "Anna", "Ann"], "answer_start": [0, 4, 9]}
    row = parse({"prompt": "Who?", "completion": squad})
    assert (row.messages[-1].content, row.other_answers) == ("Ann", ("Anna",))
    row = parse({"instruction": "Who?", "context": "Ann cooks.", "response": squad})
    assert row.messages[0].content == "Who?\n\nAnn cooks."


@pytest.mark.parametrize(
    "row", [{"content": "Basil."}, {"id": 3, "score": 0.5}, {"name": "x", "meta": {"a": 1}}]
)
def test_no_hint_where_renaming_cannot_help(row: Mapping[str, Any]) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl:1: no known format") as caught:
        parse(row)
    assert "reading.columns" not in str(caught.value)
