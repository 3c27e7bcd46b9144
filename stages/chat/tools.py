"""Tools that a model calls through its chat template, run in this process."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from kitchen.backend.tool_calls import ToolCall, parse_tool_calls
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from kitchen.ports.sampling import ToolSchema

MAX_EXPRESSION_CHARS = 100
_OPERATORS: Mapping[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@dataclass(frozen=True)
class Tool:
    """A function that a model may call; its arguments are described by JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(compare=False)
    # returns text; the message of an exception goes to the model
    call: Callable[..., str] = field(compare=False, repr=False)

    @property
    def schema(self) -> ToolSchema:
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


def run_tool(call: ToolCall, tools: Sequence[Tool]) -> str:
    """Run the tool that a call names and return its text, or the error for the model to read.

    Raises TypeError if the tool returns anything but text: then the tool itself is broken.
    """
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return replace_surrogates(f"error: there is no tool {call.name!r}")
    try:
        signature(tool.call).bind(**call.arguments)
        output: object = tool.call(**call.arguments)
    except Exception as error:  # noqa: BLE001 the model reads the error and may correct its call
        return replace_surrogates(f"error: {error}")
    if not isinstance(output, str):
        raise TypeError(f"the tool {tool.name!r} returned {output!r:.80}, but must return text")
    return replace_surrogates(output)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and no tokenizer accepts."""
    return text.encode(errors="replace").decode()


def _calculate(expression: str) -> str:
    """Return the value of an expression of whole numbers, + - * and brackets."""
    if not isinstance(expression, str) or len(expression) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"expression must be text of at most {MAX_EXPRESSION_CHARS} characters")
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, RecursionError):
        raise ValueError("expression is no arithmetic") from None


def _value(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and (apply := _OPERATORS.get(type(node.op))):
        return apply(_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and (apply := _OPERATORS.get(type(node.op))):
        return apply(_value(node.operand))
    raise ValueError("expression may have whole numbers, + - * and brackets")


CALCULATOR = Tool(
    "calculator",
    "Computes an arithmetic expression of whole numbers, + - * and brackets.",
    {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "such as (2 + 3) * 4"}},
        "required": ["expression"],
    },
    _calculate,
)


@dataclass(frozen=True)
class ToolQuestion:
    """A Task that is answered with the help of tools.

    The reward is 1 for the right answer, but only if a tool has returned it.
    """

    question: str
    answer: str
    tag: str
    tools: tuple[Tool, ...] = (CALCULATOR,)

    def env(self) -> Env:
        return _ToolEnv(self)


@dataclass
class _ToolEnv:
    task: ToolQuestion
    outputs: list[str] = field(default_factory=list)  # of tools, so far

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return [tool.schema for tool in self.task.tools]

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": self.task.question}]

    async def step(self, answer: str) -> StepResult:
        """Run the calls of an answer; one that cannot be parsed ends the episode."""
        try:
            calls = parse_tool_calls(answer)
        except (ValueError, RecursionError):
            return StepResult(0.0, parsed=False)
        if not calls:
            is_right = answer.strip() == self.task.answer and self.task.answer in self.outputs
            return StepResult(float(is_right))
        outputs = [run_tool(call, self.task.tools) for call in calls]
        self.outputs += outputs
        return StepResult(0.0, tuple({"role": "tool", "content": text} for text in outputs))
