"""Ollama's Modelfile: the prompt format of weights as a Go template, and where answers stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kitchen.errors import BackendError, DataError
from kitchen.ports import Message, Tokenizer

GGUF_FILE = "model.gguf"
_CALL = """# ollama create NAME -f Modelfile
FROM ./{file}
"""
_UNKNOWN_FORMAT = """# The chat template has a form that cannot be written as a template of Ollama.
# Ollama then uses the one that it recognises in the file, if any: ollama show NAME --template
"""
_CONVERSATIONS: Sequence[Sequence[tuple[str, str]]] = (
    (("user", "Question"),),
    (("system", "Rule"), ("user", "Question")),
    (("user", "Question"), ("assistant", "Answer"), ("user", "Again")),
    (("system", "Rule"), ("user", "One"), ("assistant", "Two"), ("user", "Three")),
)  # by which a format is recognised


@dataclass(frozen=True)
class ChatFormat:
    """A chat format in which each message stands between the same texts, such as ChatML."""

    start: str  # of a conversation
    before_role: str
    after_role: str
    after_message: str
    answer: str  # before an answer
    default_system: str = ""  # the system message of conversations without one

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """Return the prompt of a conversation."""
        if self.default_system and messages[0][0] != "system":
            messages = [("system", self.default_system), *messages]
        texts = [
            f"{self.before_role}{role}{self.after_role}{content}{self.after_message}"
            for role, content in messages
        ]
        return "".join([self.start, *texts, self.answer])

    def go_template(self) -> str:
        """Return the template in Go, as Ollama fills it in."""
        before, after = _go_text(self.before_role), _go_text(self.after_role)
        end = _go_text(self.after_message)
        message = f"{before}{{{{ .Role }}}}{after}{{{{ .Content }}}}{end}"
        loop = f"{{{{ range .Messages }}}}{message}{{{{ end }}}}"
        return f"{_go_text(self.start)}{loop}{_go_text(self.answer)}"


def modelfile(
    tokenizer: Tokenizer, separator: str | None, chat_template_kwargs: Mapping[str, Any]
) -> str:
    """Return a Modelfile for `model.gguf` beside it.

    `separator` is the text between prompt and answer; None if the chat template is used.
    """
    parts = [_CALL.format(file=GGUF_FILE)]
    if separator is not None:
        template = f"{{{{ .Prompt }}}}{_go_text(separator)}{{{{ .Response }}}}"
        parts.append(f"TEMPLATE {_quoted(template)}\n")
    elif (chat_format := find_chat_format(tokenizer, chat_template_kwargs)) is not None:
        parts.append(f"TEMPLATE {_quoted(chat_format.go_template())}\n")
        if chat_format.default_system:
            parts.append(f"SYSTEM {_quoted(chat_format.default_system)}\n")
    else:
        parts.append(_UNKNOWN_FORMAT)
    for token in tokenizer.stop_ids:
        text = tokenizer.decode(np.array([token]), special=True)
        parts.append(f"PARAMETER stop {_quoted(text)}\n")
    return "".join(parts)


def find_chat_format(
    tokenizer: Tokenizer, chat_template_kwargs: Mapping[str, Any]
) -> ChatFormat | None:
    """Return the format of a tokenizer's chat template; None if it has another form."""

    def rendered(messages: Sequence[tuple[str, str]], *, answer: bool = True) -> str:
        typed: list[Message] = [{"role": role, "content": text} for role, text in messages]
        return tokenizer.render_text(
            typed, answer=answer, chat_template_kwargs=chat_template_kwargs
        )

    try:
        expected = [rendered(messages) for messages in _CONVERSATIONS]
        found = _format_of(expected, rendered(_CONVERSATIONS[-1], answer=False))
    except (DataError, ValueError, IndexError):  # it refuses or leaves out one of the messages
        return None
    if found is None or [found.render(messages) for messages in _CONVERSATIONS] != expected:
        return None
    return _without_added_start(found, tokenizer)


def _format_of(expected: Sequence[str], closed: str) -> ChatFormat | None:
    """Read a format off rendered conversations, which raises an error if a message is not in them.

    `closed` is the last of them without the text before an answer.
    """
    (_, rule), (_, one), (_, two), (_, three) = _CONVERSATIONS[-1]
    head, from_rule = closed.split(rule)
    question, from_one = from_rule.split(one)  # the end of a message, and the user's role
    after_message = from_one.split(two)[1].split(three)[1]
    left, _, after_role = question.partition("user")
    before_role = left.removeprefix(after_message)
    start = head.removesuffix(f"{before_role}system{after_role}")
    answer = expected[-1].removeprefix(closed)
    found = ChatFormat(start, before_role, after_role, after_message, answer)
    alone = expected[0]  # without a system message
    if alone == found.render(_CONVERSATIONS[0]):
        return found
    default = alone.removeprefix(f"{start}{before_role}system{after_role}").split(question)[0]
    return replace(found, default_system=default)


def _without_added_start(found: ChatFormat, tokenizer: Tokenizer) -> ChatFormat:
    """Leave out the beginning-of-sequence token if programs that read the file add it."""
    plain, special = tokenizer.encode("a"), tokenizer.encode("a", special=True)
    added = tokenizer.decode(special[: len(special) - len(plain)], special=True)
    return replace(found, start=found.start.removeprefix(added))


def _go_text(text: str) -> str:
    """Return a text as it stands in a template in Go, where {{ begins an action."""
    return text.replace("{{", '{{ "{{" }}')


def _quoted(text: str) -> str:
    """Return a text in the quotes of a Modelfile; raises BackendError if it has none for it."""
    if '"' not in text and "\n" not in text:
        return f'"{text}"'
    if '"""' in text or text.startswith('"') or text.endswith('"'):
        raise BackendError(
            f"{text!r} cannot be written into a Modelfile, whose texts end at three quotation "
            "marks; change the chat template (rendering.template)"
        )
    return f'"""{text}"""'
