"""Prompts: the tokens that a model reads before it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kitchen import ports
from kitchen.backend.tool_calls import with_tools_in_system_prompt
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Tokenizer
from kitchen.ports.environments import Env
from kitchen.ports.sampling import ToolSchema
from kitchen.types import Tokens
from stages.chat.conversations import Conversation
from stages.chat.items import item_digest
from stages.chat.left_out import check_messages_rendered
from stages.chat.messages import (
    Message,
    message_text,
    message_to_dict,
    messages_from_dicts,
)
from stages.chat.model_limits import has_room, length_limit
from stages.chat.prefill import check_prefills, json_prefill
from stages.chat.render import RenderDataset
from stages.chat.template import (
    PromptRendering,
    TemplateInputs,
    check_fields_rendered,
    check_no_template_needed,
    check_tools_rendered,
    in_row,
    not_joined,
    render_by_template,
)


def reference_answer(conversation: Conversation) -> str:
    """Return the reference answer: the last assistant message, with a prefill that begins its JSON.

    Raises DataError as `answer_content` does.
    """
    return graded_prefill(conversation) + answer_content(conversation)


def answer_content(conversation: Conversation) -> str:
    """Return the text of the last assistant message.

    Raises DataError for a call of a tool, which has no text to compare answers with.
    """
    if answers_by_tool_call(conversation):
        raise DataError(
            f"{conversation.where}: the answer is a tool call, which sampled answers cannot be "
            "compared with; evaluate by the loss (evaluation.metric=loss), or write the call as "
            "the content of the message"
        )
    return conversation.messages[_last_assistant(conversation)].content


def prefill_text(conversation: Conversation) -> str:
    """Return the text that the last assistant message continues; empty if there is none."""
    texts: list[str] = []
    for message in reversed(prompt_messages(conversation)):
        if not message.prefix:
            break
        texts.insert(0, message.content)
    return "".join(texts)


def graded_prefill(conversation: Conversation) -> str:
    """Return the prefill that answers are graded with, such as the "{" of a JSON object."""
    answer = conversation.messages[_last_assistant(conversation)].content
    return json_prefill(prefill_text(conversation), answer)


def answers_by_tool_call(conversation: Conversation) -> bool:
    """Return whether the last assistant message is a call of a tool."""
    return "tool_calls" in conversation.messages[_last_assistant(conversation)].fields


def reference_answers(conversation: Conversation) -> tuple[str, ...]:
    """Return all right answers, the reference answer first."""
    prefill = graded_prefill(conversation)
    others = [prefill + answer for answer in conversation.other_answers]
    return (reference_answer(conversation), *others)


def prompt_messages(conversation: Conversation) -> tuple[Message, ...]:
    """Return the messages before the last assistant message."""
    return conversation.messages[: _last_assistant(conversation)]


def _last_assistant(conversation: Conversation) -> int:
    """Return the index of the last assistant message."""
    roles = [message.role for message in conversation.messages]
    return max(index for index, role in enumerate(roles) if role == "assistant")


def prompt_text(conversation: Conversation) -> str:
    """Return the last message before the answer, and the prefill that the answer continues."""
    prompt = [message for message in prompt_messages(conversation) if not message.prefix]
    texts = [message.content for message in prompt[-1:]]
    return "\n".join([*texts, *filter(None, [prefill_text(conversation)])])


def item_of(conversation: Conversation) -> str:
    """Return the item of a conversation: the digest of its prompt, and of the right answers."""
    if conversation.plain_text:
        return item_digest([], [conversation.messages[0].content])
    answer = conversation.messages[_last_assistant(conversation)]
    asked = [prompt_dicts(conversation), conversation.inputs, conversation.choices]
    return item_digest(asked, [message_to_dict(answer), conversation.other_answers])


def prompt_dicts(conversation: Conversation) -> tuple[ports.Message, ...]:
    """Return the messages before the last assistant message as dictionaries.

    A last one by the assistant says whether the answer continues it. Raises DataError for a plain
    text, which has no prompt.
    """
    if conversation.plain_text:
        raise DataError(
            f"{conversation.where}: a row of plain text has no prompt to answer; recipes.sl_basic "
            "and recipes.chat_sl train on such rows, and evaluate them by their loss "
            "(evaluation.metric=loss)"
        )
    dicts = list(map(message_to_dict, prompt_messages(conversation)))
    if dicts and dicts[-1]["role"] == "assistant":
        dicts[-1] = {"prefix": False, **dicts[-1]}
    return tuple(dicts)


def env_inputs(env: Env) -> TemplateInputs:
    """Return the tools and the template variables of an environment, if it has any."""
    return TemplateInputs(
        tuple(getattr(env, "tools", ())), getattr(env, "chat_template_kwargs", {})
    )


def prompt_tokens(
    conversation: Conversation, tokenizer: Tokenizer, render: RenderDataset
) -> Tokens:
    """Return the (T,) tokens that the model reads before its last answer."""
    inputs = conversation.inputs.over(render.chat_template_kwargs)
    try:
        return render_prompt(
            prompt_dicts(conversation),
            render.tokenizer(tokenizer),
            render.chat,
            inputs.tools,
            inputs.kwargs,
        )
    except DataError as error:
        raise in_row(error, conversation.where) from error


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


def all_too_long(
    rows: Sequence[Conversation], tokenizer: Tokenizer, render: RenderDataset
) -> DataError:
    """Return the error for a held-out set whose rows are all dropped because of their length."""
    limit, fix = length_limit(render.max_tokens, tokenizer)
    return DataError(
        f"{rows[0].where}: this row and all others of its held-out set are dropped, because they "
        f"do not fit into {limit}: {fix}"
    )


def whole_prompt_tokens(
    prompt: Conversation, tokenizer: Tokenizer, render: PromptRendering
) -> Tokens:
    """Return the (T,) tokens of a conversation without an answer."""
    messages = list(map(message_to_dict, prompt.messages))
    inputs = prompt.inputs.over(render.chat_template_kwargs)
    tokenizer = render.tokenizer(tokenizer)
    return render_prompt(messages, tokenizer, None, inputs.tools, inputs.kwargs)


def render_prompt(
    messages: Sequence[ports.Message],
    tokenizer: Tokenizer,
    chat: bool | None = None,
    tools: Sequence[ToolSchema] = (),
    chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    may_join: bool = False,
) -> Tokens:
    """Return the (T,) tokens of messages, through the chat template or as text.

    A last message by the assistant that is a prefill is continued. Without a template, several
    messages are concatenated if they `may_join`: those of an environment, which is text as a whole.

    `chat` is None to use the template if there is one. A template without a place for tools gets
    them in the system prompt. Raises DataError for no messages, for several without a template, and
    for tools, variables of the template and fields of messages that are not rendered.
    """
    if not messages:
        raise DataError(
            "the first message is the assistant's, so there is no prompt; start with a user or "
            "system message"
        )
    parsed = messages_from_dicts(messages)
    inputs = TemplateInputs(tuple(tools), chat_template_kwargs)
    check_prefills(parsed, answered=False)
    if not uses_chat_template(tokenizer, chat):
        check_no_template_needed(parsed, inputs)
        if len(parsed) > 1 and not may_join:
            raise not_joined(parsed)
        return tokenizer.encode("".join(message["content"] for message in messages), special=True)
    tokens = render_by_template(messages, tokenizer, inputs, answer=True)
    check_tools_rendered(tokens, tokenizer, inputs.tools)
    check_fields_rendered(parsed, tokenizer, inputs)
    check_messages_rendered(parsed, tokenizer, inputs, answer=True)
    return tokens


def request_text(request: Sequence[Message], inputs: TemplateInputs) -> str:
    """Return the messages and tools of a request as one text, for a model that judges answers."""
    if inputs.tools:
        messages = list(map(message_to_dict, request))
        request = messages_from_dicts(with_tools_in_system_prompt(inputs.tools, messages))
    if len(request) == 1:
        return message_text(request[0])
    return "\n".join(f"{message.role}: {message_text(message)}" for message in request)


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
