"""Tools that a model may call by name, in the words of its chat template, and that are run in this
process.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from kitchen.ports.sampling import ToolSchema

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_BARE = re.compile(
    r"""(?=.*"name")(?=.*"(?:arguments|parameters)")\s*(?:\{.*\}|\[\s*\{.*\}\s*\])\s*""", re.DOTALL
)
MAX_EXPRESSION_CHARS = 100  # characters of an expression
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
    # it gives a text; what it raises is told to the model
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


@dataclass(frozen=True)
class ToolCall:
    """What a model asked for."""

    name: str
    arguments: Mapping[str, Any]


def with_tools_in_system_prompt(
    tools: Sequence[ToolSchema], messages: Sequence[Message]
) -> list[Message]:
    """Messages with the tools in their system prompt, for templates that have no place for them."""
    listed = "\n".join(json.dumps(tool) for tool in tools)
    text = (
        "You may call these tools:\n<tools>\n"
        + listed
        + "\n</tools>\nTo call one, answer with nothing but\n"
        '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'
    )
    first, *others = messages
    if first["role"] == "system":
        return [{"role": "system", "content": f"{first['content']}\n\n{text}"}, *others]
    return [{"role": "system", "content": text}, *messages]


def parse_tool_calls(text: str) -> list[ToolCall]:
    """The calls of an answer, in <tool_call> tags or, where all of it is one, as bare JSON; raises
    ValueError.

    A call is an object with "name" and "arguments" (or "parameters", as some templates have it),
    which may be JSON in a text themselves; or a list of such.
    """
    bodies = _CALL.findall(text)
    if not bodies and _BARE.fullmatch(text):
        bodies = [text]
    return [each for body in bodies for each in _calls(body)]


def _calls(body: str) -> list[ToolCall]:
    found = json.loads(body)
    calls = []
    for each in found if isinstance(found, list) else [found]:
        arguments = (
            each.get("arguments", each.get("parameters")) if isinstance(each, dict) else None
        )
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(arguments, dict) or not isinstance(each.get("name"), str):
            raise ValueError(f"{json.dumps(each)[:80]} is no call: it needs a name and arguments")
        calls.append(ToolCall(each["name"], arguments))
    return calls


def run_tool(call: ToolCall, tools: Sequence[Tool]) -> str:
    """What a tool says to a call, or what is wrong with it.

    Raises TypeError where what it says is no text: then the tool itself is broken.
    """
    for tool in tools:
        if tool.name == call.name:
            try:
                signature(tool.call).bind(**call.arguments)
                found: object = tool.call(**call.arguments)
            except Exception as error:  # noqa: BLE001 the model is told, and may mend it
                return replace_surrogates(f"error: {error}")
            if not isinstance(found, str):
                raise TypeError(f"the tool {tool.name!r} gave {found!r:.80}, and must give a text")
            return replace_surrogates(found)
    return replace_surrogates(f"error: there is no tool {call.name!r}")


def replace_surrogates(text: str) -> str:
    """Without what is no character, which JSON can spell and no tokenizer reads."""
    return text.encode(errors="replace").decode()


def _calculated(expression: str) -> str:
    """Of whole numbers, + - * and brackets."""
    if not isinstance(expression, str) or len(expression) > MAX_EXPRESSION_CHARS:
        raise ValueError(f"expression must be a text of at most {MAX_EXPRESSION_CHARS} characters")
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
    _calculated,
)


@dataclass(frozen=True)
class ToolQuestion:
    """A question that is to be answered with the help of tools; a Task.

    The reward is 1 for the right answer, if a tool has said it.
    """

    question: str
    right: str
    tag: str
    tools: tuple[Tool, ...] = (CALCULATOR,)

    def env(self) -> Env:
        return _Helped(self)


@dataclass
class _Helped:
    asked: ToolQuestion
    said: list[str] = field(default_factory=list)  # by tools

    @property
    def tools(self) -> Sequence[ToolSchema]:
        return [tool.schema for tool in self.asked.tools]

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": self.asked.question}]

    async def step(self, answer: str) -> StepResult:
        """A call that cannot be read ends it."""
        try:
            calls = parse_tool_calls(answer)
        except (ValueError, RecursionError):
            return StepResult(0.0, parsed=False)
        if not calls:
            return StepResult(
                float(answer.strip() == self.asked.right and self.asked.right in self.said)
            )
        results = [run_tool(call, self.asked.tools) for call in calls]
        self.said += results
        return StepResult(0.0, tuple({"role": "tool", "content": each} for each in results))
