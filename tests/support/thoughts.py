"""A chat template that rewrites history, as those of reasoning models do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from adapters.fake.tokenizer import ByteTokenizer
from kitchen.ports import Message
from kitchen.ports.sampling import ToolSchema
from kitchen.types import Tokens


class ThoughtStrippingTokenizer(ByteTokenizer):
    """Removes thoughts from assistant messages before the last user message."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Tokens:
        roles = [message["role"] for message in messages]
        last_user = max((at for at, role in enumerate(roles) if role == "user"), default=0)
        stripped: list[Message] = []
        for at, message in enumerate(messages):
            content = message["content"]
            if at < last_user:
                content = content.split("/think>")[-1]
            stripped.append({"role": message["role"], "content": content})
        return super().render(
            stripped, answer=answer, tools=tools, chat_template_kwargs=chat_template_kwargs
        )
