"""Every known field of a row does what the table of fields says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kitchen.errors import DataError
from kitchen.types import Datum
from stages.chat.conversations import Conversation
from stages.chat.plain_text import parse_row
from stages.chat.render import RenderDataset
from stages.chat.row_fields import FIELDS, RowField
from stages.preference.comparisons import Comparison, comparison
from stages.preference.kto import labelled_or_comparison
from tests.support.tool_template import TIMER, tool_tokenizer

ASK = {"role": "user", "content": "Is basil a herb?"}
ANSWER = {"role": "assistant", "content": "Yes, chef."}
PAIR = {"prompt": "Is basil a herb?", "completion": "Yes, chef."}
PREFERENCE = {"prompt": "Is basil a herb?", "chosen": "Yes, chef.", "rejected": "No."}
CHOICES = {"prompt": "Which?", "choices": ["salt", "basil"]}
CALL = {"name": "timer", "arguments": '{"minutes": 5}'}


def talk(**fields: Any) -> dict[str, Any]:
    """Return a row whose last message has these fields; without them, it is as long."""
    return {"messages": [ASK, ANSWER, ASK, {**ANSWER, **fields}]}


# for each field, a row that has it
EXAMPLES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("row", "messages"): {"messages": [ASK, ANSWER]},
    ("row", "conversations"): {"conversations": [{"from": "human", "value": "?"}, ANSWER]},
    ("row", "prompt"): PAIR,
    ("row", "completion"): PAIR,
    ("row", "instruction"): {"instruction": "Answer.", "input": "Basil?", "output": "Yes."},
    ("row", "input"): {"instruction": "Answer.", "input": "Basil?", "output": "Yes."},
    ("row", "context"): {"instruction": "Answer.", "context": "Basil?", "response": "Yes."},
    ("row", "output"): {"instruction": "Answer.", "output": "Yes."},
    ("row", "response"): {"instruction": "Answer.", "response": "Yes."},
    ("row", "choices"): {**CHOICES, "answer": 1},
    ("row", "answer"): {**CHOICES, "answer": 1},
    ("row", "answerKey"): {**CHOICES, "answerKey": "B"},
    ("row", "system"): {**PAIR, "system": "You cook."},
    ("row", "system_prompt"): {"messages": [ASK, ANSWER], "system_prompt": "You cook."},
    ("row", "history"): {**PAIR, "history": [["Hello?", "Yes, chef."]]},
    ("row", "reasoning_content"): {**PAIR, "reasoning_content": "A plant."},
    ("row", "reasoning"): {**PAIR, "reasoning": "A plant."},
    ("row", "thinking"): {"instruction": "Basil?", "output": "Yes.", "thinking": "A plant."},
    ("row", "thought"): {"input": "Basil?", "output": "Yes.", "thought": "A plant."},
    ("row", "tools"): {**PAIR, "tools": [TIMER]},
    ("row", "functions"): {**PAIR, "functions": [TIMER["function"]]},
    ("row", "chat_template_kwargs"): {**PAIR, "chat_template_kwargs": {"enable_thinking": False}},
    ("row", "reasoning_effort"): {**PAIR, "reasoning_effort": "high"},
    ("row", "enable_thinking"): {**PAIR, "enable_thinking": False},
    ("row", "suffix"): {**PAIR, "suffix": "the end"},
    ("row", "tool_choice"): {**PAIR, "tool_choice": "none"},
    ("row", "response_format"): {**PAIR, "response_format": {"type": "json_object"}},
    ("row", "images"): {**PAIR, "images": ["herb.png"]},
    ("row", "image"): {**PAIR, "image": {"path": "herb.png"}},
    ("row", "videos"): {**PAIR, "videos": ["herb.mp4"]},
    ("row", "audios"): {**PAIR, "audios": ["herb.wav"]},
    ("row", "input_ids"): {**PAIR, "input_ids": [1, 2]},
    ("row", "completion_mask"): {**PAIR, "completion_mask": [0, 1]},
    ("row", "assistant_masks"): {**PAIR, "assistant_masks": [0, 1]},
    ("row", "loss_mask"): {"messages": [ASK, ANSWER], "loss_mask": [0, 1]},
    ("row", "mask"): {"conversations": [ASK, ANSWER], "mask": "User"},
    ("row", "weight"): {"messages": [ASK, ANSWER], "weight": 0},
    ("row", "sample_weight"): {**PAIR, "sample_weight": 2.5},
    ("row", "loss_weight"): {**PAIR, "loss_weight": 0.5},
    ("row", "loss_scale"): {**PAIR, "loss_scale": [0, 1]},
    ("row", "documents"): {**PAIR, "documents": [{"title": "Herbs", "text": "Basil."}]},
    ("row", "kto_tag"): {**PAIR, "kto_tag": False},
    ("row", "text"): {"text": "Basil is a herb."},
    ("row", "segments"): {"segments": [{"label": True, "text": "Yes."}]},
    ("row", "completions"): {"prompt": "?", "completions": ["a", "b"], "labels": [True, False]},
    ("row", "preferred_output"): {"input": {"messages": [ASK]}, "preferred_output": [ANSWER]},
    ("row", "non_preferred_output"): {"input": {}, "non_preferred_output": [ANSWER]},
    ("row", "body"): {"custom_id": "1", "method": "POST", "body": {"messages": [ASK, ANSWER]}},
    ("row", "contents"): {"contents": [{"role": "user", "parts": [{"text": "?"}]}]},
    ("row", "endings"): {"ctx": "A cook", "endings": ["stirs", "flies"], "label": "0"},
    ("row", "answers"): {"question": "Who?", "context": "c", "answers": {"text": ["Ann"]}},
    ("row", "parallel_tool_calls"): {**PAIR, "parallel_tool_calls": False},
    ("row", "id"): {**PAIR, "id": 7},
    ("row", "prompt_id"): {**PAIR, "prompt_id": "a7"},
    ("row", "source"): {**PAIR, "source": "cookbook"},
    ("preference row", "chosen"): PREFERENCE,
    ("preference row", "rejected"): PREFERENCE,
    ("preference row", "rejected_response"): {
        "messages": [ASK, ANSWER],
        "rejected_response": "No.",
    },
    ("preference row", "rejected_messages"): {
        "messages": [ASK, ANSWER],
        "rejected_messages": [ASK, {**ANSWER, "content": "No."}],
    },
    ("preference row", "label"): {**PAIR, "label": False},
    ("preference row", "margin"): {**PREFERENCE, "margin": 0.5},
    ("preference row", "ref_chosen_logps"): {**PREFERENCE, "ref_chosen_logps": -3.5},
    ("preference row", "ref_rejected_logps"): {**PREFERENCE, "ref_rejected_logps": -3.5},
    ("preference row", "score_chosen"): {**PREFERENCE, "score_chosen": 9},
    ("preference row", "score_rejected"): {**PREFERENCE, "score_rejected": 2},
    ("message", "role"): talk(),
    ("message", "content"): talk(content=[{"type": "text", "text": "Yes, "}]),
    ("message", "from"): {"conversations": [{"from": "human", "value": "?"}, ANSWER]},
    ("message", "value"): {"conversations": [{"from": "human", "value": "?"}, ANSWER]},
    ("message", "reasoning_content"): talk(reasoning_content="A plant."),
    ("message", "reasoning"): talk(reasoning="A plant."),
    ("message", "thinking"): talk(thinking="A plant."),
    ("message", "thought"): talk(thought="A plant."),
    ("message", "tool_calls"): talk(tool_calls=[{"type": "function", "function": CALL}]),
    ("message", "function_call"): talk(function_call=CALL),
    ("message", "tool_call_id"): {
        "messages": [ASK, {"role": "tool", "content": "5", "tool_call_id": "c1"}, ANSWER]
    },
    ("message", "name"): {"messages": [{**ASK, "name": "Ann"}, ANSWER]},
    ("message", "trainable"): talk(trainable=False),
    ("message", "train"): talk(train=False),
    ("message", "training"): talk(training=False),
    ("message", "train_on_turn"): talk(train_on_turn=False),
    ("message", "loss"): talk(loss=False),
    ("message", "loss_mask"): talk(loss_mask=0),
    ("message", "loss_weight"): talk(loss_weight=0.0),
    ("message", "weight"): talk(weight=0),
    ("message", "masked"): talk(masked=True),
    ("message", "prefix"): {"messages": [ASK, {**ANSWER, "prefix": True}, ANSWER]},
    ("message", "partial"): {"messages": [ASK, {**ANSWER, "partial": True}, ANSWER]},
    ("message", "channel"): talk(channel="analysis"),
    ("message", "recipient"): talk(recipient="functions.timer"),
    ("message", "reasoning_details"): talk(reasoning_details=[{"text": "A plant."}]),
    ("message", "train_detail"): talk(
        train_detail=[{"begin_offset": 0, "end_offset": 3, "train": False}]
    ),
    ("message", "refusal"): talk(refusal="I cannot."),
    ("message", "mask"): talk(mask=True),
    ("message", "tools"): {"messages": [{"role": "system", "content": "s", "tools": [TIMER]}, ASK]},
    ("message", "functions"): talk(functions=[TIMER["function"]]),
    ("message", "function_calls"): talk(function_calls="timer(5)"),
    ("message", "audio"): talk(audio={"id": "a1"}),
    ("message", "images"): talk(images=["herb.png"]),
    ("message", "annotations"): talk(annotations=[{"type": "url_citation"}]),
    ("message", "id"): talk(id="m1"),
}


def identity(field: RowField) -> tuple[str, str]:
    return field.level, field.name


def without(row: Mapping[str, Any], field: RowField) -> Mapping[str, Any]:
    """Return the row without the field."""
    if field.level != "message":
        return {name: value for name, value in row.items() if name != field.name}
    stripped: dict[str, Any] = {}
    for column, messages in row.items():
        stripped[column] = [
            {name: value for name, value in message.items() if name != field.name}
            for message in messages
        ]
    return stripped


def outcome(row: Mapping[str, Any], field: RowField) -> Any:
    """Return what a row is read and rendered as, or the text of its error."""
    tokenizer, render = tool_tokenizer(), RenderDataset()
    parse: Callable[..., Any] = parse_row
    if field.level == "preference row":
        parse = labelled_or_comparison if field.name == "label" else comparison
    try:
        parsed = parse(row, "rows.jsonl:1")
        datums: Sequence[Datum] = ()
        if isinstance(parsed, Conversation):
            datums = render.datums(parsed, tokenizer)
        elif isinstance(parsed, Comparison) and parsed.rejected is not None:
            datums = [
                *render.datums(parsed.chosen, tokenizer),
                *render.datums(parsed.rejected, tokenizer),
            ]
    except DataError as error:
        return str(error)
    arrays = [(datum.tokens.tolist(), datum.loss_inputs["weights"].tolist()) for datum in datums]
    extra = (parsed.choices, parsed.other_answers) if isinstance(parsed, Conversation) else parsed
    return arrays, extra


def test_each_field_has_one_entry_and_an_example() -> None:
    assert len(set(map(identity, FIELDS))) == len(FIELDS)
    assert set(EXAMPLES) == set(map(identity, FIELDS))


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.level}-{field.name}")
def test_a_field_is_treated_as_the_table_says(field: RowField) -> None:
    row = EXAMPLES[identity(field)]
    result, result_without = outcome(row, field), outcome(without(row, field), field)
    if field.treatment == "refused":
        assert isinstance(result, str)
        assert result.startswith("rows.jsonl:1: ")
        assert field.name in result
        assert field.note in result
        return
    assert not isinstance(result, str), result
    if field.treatment == "supported":
        assert result != result_without
    else:
        assert result == result_without
