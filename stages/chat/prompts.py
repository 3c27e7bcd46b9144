"""Prompts: the tokens that a model reads before it answers."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen import ports
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Tokenizer
from kitchen.ports.sampling import ToolSchema
from kitchen.types import Tokens
from stages.chat.conversations import Conversation, Message
from stages.chat.model_limits import has_room
from stages.chat.render import RenderDataset
from stages.chat.tools import with_tools_in_system_prompt


def reference_answer(conversation: Conversation) -> str:
    """Return the reference answer: the text of the last assistant message."""
    return conversation.messages[_last_assistant(conversation)].content


def reference_answers(conversation: Conversation) -> tuple[str, ...]:
    """Return all right answers, the reference answer first."""
    return (reference_answer(conversation), *conversation.other_answers)


def prompt_messages(conversation: Conversation) -> tuple[Message, ...]:
    """Return the messages before the last assistant message."""
    return conversation.messages[: _last_assistant(conversation)]


def _last_assistant(conversation: Conversation) -> int:
    """Return the index of the last assistant message."""
    roles = [message.role for message in conversation.messages]
    return max(index for index, role in enumerate(roles) if role == "assistant")


def prompt_tokens(
    conversation: Conversation, tokenizer: Tokenizer, render: RenderDataset
) -> Tokens:
    """Return the (T,) tokens that the model reads before its last answer."""
    messages = [message_to_dict(message) for message in prompt_messages(conversation)]
    return render_prompt(messages, tokenizer, render.chat)


def prompts_with_room(
    rows: Sequence[Conversation],
    tokenizer: Tokenizer,
    render: RenderDataset,
    max_tokens: int,
    setting: str,
) -> dict[int, Tokens]:
    """Return the prompts, by index of the row, with room for an answer in the model's context.

    `setting` is the name of the setting that limits answers to `max_tokens`. Other prompts obey
    rendering.overlong: they raise DataError, are left out, or get shorter answers.
    """
    prompts: dict[int, Tokens] = {}
    for at, row in enumerate(rows):
        prompt = prompt_tokens(row, tokenizer, render)
        if has_room(prompt, max_tokens, setting, tokenizer, row.where, render.overlong):
            prompts[at] = prompt
    return prompts


def message_to_dict(message: Message) -> ports.Message:
    """Convert a message to the dictionary of tokenizers and environments."""
    return {"role": message.role, "content": message.content}


def render_prompt(
    messages: Sequence[ports.Message],
    tokenizer: Tokenizer,
    chat: bool | None = None,
    tools: Sequence[ToolSchema] = (),
) -> Tokens:
    """Return the (T,) tokens of messages, through the chat template or concatenated.

    `chat` is None to use the template if there is one. A template without a place for tools gets
    them in the system prompt. Raises DataError for tools if there is no template.
    """
    if not uses_chat_template(tokenizer, chat):
        if tools:
            raise DataError(
                "tools are described through a chat template, but this model has none; choose an "
                "instruct model"
            )
        return tokenizer.encode("".join(message["content"] for message in messages), special=True)
    if not tools:
        return tokenizer.render(messages, answer=True)
    if not tokenizer.tools:
        return tokenizer.render(with_tools_in_system_prompt(tools, messages), answer=True)
    return tokenizer.render(messages, answer=True, tools=tools)


def strip_separator(completion: str, tokenizer: Tokenizer) -> str:
    """Return a completion of `render_prompt` without the separator used if there is no template."""
    return RenderDataset().answer_text(completion, tokenizer)


def check_system_prompt(instruction: str, tokenizer: Tokenizer, chat: bool | None = None) -> None:
    """Raise ConfigError for a system prompt if the model has no chat template to put it in."""
    if instruction and not uses_chat_template(tokenizer, chat):
        raise ConfigError(
            "an instruction is a system prompt, which needs a chat template, but this model has "
            "none, or rendering.chat=false: choose an instruct model, or leave instruction out"
        )


def uses_chat_template(tokenizer: Tokenizer, chat: bool | None = None) -> bool:
    """Return whether to use the chat template; by default, if the model has one."""
    return tokenizer.chat if chat is None else chat
