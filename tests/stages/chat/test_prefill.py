"""Prefills: a prompt that ends with an assistant message is continued, never closed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import DataError
from kitchen.ports import Message, Tokenizer
from kitchen.ports.environments import StepResult
from kitchen.types import Sampled
from stages.chat.conversations import parse_conversation
from stages.chat.prefill import json_prefill
from stages.chat.prompts import prompt_dicts, prompt_tokens, render_prompt
from stages.chat.render import RenderDataset, render
from stages.data import DataConfig
from stages.evaluate.graded_answers import grade_samples
from stages.preference.comparisons import comparison
from stages.preference.kto import LabelledAnswer, labelled_or_comparison
from stages.tasks.step_results import open_env, reset_env
from stages.tasks.tasks import LoadTasks
from tests.support.tokenizers import trained_tokenizer
from tests.support.tool_template import PLAIN_TEMPLATE, plain_tokenizer, text_of, tool_tokenizer
from tests.support.trained_spans import trained_spans

ASK = {"role": "user", "content": "Who?"}
PREFILL = {"role": "assistant", "content": "It is"}
ANSWER = {"role": "assistant", "content": " Ann"}
CLOSED_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% set t = "
    "m.content.split('</think>') %}<think>\n{{ t[0].split('<think>')[-1].strip() if t | length > 1 "
    "}}\n</think>\n\n{{ t[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROWS: Mapping[str, Mapping[str, Any]] = {
    "lists": {"prompt": [ASK, PREFILL], "completion": [ANSWER]},
    "a text": {"prompt": [ASK, PREFILL], "completion": " Ann"},
    "input and output": {"input": [ASK, PREFILL], "output": " Ann"},
    "ShareGPT": {
        "prompt": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "It is"}],
        "completion": " Ann",
    },
    "a mark": {"messages": [ASK, {**PREFILL, "prefix": True}, ANSWER]},
    "two marks": {
        "messages": [
            ASK,
            {"role": "assistant", "content": "It", "prefix": True},
            {"role": "assistant", "content": " is", "prefix": True},
            ANSWER,
        ]
    },
    "choices": {"prompt": [ASK, PREFILL], "choices": [" Ann", " Bob"], "answer": 0},
    "several answers": {"prompt": [ASK, PREFILL], "completion": [" Ann", " Anna"]},
}


def spans(row: Mapping[str, Any], tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    [datum] = render(parse_conversation(row, "rows.jsonl:1"), tokenizer)
    return [(text, on) for text, on in trained_spans(datum, tokenizer) if text.strip()]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "fake"])
def test_the_answer_continues_the_prompt(name: str, kind: str) -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    if kind != "fake":
        tokenizer = trained_tokenizer(kind, template=PLAIN_TEMPLATE)
    conversation = parse_conversation(ROWS[name], "rows.jsonl:1")
    [datum] = render(conversation, tokenizer)
    start = int((datum.loss_inputs["weights"] != 0).argmax()) + 1
    tokens = [int(datum.tokens[0]), *datum.targets.tolist()]
    assert tokens[:start] == prompt_tokens(conversation, tokenizer, RenderDataset()).tolist()
    assert tokenizer.decode(tokens[:start]).endswith("It is")
    [stop] = [at for at in range(start, len(tokens)) if tokens[at] in tokenizer.stop_ids]
    assert tokenizer.decode(tokens[start:stop]).strip() == "Ann"
    whole = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It is Ann"}]
    assert tokenizer.decode(tokens, special=True) == tokenizer.decode(
        tokenizer.render(whole), special=True
    )


def test_two_unmarked_messages_are_two_turns() -> None:
    for prefix in ({}, {"prefix": False}, {"prefix": None}):
        row = {"messages": [ASK, {**PREFILL, **prefix}, ANSWER]}
        texts = [text for text, on in spans(row, plain_tokenizer()) if on]
        assert "It is" in texts[0]
        conversation = parse_conversation(row, "rows.jsonl:1")
        prompt = prompt_tokens(conversation, plain_tokenizer(), RenderDataset())
        assert text_of(plain_tokenizer(), prompt).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("prefill", "answer", "expected"),
    [
        ("It is", " Ann", "<think>\n\n</think>\n\nIt is"),
        ("<think>\n", "Hm.\n</think>\n\nYes", "<think>\n"),
        ("<think>\nHm", ", well.\n</think>\n\nYes", "<think>\nHm"),
        ("<think>\nHm.\n</think>\n\nYes", ", chef", "<think>\nHm.\n</think>\n\nYes"),
    ],
)
def test_a_prefill_may_be_an_unfinished_thought(prefill: str, answer: str, expected: str) -> None:
    tokenizer = trained_tokenizer("byte-level", template=CLOSED_THOUGHTS)
    row = {"prompt": [ASK, {"role": "assistant", "content": prefill}], "completion": answer}
    conversation = parse_conversation(row, "rows.jsonl:1")
    prompt = prompt_tokens(conversation, tokenizer, RenderDataset())
    assert text_of(tokenizer, prompt).endswith(f"<|im_start|>assistant\n{expected}")
    [datum] = render(conversation, tokenizer)
    assert datum.tokens[: len(prompt)].tolist() == prompt.tolist()


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ASK, {**PREFILL, "prefix": True}], "the answer is missing"),
        ([ASK, {**PREFILL, "prefix": True}, ASK, ANSWER], "has the role 'user'"),
        ([ASK, {**PREFILL, "prefix": True, "train": True}, ANSWER], "marked to be trained on"),
        ([ASK, {**PREFILL, "prefix": "It"}, ANSWER], r"messages\[1\].prefix is text"),
        ([{**ASK, "prefix": True}, ANSWER], r"messages\[0\].prefix is true, but its role"),
        ([ASK, {**PREFILL, "prefix": True}, {**ANSWER, "thinking": "?"}], "a separate thought"),
    ],
)
def test_a_prefill_that_cannot_be_continued(messages: Any, problem: str) -> None:
    with pytest.raises(DataError, match=f"rows.jsonl:1: .*{problem}"):
        parse_conversation({"messages": messages}, "rows.jsonl:1")


def test_a_prefill_in_the_history_is_checked() -> None:
    row: dict[str, Any] = {"prompt": "Who?", "completion": "Ann"}
    marked = {**PREFILL, "prefix": True}
    for history in ([ASK, marked], [ASK, marked, ASK, ANSWER], [["Hi?", "Ho"], ASK, marked]):
        with pytest.raises(DataError, match=r"rows.jsonl:1: .*has the role 'user'"):
            parse_conversation({**row, "history": history}, "rows.jsonl:1")
    continued = parse_conversation({**row, "history": [ASK, marked, ANSWER]}, "rows.jsonl:1")
    assert [message.prefix for message in continued.messages] == [False, True, *[False] * 3]


def test_a_prompt_that_ends_with_a_tool_call_is_refused() -> None:
    call = {"type": "function", "function": {"name": "timer", "arguments": {}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    with pytest.raises(DataError, match=r"rows.jsonl:1: message 1 .*message of the tool must"):
        parse_conversation({"prompt": [ASK, called], "completion": "Yes"}, "rows.jsonl:1")
    tool = {"role": "tool", "content": "done"}
    row = {"prompt": [ASK, called], "completion": [tool, ANSWER]}
    assert len(parse_conversation(row, "rows.jsonl:1").messages) == 4


def test_a_template_that_changes_a_prefill_is_refused() -> None:
    template = PLAIN_TEMPLATE.replace("m.content", "m.content | upper")
    tokenizer = trained_tokenizer("byte-level", template=template)
    conversation = parse_conversation(ROWS["lists"], "rows.jsonl:1")
    with pytest.raises(DataError, match=r"rows.jsonl:1: .*changes message 1"):
        prompt_tokens(conversation, tokenizer, RenderDataset())


def test_answers_of_a_pair_continue_the_prompt() -> None:
    tokenizer = plain_tokenizer()
    pairs: Sequence[Mapping[str, Any]] = (
        {"prompt": [ASK, PREFILL], "chosen": [ANSWER], "rejected": " Bob"},
        {"prompt": [ASK, PREFILL], "chosen": [ASK, PREFILL, ANSWER], "rejected": " Bob"},
        {"conversations": [ASK, PREFILL], "chosen": ANSWER, "rejected": {**ANSWER, "content": "?"}},
    )
    for pair in pairs:
        chosen = comparison(pair, "rows.jsonl:1").chosen
        assert chosen.prompt_length == 2
        [datum] = render(chosen, tokenizer)
        [trained] = [text for text, on in trained_spans(datum, tokenizer) if on]
        assert trained.startswith(" Ann<")


def test_a_labelled_answer_continues_the_prompt() -> None:
    row = {"prompt": [ASK, PREFILL], "completion": " Ann", "label": False}
    answer = labelled_or_comparison(row, "rows.jsonl:1")
    assert isinstance(answer, LabelledAnswer)
    prompt = prompt_tokens(answer.conversation, plain_tokenizer(), RenderDataset())
    assert text_of(plain_tokenizer(), prompt).endswith("<|im_start|>assistant\nIt is")


class Game:
    """An environment whose first messages end with one of the assistant."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    async def reset(self) -> Sequence[Message]:
        return [ASK, {**PREFILL, **self.fields}]

    async def step(self, answer: str) -> StepResult:
        return StepResult(float(answer == "7"))


@pytest.mark.parametrize(
    ("fields", "end"),
    [({}, "assistant\nIt is"), ({"prefix": False}, "<|im_end|>\n<|im_start|>assistant\n")],
)
def test_the_last_message_of_an_environment(fields: Any, end: str) -> None:
    messages = asyncio.run(reset_env(Game(**fields)))
    tokens = render_prompt(messages, plain_tokenizer())
    assert text_of(plain_tokenizer(), tokens).endswith(end)
    later = [*messages, {"role": "assistant", "content": " Ann"}, ASK]
    text = text_of(plain_tokenizer(), render_prompt(later, plain_tokenizer()))
    assert ("It is Ann<|im_end|>" in text) == (not fields)


def test_rollouts_start_from_the_prefill_of_a_row() -> None:
    store = FakeDatasets({"data": {"train": [ROWS["lists"]] * 4}})
    tasks, *_ = LoadTasks("data", DataConfig(held_out=0.5)).run(store)
    env = asyncio.run(open_env(tasks.train[0]))
    tokens = render_prompt(asyncio.run(reset_env(env)), tool_tokenizer())
    assert text_of(tool_tokenizer(), tokens).endswith("<|im_start|>assistant\nIt is")
    assert asyncio.run(env.step("Ann")).reward == 1
    conversation = parse_conversation({"messages": [ASK, PREFILL, ANSWER]}, "rows.jsonl:1")
    assert prompt_dicts(conversation)[-1]["prefix"] is False


@pytest.mark.parametrize(
    ("prefill", "answer", "expected"),
    [
        ("{", '"a": 1}', "{"),
        ('```json\n{"a":', " 1}\n```", '```json\n{"a":'),
        ("Here it is: {", '"a": 1}', "{"),
        ("Fill in {name}: {", '"a": 1}', "{"),
        ("Such as ```{}```: {", '"a": {"b": 2}}', "{"),
        ("For {x}:\n```json\n{", '"a": 1}\n```', "```json\n{"),
        ("{name}: ", "Ann", ""),
        ("{", '{"a": 1}', ""),
        ("It is", " Ann", ""),
        ("", '{"a": 1}', ""),
    ],
)
def test_a_prefill_that_begins_json_is_graded(prefill: str, answer: str, expected: str) -> None:
    assert json_prefill(prefill, answer) == expected


def test_an_evaluation_grades_json_with_its_prefill() -> None:
    prompt = [ASK, {"role": "assistant", "content": "{"}]
    row = parse_conversation({"prompt": prompt, "completion": '"a": 1}'}, "rows.jsonl:1")
    tokenizer = ByteTokenizer()
    samples = [
        (row, Sampled(tokenizer.encode(text), None, "stop")) for text in ('"a":1}', '{"a":1}')
    ]
    graded = asyncio.run(grade_samples("json", samples, tokenizer))
    assert [answer.exact for answer in graded] == [True, False]
