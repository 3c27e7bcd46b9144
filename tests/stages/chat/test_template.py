"""Tools, variables and fields reach the template in every use of a row, or are errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import DataError
from kitchen.ports import Done
from kitchen.types import Datum, Sampled, Tokens
from stages.chat.conversations import TrainRows, parse_conversation
from stages.chat.prompts import prompt_tokens, reference_answer
from stages.chat.render import RenderDataset
from stages.chat.template import PromptRendering
from stages.judge.judge import answer_conversation, letter_conversation, request_and_answers
from stages.judge.ranked_answers import judged_pair
from stages.preference.comparisons import comparison, pair_of
from stages.preference.kto import labelled_or_comparison
from stages.rl.rollouts import RolloutConfig, RolloutRunner
from stages.tasks.rewards import Question, exact_reward
from stages.tasks.tasks import question_tokens
from tests.support.no_chat_template import PlainTokenizer
from tests.support.tool_template import (
    PLAIN_TEMPLATE,
    TIMER,
    TOOL_TEMPLATE,
    plain_tokenizer,
    text_of,
    tool_tokenizer,
)
from tests.support.trained_spans import trained_spans

ASK = {"role": "user", "content": "Remind me in 5"}
ANSWER = {"role": "assistant", "content": "Set."}
WAYS: Mapping[str, Any] = {  # of writing the same tools
    "list": [TIMER],
    "json": json.dumps([TIMER]),
    "items of json": [json.dumps(TIMER)],
    "functions alone": [TIMER["function"]],
    "with nulls": [{**TIMER, "strict": None, "function": {**TIMER["function"], "strict": None}}],
}


class FixedSampler:
    """Gives the same answer to every prompt, and records the prompts."""

    def __init__(self, answer: Tokens) -> None:
        self.answer, self.prompts = answer, list[Tokens]()

    def sample(self, prompt: Tokens, **options: Any) -> Done[list[Sampled]]:
        self.prompts.append(prompt)
        zeros = np.zeros(len(self.answer), np.float32)
        return Done([Sampled(self.answer, zeros, "stop")])


def expected(messages: list[dict[str, Any]], **options: Any) -> list[int]:
    """Return the tokens of transformers' own apply_chat_template."""
    inner = tool_tokenizer()._inner
    tokens: list[int] = inner.apply_chat_template(messages, return_dict=False, **options)
    return tokens


def whole(datum: Datum) -> list[int]:
    return [*datum.tokens.tolist(), int(datum.targets[-1])]


@pytest.mark.parametrize("way", WAYS)
def test_tools_are_rendered_as_transformers_does(way: str) -> None:
    row = {"messages": [ASK, ANSWER], "tools": WAYS[way]}
    conversation = parse_conversation(row, "rows:1")
    [datum] = RenderDataset().datums(conversation, tool_tokenizer())
    assert whole(datum) == expected([ASK, ANSWER], tools=[TIMER])
    prompt = prompt_tokens(conversation, tool_tokenizer(), RenderDataset())
    assert prompt.tolist() == expected([ASK], tools=[TIMER], add_generation_prompt=True)
    assert datum.tokens[: len(prompt)].tolist() == prompt.tolist()


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ("timer", "tools is text that is not JSON"),
        (5, "tools is a number, not a list of tools"),
        ([{"description": "Sets a timer."}], r"tools\[0\] is not a tool: it needs a 'name'"),
        ([TIMER, {"function": {"parameters": {}}}], r"tools\[1\] is not a tool"),
    ],
)
def test_tools_that_are_none_are_errors(tools: Any, problem: str) -> None:
    with pytest.raises(DataError, match=f"^rows:7: {problem}"):
        parse_conversation({"messages": [ASK, ANSWER], "tools": tools}, "rows:7")


def test_tools_without_a_place_are_in_the_system_message() -> None:
    row = {"messages": [ASK, ANSWER], "tools": [TIMER], "system": "You cook."}
    conversation = parse_conversation(row, "rows:1")
    tokenizer = plain_tokenizer()
    [datum] = RenderDataset().datums(conversation, tokenizer)
    text = text_of(tokenizer, datum.tokens)
    assert text.startswith("<|im_start|>system\nYou cook.\n\nYou may call these tools:")
    assert '"timer"' in text
    prompt = prompt_tokens(conversation, tokenizer, RenderDataset())
    assert datum.tokens[: len(prompt)].tolist() == prompt.tolist()


@pytest.mark.parametrize(
    "condition", ["messages|length > 9", "tools is string", "enable_tools is defined"]
)
def test_a_template_that_leaves_tools_out_is_an_error(condition: str) -> None:
    template = f"{{% if tools and {condition} %}}{{{{ tools }}}}{{% endif %}}"
    tokenizer = plain_tokenizer()
    tokenizer = tokenizer.with_template(template + str(tokenizer._inner.chat_template))
    row = parse_conversation({"messages": [ASK, ANSWER], "tools": [TIMER]}, "rows:3")
    with pytest.raises(DataError, match=r"^rows:3: tools: the chat template leaves out .*'timer'"):
        RenderDataset().datums(row, tokenizer)
    with pytest.raises(DataError, match=r"^rows:3: tools: the chat template leaves out .*'timer'"):
        prompt_tokens(row, tokenizer, RenderDataset())


@pytest.mark.parametrize(
    ("row", "setting", "thinks"),
    [
        ({}, {}, True),
        ({}, {"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {}, False),
        ({"chat_template_kwargs": '{"enable_thinking": false}'}, {}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": False}, True),
        ({"chat_template_kwargs": {"enable_thinking": None}}, {"enable_thinking": False}, False),
    ],
)
def test_variables_of_a_row_precede_the_setting(
    row: Mapping[str, Any], setting: Mapping[str, Any], thinks: bool
) -> None:
    tokenizer = tool_tokenizer()
    render = RenderDataset(chat_template_kwargs=setting)
    conversation = parse_conversation({"messages": [ASK, ANSWER], **row}, "rows:1")
    [datum] = render.datums(conversation, tokenizer)
    prompt = prompt_tokens(conversation, tokenizer, render)
    assert ("<think></think>" in text_of(tokenizer, prompt)) is not thinks
    assert datum.tokens[: len(prompt)].tolist() == prompt.tolist()
    question = Question((ASK,), "Set.", exact_reward, "t", inputs=conversation.inputs)
    assert question_tokens(question, tokenizer, render).tolist() == prompt.tolist()


@pytest.mark.parametrize("name", ["enable_thinkin", "messages", "tokenize"])
def test_a_variable_that_is_not_read_is_an_error(name: str) -> None:
    row = {"messages": [ASK, ANSWER], "chat_template_kwargs": {name: False}}
    match = rf"^rows:2: chat_template_kwargs\.{name} is not read by the chat template"
    with pytest.raises(DataError, match=match):
        RenderDataset().datums(parse_conversation(row, "rows:2"), tool_tokenizer())
    with pytest.raises(DataError, match="is not read by the fake chat template"):
        RenderDataset().datums(parse_conversation(row, "rows:2"), ByteTokenizer())


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_trained_on_or_errors(name: str) -> None:
    row = parse_conversation({"messages": [ASK, {**ANSWER, name: "Five minutes."}]}, "rows:4")
    tokenizer = tool_tokenizer()
    [datum] = RenderDataset().datums(row, tokenizer)
    trained = [text for text, is_trained in trained_spans(datum, tokenizer) if is_trained]
    assert "".join(trained).startswith("<think>Five minutes.</think>Set.")
    with pytest.raises(DataError, match=f"^rows:4: the chat template leaves out '{name}' of mess"):
        RenderDataset().datums(row, plain_tokenizer())


@pytest.mark.parametrize(
    ("parts", "thought"),
    [
        ([{"type": "text", "text": "Set"}, {"type": "text", "text": "."}], ""),
        ([{"type": "thinking", "thinking": "Five."}, {"type": "text", "text": "Set."}], "Five."),
        (
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Five."}]},
                {"type": "text", "text": "Set."},
            ],
            "Five.",
        ),
    ],
)
def test_parts_of_content_are_joined(parts: list[dict[str, Any]], thought: str) -> None:
    row = {"messages": [ASK, {"role": "assistant", "content": parts}]}
    message = parse_conversation(row, "rows:1").messages[-1]
    assert message.content == "Set."
    assert message.fields.get("thinking", "") == thought


@pytest.mark.parametrize("kind", ["image_url", "input_audio", None])
def test_parts_that_are_not_text_are_errors(kind: str | None) -> None:
    content = [{"type": "text", "text": "See"}, {"type": kind, "image_url": "herb.png"}]
    row = {"messages": [{"role": "user", "content": content}, ANSWER]}
    with pytest.raises(DataError, match=r"^rows:1: messages\[0\]\.content\[1\] has the type"):
        parse_conversation(row, "rows:1")


@pytest.mark.parametrize("flag", ["trainable", "train", "training", "weight"])
def test_flags_precede_train_on(flag: str) -> None:
    off, on = (0, 1) if flag == "weight" else (False, True)
    messages = [ASK, {**ANSWER, flag: off}, ASK, {**ANSWER, "content": "Done.", flag: on}]
    conversation = parse_conversation({"messages": messages}, "rows:1")
    tokenizer = tool_tokenizer()
    for train_on in ("all_assistant_messages", "trainable", "last_assistant_message"):
        [datum] = RenderDataset(train_on=train_on).datums(conversation, tokenizer)
        trained = [text for text, is_trained in trained_spans(datum, tokenizer) if is_trained]
        assert len(trained) == 1
        assert trained[0].startswith("Done.")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({**ANSWER, "train": "no"}, "train is text, not true or false"),
        ({**ANSWER, "weight": 0.5}, "weight is a number, not 0, 1, true or false"),
        ({**ASK, "weight": 1}, "weight is 1, but only messages of the assistant"),
        ({**ANSWER, "weight": 1, "train": False}, "contradict each other"),
    ],
)
def test_flags_that_make_no_sense_are_errors(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=rf"^rows:1: messages\[2\].*{problem}"):
        parse_conversation({"messages": [ASK, ANSWER, message]}, "rows:1")


CALLS = [{"id": "c1", "function": {"name": "timer", "arguments": '{"minutes": 5}'}}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": CALLS}]},
        {"messages": [ASK, {"role": "assistant", "function_call": CALLS[0]["function"]}]},
        {
            "conversations": [
                {"from": "human", "value": "Remind me in 5"},
                {"from": "function_call", "value": json.dumps(CALLS[0]["function"])},
            ]
        },
    ],
)
def test_tool_calls_are_trained_on(row: dict[str, Any]) -> None:
    conversation = parse_conversation({**row, "tools": [TIMER]}, "rows:5")
    tokenizer = tool_tokenizer()
    [datum] = RenderDataset().datums(conversation, tokenizer)
    trained = [text for text, is_trained in trained_spans(datum, tokenizer) if is_trained]
    assert '<tool_call>{"name": "timer", "arguments": {"minutes": 5}}' in "".join(trained)
    with pytest.raises(DataError, match=r"^rows:5: the answer is a tool call"):
        reference_answer(conversation)
    with pytest.raises(DataError, match=r"^rows:5: the chat template leaves out 'tool_calls'"):
        RenderDataset().datums(conversation, plain_tokenizer())


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"tools": [{"name": "t", "description": "\ud800"}]}, r"tools\[0\]\.description"),
        ({"tools": [{"name": "t", "parameters": {"\udc00": 1}}]}, r"a name in tools\[0\]\.para"),
        ({"tools": '[{"name": "t", "enum": ["\\ud800"]}]'}, r"tools\[0\]\.enum\[0\]"),
        ({"tool_calls": [{"name": "t", "arguments": {"a": "x\ud800"}}]}, r".*arguments\.a"),
        ({"tool_calls": [{"name": "t", "arguments": '{"a": ["\\udfff"]}'}]}, r".*\.a\[0\]"),
        ({"tool_calls": [{"name": "\ud800"}]}, r"messages\[1\]\.tool_calls\[0\]\.name"),
        ({"chat_template_kwargs": {"style": "\ud800"}}, r"chat_template_kwargs\.style"),
    ],
)
def test_half_characters_are_named(row: dict[str, Any], place: str) -> None:
    answer = {**ANSWER, "tool_calls": row.pop("tool_calls", None)}
    messages = [ASK, answer]
    columns: list[dict[str, Any]] = [
        {"messages": messages},
        {"chosen": messages, "rejected": [ASK, ANSWER]},
    ]
    for columns_of_row, parse in zip(columns, (parse_conversation, comparison), strict=True):
        where = place.replace("messages", "chosen") if parse is comparison else place
        with pytest.raises(DataError, match=f"^rows:3: {where}.* has half a character") as caught:
            parse({**columns_of_row, **row}, "rows:3")
        assert "correct the text, or drop the row" in str(caught.value)


def test_tools_are_counted_with_the_template_that_is_set() -> None:
    row = parse_conversation({"messages": [ASK, ANSWER], "tools": [TIMER]}, "rows:1")
    own = RenderDataset(template=TOOL_TEMPLATE)
    plain = RenderDataset(template=PLAIN_TEMPLATE)
    counts = [
        render.run(TrainRows((row,)), tokenizer)[0].counts.tools_in_system_message
        for render, tokenizer in (
            (own, plain_tokenizer()),
            (plain, tool_tokenizer()),
            (RenderDataset(), plain_tokenizer()),
        )
    ]
    assert counts == [0, 1, 1]


def test_preferences_are_rendered_with_tools() -> None:
    tokenizer, render = tool_tokenizer(), RenderDataset(train_on="last_assistant_turn")
    row = {"prompt": [ASK], "chosen": [ANSWER], "rejected": "No.", "tools": [TIMER]}
    pair = pair_of(*_both(comparison(row, "rows:1")), tokenizer, render)
    assert pair is not None
    assert whole(pair[0]) == expected([ASK, ANSWER], tools=[TIMER])
    good = {"prompt": [ASK], "completion": [ANSWER], "label": True, "tools": [TIMER]}
    labelled = labelled_or_comparison(good, "rows:1")
    [datum] = render.datums(labelled.conversation, tokenizer)  # type: ignore[union-attr]
    assert whole(datum) == whole(pair[0])


def _both(pair: Any) -> tuple[Any, Any]:
    return pair.chosen, pair.rejected


@pytest.mark.parametrize(
    "prompt",
    [
        {"prompt": "Say.\n\nbasil"},
        {"instruction": "Say.", "input": "basil"},
        {"conversations": [{"from": "human", "value": "Say.\n\nbasil"}]},
    ],
)
def test_preferences_have_their_prompt_in_any_column(prompt: dict[str, Any]) -> None:
    answers = {"chosen": {"from": "gpt", "value": "Yes."}, "rejected": "No.", "system": "You cook."}
    row = comparison({**prompt, **answers}, "rows:1")
    contents = [message.content for message in row.chosen.messages]
    assert contents == ["You cook.", "Say.\n\nbasil", "Yes."]


def test_the_judge_reads_the_tools() -> None:
    row = {"prompt": [ASK], "chosen": "Set.", "rejected": "No.", "tools": [TIMER]}
    pair = judged_pair(row, "rows:1")
    request, chosen, rejected = request_and_answers(pair)
    inputs = pair.chosen.inputs
    rated = answer_conversation(request, chosen, inputs)
    [datum] = RenderDataset("last_assistant_message").datums(rated, tool_tokenizer())
    assert whole(datum) == expected([ASK, ANSWER], tools=[TIMER])
    question = letter_conversation(request, chosen, rejected, "A", inputs)
    assert '"timer"' in question.messages[0].content


def test_rollouts_read_tools_and_variables() -> None:
    tokenizer = tool_tokenizer()
    row = {"messages": [ASK, ANSWER], "tools": [TIMER]}
    inputs = parse_conversation(row, "rows:1").inputs
    question = Question((ASK,), "Set.", exact_reward, "t", inputs=inputs)
    sampler: Any = FixedSampler(tokenizer.encode("Set."))
    render = PromptRendering(chat_template_kwargs={"enable_thinking": False})
    runner = RolloutRunner(sampler, tokenizer, RolloutConfig(8), render=render)
    asyncio.run(runner.run([question], 2, [0]))
    options = {"tools": [TIMER], "enable_thinking": False}
    prompt = expected([ASK], add_generation_prompt=True, **options)
    assert [tokens.tolist() for tokens in sampler.prompts] == [prompt, prompt]


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"tools": [TIMER]}, "tools"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    ],
)
def test_inputs_need_a_chat_template(extra: dict[str, Any], name: str) -> None:
    row = parse_conversation({"prompt": "?", "completion": "!", **extra}, "rows:6")
    match = f"^rows:6: '{name}' is rendered by a chat template"
    with pytest.raises(DataError, match=match):
        RenderDataset().datums(row, PlainTokenizer())
    with pytest.raises(DataError, match=match):
        prompt_tokens(row, PlainTokenizer(), RenderDataset())


PREFILLED = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": PREFILLED, "completion": "..."}, r"message 1 \(assistant\) is a prefill"),
        ({"prompt": "?", "completion": "!", "system": "You cook."}, "messages from: system, user"),
        ({"prompt": "?", "completion": "!", "history": [["a", "b"]]}, "messages from: user, assi"),
    ],
)
def test_only_one_prompt_is_joined_without_a_template(row: dict[str, Any], why: str) -> None:
    parsed = parse_conversation(row, "rows:6")
    render = RenderDataset()
    with pytest.raises(DataError, match=f"^rows:6: .*{why}"):
        render.datums(parsed, PlainTokenizer())
    with pytest.raises(DataError, match=f"^rows:6: .*{why}"):
        prompt_tokens(parsed, PlainTokenizer(), render)


@pytest.mark.parametrize("name", ["reasoning", "thought"])
def test_a_thought_without_a_template_may_be_another_column(name: str) -> None:
    row = parse_conversation({"prompt": "?", "completion": "!", name: "Hm."}, "rows:6")
    with pytest.raises(DataError, match=rf"^rows:6: '{name}'.*reading\.columns\.{name}=other"):
        RenderDataset(chat=False).datums(row, PlainTokenizer())


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"instruction": "?", "output": "!", "system": "You cook."}, "sua"),
        ({"conversations": [{"from": "human", "value": "?"}, ANSWER], "system": ""}, "ua"),
        ({"prompt": "?", "completion": "!", "history": [["a", "b"], ["c", "d"]]}, "uauaua"),
        ({"input": "?", "output": "!", "history": '[["a", "b"]]', "system": "S"}, "suaua"),
        ({"messages": [{"role": "system", "content": "S"}, ASK, ANSWER], "system": "S"}, "sua"),
        ({"messages": [{"role": "developer", "content": "S"}, ASK, ANSWER]}, "sua"),
    ],
)
def test_system_and_history_come_first(row: dict[str, Any], roles: str) -> None:
    conversation = parse_conversation(row, "rows:1")
    assert "".join(message.role[0] for message in conversation.messages) == roles


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"messages": [{"role": "system", "content": "A"}, ASK, ANSWER], "system": "B"},
            "the row has the column 'system', but its messages begin with another system message",
        ),
        ({"messages": [ASK, ANSWER], "history": [["a", "b"]]}, "'messages' and 'history'"),
        (
            {"prompt": "?", "completion": "!", "history": ["a", "b"]},
            r"history\[0\] is neither a pair",
        ),
        ({"prompt": "?", "completion": "!", "system": 5}, "system is a number, not text"),
        (
            {"prompt": "?", "completion": "!", "tools": [TIMER], "functions": [TIMER]},
            "tools and functions, which mean the same",
        ),
    ],
)
def test_columns_that_contradict_are_errors(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=f"^rows:8: .*{problem}"):
        parse_conversation(row, "rows:8")
