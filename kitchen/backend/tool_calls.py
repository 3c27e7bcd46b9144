"""Tool calls in the answers of models, and tools in system prompts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kitchen.ports.sampling import Message, ToolSchema
from kitchen.safe_text import read_json

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_BARE = re.compile(
    r"""(?=.*"name")(?=.*"(?:arguments|parameters)")\s*(?:\{.*\}|\[\s*\{.*\}\s*\])\s*""", re.DOTALL
)


@dataclass(frozen=True)
class ToolCall:
    """A tool call by a model."""

    name: str
    arguments: Mapping[str, Any]


def with_tools_in_system_prompt(
    tools: Sequence[ToolSchema], messages: Sequence[Message]
) -> list[Message]:
    """Describe tools in the system prompt, for chat templates that have no place for them."""
    schemas = "\n".join(json.dumps(tool) for tool in tools)
    text = (
        "You may call these tools:\n<tools>\n"
        + schemas
        + "\n</tools>\nTo call one, answer with nothing but\n"
        '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'
    )
    first, *others = messages
    if first["role"] == "system":
        return [{"role": "system", "content": f"{first['content']}\n\n{text}"}, *others]
    return [{"role": "system", "content": text}, *messages]


def parse_tool_calls(text: str) -> list[ToolCall]:
    """Parse the calls of an answer: in <tool_call> tags, or bare JSON that is the whole answer.

    A call is an object with "name" and "arguments" (or "parameters", as in some templates), whose
    value may itself be JSON text; or a list of such objects. Raises ValueError.
    """
    bodies = _CALL.findall(text)
    if not bodies and _BARE.fullmatch(text):
        bodies = [text]
    return list(chain.from_iterable(map(_parse_body, bodies)))


def _parse_body(body: str) -> list[ToolCall]:
    parsed = read_json(body)
    items = parsed if isinstance(parsed, list) else [parsed]
    return [_parse_call(item) for item in items]


def _parse_call(item: Any) -> ToolCall:
    name = arguments = None
    if isinstance(item, dict):
        name = item.get("name")
        arguments = item.get("arguments", item.get("parameters"))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(arguments, dict) or not isinstance(name, str):
        raise ValueError(f"{json.dumps(item)[:80]} is not a call: it needs a name and arguments")
    return ToolCall(name, arguments)
