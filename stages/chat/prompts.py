"""What a model reads before it answers."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen import ports
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Tokenizer
from kitchen.ports.sampling import ToolSchema
from kitchen.types import Tokens
from stages.chat.conversations import Conversation, Message
from stages.chat.render import RenderDataset
from stages.chat.tools import with_tools_in_system_prompt


def reference_answer(conversation: Conversation) -> str:
    """The answer that is right."""
    return conversation.messages[_last(conversation)].content


def prompt_messages(conversation: Conversation) -> tuple[Message, ...]:
    """What comes before the answer."""
    return conversation.messages[: _last(conversation)]


def _last(conversation: Conversation) -> int:
    """Index of the last assistant message."""
    return max(
        at for at, message in enumerate(conversation.messages) if message.role == "assistant"
    )


def prompt_tokens(conversation: Conversation, tokenizer: Tokenizer, how: RenderDataset) -> Tokens:
    """(T,) what the model reads before its answer."""
    return render_prompt(
        [message_to_dict(message) for message in prompt_messages(conversation)], tokenizer, how.chat
    )


def message_to_dict(message: Message) -> ports.Message:
    """A message as tokenizers know it."""
    return {"role": message.role, "content": message.content}


def render_prompt(
    messages: Sequence[ports.Message],
    tokenizer: Tokenizer,
    chat: bool | None = None,
    tools: Sequence[ToolSchema] = (),
) -> Tokens:
    """(T,) through the chat template, or joined; None: through the template if there is one.

    Where the template has no place for tools, the system prompt tells of them. Raises DataError for
    tools where there is no template.
    """
    if not uses_chat_template(tokenizer, chat):
        if tools:
            raise DataError(
                "tools are told of by a chat template, and this model has none; take an instruct "
                "model"
            )
        return tokenizer.encode("".join(message["content"] for message in messages), special=True)
    if not tools:
        return tokenizer.render(messages, answer=True)
    if not tokenizer.tools:
        return tokenizer.render(with_tools_in_system_prompt(tools, messages), answer=True)
    return tokenizer.render(messages, answer=True, tools=tools)


def strip_separator(written: str, tokenizer: Tokenizer) -> str:
    """What a model wrote after `read_before`, without what joins it to its prompt where there is no
    template.
    """
    return RenderDataset().answer(written, tokenizer)


def check_system_prompt(instruction: str, tokenizer: Tokenizer, chat: bool | None = None) -> None:
    """Raise ConfigError where a system prompt would have no place of its own."""
    if instruction and not uses_chat_template(tokenizer, chat):
        raise ConfigError(
            "an instruction is a system prompt, which only a chat template gives a place; this "
            "model has "
            "none, or rendering.chat=false: take an instruct model, or leave the instruction out"
        )


def uses_chat_template(tokenizer: Tokenizer, chat: bool | None = None) -> bool:
    """Whether conversations go through the chat template; None: if there is one."""
    return tokenizer.chat if chat is None else chat
