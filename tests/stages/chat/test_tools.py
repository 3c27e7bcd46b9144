"""Tools: how calls are parsed and run, and how tools are described to a model."""

from __future__ import annotations

import asyncio
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.backend.tool_calls import ToolCall, parse_tool_calls, with_tools_in_system_prompt
from kitchen.errors import DataError
from kitchen.ports import Done
from kitchen.types import Sampled
from recipes.rl import Rl
from stages.chat.prompts import render_prompt
from stages.chat.tools import (
    CALCULATOR,
    Tool,
    ToolQuestion,
    run_tool,
)
from stages.data.splits import DataConfig
from stages.rl.rollouts import RolloutConfig, RolloutRunner
from stages.tasks.games import MakeGames
from tests.support.no_chat_template import PlainTokenizer
from tests.support.recording import RecordingObserver

SUM = '{"name": "calculator", "arguments": {"expression": "(2 + 3) * 4"}}'
ASKED = [{"role": "user", "content": "What is (2 + 3) * 4?"}]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{SUM}</tool_call>",
        f"<tool_call>\n{SUM}\n</tool_call>",
        f"<tool_call>[{SUM}]</tool_call>",
        f"Let me see. <tool_call>{SUM}",
        SUM,
        SUM.replace("arguments", "parameters"),
        f" [{SUM}]",
        json.dumps({"name": "calculator", "arguments": json.dumps({"expression": "(2 + 3) * 4"})}),
    ],
)
def test_calls_are_parsed_in_the_forms_of_many_templates(text: str) -> None:
    assert parse_tool_calls(text) == [ToolCall("calculator", {"expression": "(2 + 3) * 4"})]


def test_several_calls_and_none() -> None:
    assert len(parse_tool_calls(f"<tool_call>{SUM}</tool_call>\n<tool_call>{SUM}</tool_call>")) == 2
    for text in ("20", '{"unit": null}', "I call nobody", ""):
        assert parse_tool_calls(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>calculator(2)</tool_call>",
        "<tool_call>{}</tool_call>",
        "<tool_call>[3]</tool_call>",
        '<tool_call>{"name": "calculator"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "<tool_call></tool_call>",
    ],
)
def test_malformed_calls_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a call|Expecting value"):
        parse_tool_calls(text)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(2 + 3) * 4", "20"),
        (" (2 + 3)*4\n", "20"),
        ("-7 - -3", "-4"),
        ("+7 * (+3)", "21"),
        ("99*99*99", "970299"),
        ("2 / 3", "error: expression may have whole numbers, + - * and brackets"),
        ("2 ** 99999999", "error: expression may have whole numbers, + - * and brackets"),
        ("__import__('os')", "error: expression may have whole numbers, + - * and brackets"),
        ("True + 1", "error: expression may have whole numbers, + - * and brackets"),
        ("2 +", "error: expression is no arithmetic"),
        ("1" * 101, "error: expression must be text of at most 100 characters"),
        (3, "error: expression must be text of at most 100 characters"),
    ],
)
def test_the_calculator(expression: Any, value: str) -> None:
    assert run_tool(ToolCall("calculator", {"expression": expression}), (CALCULATOR,)) == value


def test_wrong_call_returns_the_error() -> None:
    assert (
        run_tool(ToolCall("calculater", {}), (CALCULATOR,))
        == "error: there is no tool 'calculater'"
    )
    output = run_tool(ToolCall("calculator", {"expression": "2", "formula": "2"}), (CALCULATOR,))
    assert output == "error: got an unexpected keyword argument 'formula'"
    assert run_tool(ToolCall("\ud800", {}), (CALCULATOR,)) == "error: there is no tool '\\ud800'"


@pytest.mark.parametrize(
    "fault", [KeyError("eggs"), OSError("the pan is \ud800"), TypeError("of its own")]
)
def test_tool_exceptions_are_returned_to_the_model(fault: Exception) -> None:
    def boil() -> str:
        raise fault

    output = run_tool(ToolCall("boil", {}), (Tool("boil", "Boils.", {}, boil),))
    assert output.startswith("error: ")
    assert output.encode().decode() == output, "a tokenizer reads it"


def test_tool_that_returns_no_text_fails() -> None:
    count: Any = lambda: 3  # noqa: E731
    env = ToolQuestion("How many eggs?", "3", "t", (Tool("count", "Counts.", {}, count),)).env()
    with pytest.raises(TypeError, match="'count' returned 3"):
        asyncio.run(env.step('<tool_call>{"name": "count", "arguments": {}}</tool_call>'))


def test_json_answer_is_no_call() -> None:
    text = '{"name": "basil", "unit": null}'
    assert parse_tool_calls(text) == []
    env = ToolQuestion("Which herb?", text, "t", (Tool("herb", "Names.", {}, lambda: text),)).env()
    asyncio.run(env.step('<tool_call>{"name": "herb", "arguments": {}}</tool_call>'))
    assert asyncio.run(env.step(text)).reward == 1.0


async def helped(*answers: str) -> list[Any]:
    env = ToolQuestion("What is (2 + 3) * 4?", "20", "t").env()
    assert list(await env.reset()) == ASKED
    return [await env.step(answer) for answer in answers]


def test_right_answer_counts_if_a_tool_returned_it() -> None:
    call, answer = asyncio.run(helped(f"<tool_call>{SUM}</tool_call>", "20"))
    assert call.messages == ({"role": "tool", "content": "20"},)
    assert (call.reward, answer.reward, answer.messages) == (0.0, 1.0, ())
    assert [turn.reward for turn in asyncio.run(helped(f"<tool_call>{SUM}</tool_call>", "21"))] == [
        0.0,
        0.0,
    ]
    [guessed] = asyncio.run(helped("20"))
    assert (guessed.reward, guessed.parsed) == (0.0, True)
    [broken] = asyncio.run(helped("<tool_call>2 + 3</tool_call>"))
    assert (broken.reward, broken.parsed, broken.messages) == (0.0, False, ())


def test_tools_go_into_the_system_prompt_as_a_fallback() -> None:
    text = ByteTokenizer().decode(render_prompt(ASKED, ByteTokenizer(), tools=[CALCULATOR.schema]))
    assert json.dumps(CALCULATOR.schema) in text
    assert text.endswith("What is (2 + 3) * 4?")
    [system, _] = with_tools_in_system_prompt(
        [CALCULATOR.schema], [{"role": "system", "content": "Be brief."}, *ASKED]
    )
    assert system["content"].startswith("Be brief.\n\nYou may call")


def test_without_a_template_there_are_no_tools() -> None:
    with pytest.raises(DataError, match="instruct model"):
        render_prompt(ASKED, PlainTokenizer(), tools=[CALCULATOR.schema])


def test_problems_are_the_same_in_every_process() -> None:
    (tasks, facts, _), (again, same, _) = (
        MakeGames("game:calculator", DataConfig(limit=50)).run() for _ in range(2)
    )
    assert tasks.train == again.train
    assert facts == same
    for task in tasks.train:
        assert isinstance(task, ToolQuestion)
        asked = task.question.partition("What is ")[2].partition("?")[0]
        assert run_tool(ToolCall("calculator", {"expression": asked}), task.tools) == task.answer
    assert "0x" not in repr(tasks.train[0])


class Calls:
    """A policy that calls the calculator and answers with its result."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.read = tokenizer, list[str]()

    def sample(self, tokens: Any, **how: Any) -> Any:
        self.read.append(text := self.tokenizer.decode(tokens, special=True))
        asked = text.rpartition("What is ")[2].partition("?")[0]
        result = re.search(
            r"(?:<tool_response>|<\|im_start\|>tool)\n(-?\d+)(?:\n</tool_response>)?<\|im_end\|>",
            text,
        )
        call = json.dumps({"name": "calculator", "arguments": {"expression": asked}})
        text = result[1] if result else f"<tool_call>{call}</tool_call>"
        came = np.append(self.tokenizer.encode(text), self.tokenizer.stop_ids[0])
        return Done([Sampled(came, np.full(len(came), -0.5, np.float32), "stop")])


def real_template(name: str) -> str:
    """Return a real chat template with tools, shipped with the extra `bench`."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("the extra bench is not installed")
    return (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


@pytest.mark.parametrize(
    "family",
    [
        "",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("qwen2_5", "qwen3", "qwen3_instruct_2507")
        ),
    ],
)
def test_tool_turns_are_one_sequence(tmp_path: Path, family: str) -> None:
    pytest.importorskip("torch")
    from adapters.tokenizer import load_tokenizer
    from tests.support.tiny_model import tiny_model

    template = tiny_model(tmp_path, context=4096) / "chat_template.jinja"
    template.write_text(
        real_template(family)
        if family
        else "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + template.read_text()
    )
    tokenizer = load_tokenizer(tmp_path)
    policy: Any = Calls(tokenizer)
    tasks = MakeGames("game:calculator", DataConfig(limit=50)).run()[0].train[:3]
    groups = asyncio.run(
        RolloutRunner(policy, tokenizer, RolloutConfig(64)).run(tasks, 2, [0])
    ).groups
    assert [(each.reward, each.parsed, each.error) for group in groups for each in group] == [
        (1.0, True, "")
    ] * 6
    assert all(text.count(json.dumps(CALCULATOR.schema)) == 1 for text in policy.read)
    assert len(policy.read) == 12, "each is asked twice"
    for task, group in zip(tasks, groups, strict=True):
        assert isinstance(task, ToolQuestion)
        for rollout in group:
            [episode] = rollout.episodes
            text = tokenizer.decode(episode.tokens[episode.action_mask], special=True)
            assert text.endswith(f"</tool_call><|im_end|>{task.answer}<|im_end|>")
            assert set(episode.logprobs[episode.action_mask]) == {-0.5}
            assert not episode.logprobs[~episode.action_mask].any()


def test_rl_plays_it() -> None:
    seen, blobs = RecordingObserver(), FakeBlobs()
    kitchen.run(
        Rl(
            model="any",
            dataset="game:calculator",
            steps=1,
            batch_size=2,
            group=2,
            playing={"max_tokens": 4},
            reading={"held_out_rows": 3},
        ),
        training=FakeTraining(blobs),
        blobs=blobs,
        name="run",
        observers=[seen],
    )
    assert seen.series("rollouts") == [4.0]
    assert seen.series("reward") == [0.0], "nobody who says four bytes calls anything"
    assert len(seen.series("held_out/reward_before")) == 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"name": "calculator", "arguments": ' + "[" * 100_000]
)
def test_deep_brackets_are_an_unparsed_call(
    text: str,
) -> None:
    env = ToolQuestion("What is (2 + 3) * 4?", "20", "sums").env()
    turn = asyncio.run(env.step(f"<tool_call>{text}</tool_call>"))
    assert (turn.reward, turn.parsed, turn.messages) == (0.0, False, ())
