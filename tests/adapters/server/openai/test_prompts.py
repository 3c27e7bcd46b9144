"""Conversations as chat templates read them, with tools and the calls of earlier answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers")

from adapters.server.openai.errors import OpenAIError
from adapters.server.openai.prompts import chat_generation
from adapters.server.openai.requests import ChatRequest
from adapters.server.openai.weights import ServedWeights
from adapters.tokenizer import FolderTokenizer
from tests.support.tool_template import TIMER, plain_tokenizer, text_of, tool_tokenizer

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "timer", "arguments": '{"minutes": 3}'},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Set it."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "set", "tool_call_id": "call_1"},
]


def prompt(tokenizer: FolderTokenizer, **fields: Any) -> str:
    weights = ServedWeights("m", "m", tokenizer, "m", 4096, {}, chat=True)
    request = ChatRequest(model="m", **{"messages": MESSAGES, "tools": [TIMER], **fields})
    return text_of(tokenizer, chat_generation(request, weights).prompt)


def test_template_gets_tools_and_calls() -> None:
    text = prompt(tool_tokenizer())
    assert json.dumps(TIMER["function"]["parameters"]) in text
    assert '"arguments": {"minutes": 3}' in text
    assert "tool call_1" in text


def test_template_without_tools_gets_them_as_text() -> None:
    text = prompt(plain_tokenizer())
    assert '<tool_call>{"name": "timer", "arguments": {"minutes": 3}}</tool_call>' in text
    assert text.count("Sets a timer.") == 1
    assert "Sets a timer." not in prompt(plain_tokenizer(), tool_choice="none")


def test_variables_of_the_template_are_passed_on() -> None:
    assert prompt(tool_tokenizer(), chat_template_kwargs={"enable_thinking": False}) != prompt(
        tool_tokenizer()
    )


@pytest.mark.parametrize("arguments", ["{", "[]", 5, None])
def test_calls_with_other_arguments_are_refused(arguments: Any) -> None:
    broken = {**CALL, "function": {"name": "timer", "arguments": arguments}}
    message = {"role": "assistant", "tool_calls": [broken]}
    with pytest.raises(OpenAIError, match="arguments") as error:
        prompt(tool_tokenizer(), messages=[message])
    assert error.value.param == "messages[0].tool_calls[0]"
