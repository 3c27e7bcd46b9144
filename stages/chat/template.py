"""Rendering by chat templates: messages, tools and variables, none of which may be left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from kitchen import ports
from kitchen.backend.tool_calls import with_tools_in_system_prompt
from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports.sampling import Tokenizer, ToolSchema
from kitchen.types import RenderingSettings, Tokens
from stages.chat.joining import encode_continuation
from stages.chat.messages import Message, message_to_dict
from stages.chat.prefill import is_prefill, joined_prefills, text_to_continue
from stages.chat.row_fields import REASONING


@dataclass(frozen=True)
class TemplateInputs:
    """Tools, and variables such as `enable_thinking`, that a chat template reads."""

    tools: tuple[ToolSchema, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tools or self.kwargs)

    def over(self, defaults: Mapping[str, Any]) -> TemplateInputs:
        """Return the inputs with the variables of a setting, of which the row's take precedence."""
        return TemplateInputs(self.tools, {**defaults, **self.kwargs}) if defaults else self


NO_INPUTS = TemplateInputs()


@dataclass(frozen=True)
class PromptRendering(RenderingSettings):
    """Rendering of prompts by the chat template."""

    # variables for the chat template: chat_template_kwargs.enable_thinking=false; those of a row
    # take precedence
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    # a Jinja file to use in place of the model's chat template; a run records its text
    template: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", read_template(self.template))

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer with the template that is set, if there is one."""
        return tokenizer.with_template(self.template) if self.template else tokenizer


def read_template(value: str | None) -> str | None:
    """Return the text of a template's file, or the text itself, as a run records it.

    Raises ConfigError for a file that cannot be read or has no Jinja in it.
    """
    if value is None or "{{" in value or "{%" in value:
        return value
    path = Path(value).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        names = [each.name for each in sorted(path.parent.glob("*.jinja"))]
        hint = f"; {did_you_mean(path.name, names)}" if names else ""
        raise ConfigError(
            f"rendering.template={value}: the file cannot be read ({reason}); name a file with a "
            f"Jinja chat template{hint}"
        ) from error
    if "{{" not in text and "{%" not in text:
        raise ConfigError(
            f"rendering.template={value}: the file has no Jinja expression, such as "
            "{{ message['content'] }}, so it is no chat template"
        )
    return text


DEFAULT_RENDERING = PromptRendering()


def render_by_template(
    messages: Sequence[ports.Message],
    tokenizer: Tokenizer,
    inputs: TemplateInputs,
    *,
    answer: bool = False,
) -> Tokens:
    """Return the (T,) tokens of messages; a template without a place for tools gets them as text.

    With `answer`, they end with the generation prompt, or with the prefill that is to be continued.
    Raises DataError for what the template refuses, and for variables that it does not read.
    """
    if answer and messages and is_prefill(messages[-1]):
        return _tokens_to_continue(messages, tokenizer, inputs)
    messages, options = _arguments(messages, tokenizer, inputs)
    return tokenizer.render(messages, answer=answer, **options)


def _tokens_to_continue(
    messages: Sequence[ports.Message], tokenizer: Tokenizer, inputs: TemplateInputs
) -> Tokens:
    """Return the (T,) tokens of a conversation up to the end of its prefill."""
    text = text_by_template(messages, tokenizer, inputs, answer=True)
    opening = joined_prefills(messages)[:-1]
    prompt = render_by_template(opening, tokenizer, inputs, answer=True)
    start = text_by_template(opening, tokenizer, inputs, answer=True)
    if text.startswith(start) and not np.array_equal(tokenizer.encode(start), prompt):
        # the text of special tokens is not encoded as these, as in the fake tokenizer
        return np.concatenate([prompt, encode_continuation(text[len(start) :], tokenizer)])
    return tokenizer.encode(text)


def text_by_template(
    messages: Sequence[ports.Message],
    tokenizer: Tokenizer,
    inputs: TemplateInputs,
    *,
    answer: bool = False,
) -> str:
    """Return the text that `render_by_template` encodes."""
    continues = answer and bool(messages) and is_prefill(messages[-1])
    messages, options = _arguments(messages, tokenizer, inputs)
    if continues:
        return text_to_continue(messages, partial(tokenizer.render_text, **options))
    return tokenizer.render_text(messages, answer=answer, **options)


def _arguments(
    messages: Sequence[ports.Message], tokenizer: Tokenizer, inputs: TemplateInputs
) -> tuple[Sequence[ports.Message], Mapping[str, Any]]:
    messages = joined_prefills(messages)
    options: dict[str, Any] = {}
    if inputs.kwargs:
        options["chat_template_kwargs"] = inputs.kwargs
    if inputs.tools and tokenizer.tools:
        options["tools"] = inputs.tools
    elif inputs.tools:
        messages = with_tools_in_system_prompt(inputs.tools, messages)
    return messages, options


def check_tools_rendered(tokens: Tokens, tokenizer: Tokenizer, tools: Sequence[ToolSchema]) -> None:
    """Raise DataError for a tool whose name is not in the rendered text."""
    text = tokenizer.decode(tokens) if tools else ""
    for tool in tools:
        name = tool["function"]["name"]
        if name not in text:
            raise DataError(
                f"tools: the chat template leaves out the tool {name!r}, so the model would not "
                "know of it; choose a model whose template describes tools, or remove the column"
            )


def check_fields_rendered(
    messages: Sequence[Message], tokenizer: Tokenizer, inputs: TemplateInputs
) -> None:
    """Raise DataError for a field of a message that the chat template leaves out.

    A template may leave out earlier thoughts, so each is looked for where its message is the last.
    """
    for index, message in enumerate(messages):
        is_assistant = message.role == "assistant"
        shown = messages[: index + 1] if is_assistant else messages
        for names in _groups(message):
            changed = [*shown]
            changed[index] = message.without(names)
            if _tokens(shown, tokenizer, inputs) == _tokens(changed, tokenizer, inputs):
                raise _left_out(names[0], index, message)


def _tokens(messages: Sequence[Message], tokenizer: Tokenizer, inputs: TemplateInputs) -> list[int]:
    dicts = list(map(message_to_dict, messages))
    tokens: list[int] = render_by_template(dicts, tokenizer, inputs).tolist()
    return tokens


def in_row(error: DataError, where: str) -> DataError:
    """Return an error that begins with the place of a row."""
    text = str(error)
    return error if text.startswith(f"{where}: ") else DataError(f"{where}: {text}")


def check_no_template_needed(messages: Sequence[Message], inputs: TemplateInputs) -> None:
    """Raise DataError for tools, variables or fields, which only a chat template can render."""
    fields = chain.from_iterable(message.fields for message in messages)
    names = ["tools"] * bool(inputs.tools) + ["chat_template_kwargs"] * bool(inputs.kwargs)
    for name in (*names, *fields):
        raise DataError(
            f"{name!r} is rendered by a chat template, but this model has none, or "
            f"rendering.chat=false: choose an instruct model, or remove the field{_if_column(name)}"
        )


def not_joined(messages: Sequence[Message]) -> DataError:
    """Return the error for messages that cannot be joined without a chat template."""
    for index, message in enumerate(messages):
        if message.prefix:
            return DataError(
                f"message {index} (assistant) is a prefill, which only a chat template can "
                "continue: choose an instruct model, set a template (rendering.template=FILE), or "
                "write the row as one prompt and one answer"
            )
    roles = ", ".join(message.role for message in messages)
    return DataError(
        "only a row of one prompt and one answer can be joined without a chat template; this row "
        f"has messages from: {roles}. Choose an instruct model, or set a template "
        "(rendering.template=FILE)"
    )


def _groups(message: Message) -> list[tuple[str, ...]]:
    """Return the fields that must change the tokens; names of one thought belong together."""
    if message.role == "tool":  # its name and id only connect it with a call
        return []
    thoughts = tuple(name for name in REASONING if name in message.fields)
    others = [(name,) for name in message.fields if name in ("name", "tool_calls")]
    return [thoughts, *others] if thoughts else [*others]


def _if_column(name: str) -> str:
    """Return the fix for a field that comes from a column of the row."""
    return f" (if it is a column: reading.columns.{name}=other)" if name in REASONING else ""


def _left_out(name: str, index: int, message: Message) -> DataError:
    fix = f"choose a model whose template reads it, or remove the field{_if_column(name)}"
    if name in REASONING:
        fix += "; a thought can also be part of the content"
    return DataError(
        f"the chat template leaves out {name!r} of message {index} ({message.role}), so it would "
        f"be ignored: {fix}"
    )
