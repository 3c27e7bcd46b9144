"""`kitchen chat`: a conversation with weights, in a terminal or over standard input."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from typing import Any, Literal

import numpy as np

from kitchen.artifacts.completions import StreamingSampler, stream_tokens
from kitchen.artifacts.open import (
    INCOMPLETE_CHARACTER,
    NO_TEMPLATE_REASON,
    OpenWeights,
    SamplingParams,
    answer_text,
    conversation,
    open_weights,
)
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.cli.commands.errors import report_error
from kitchen.cli.console import console, print_wrapped
from kitchen.cli.waits import showing_waits
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.errors import ConfigError, DataError, KitchenError, did_you_mean
from kitchen.ports import Message, Sampler, Tokenizer
from kitchen.secrets import printable
from kitchen.types import Tokens

# tokens per sampling request: an answer streams, but each request reads all earlier tokens again
CHUNK_SIZES = (2, 4, 8, 16, 32)
COMMANDS = {
    "/reset": "start a new conversation; the system message stays",
    "/system": "TEXT: set the system message from the next answer on; without TEXT, remove it",
    "/help": "show this help",
    "/exit": "leave, as does Ctrl-D; Ctrl-C stops an answer",
}
RESET_HINT = "/reset starts a new conversation"


def chat(weights: str, adapters: AdapterChoice, params: SamplingParams, system: str) -> int:
    """Hold a conversation until the end of the input."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with (
        showing_waits(f"Opening {weights}") as opening_is_over,
        open_weights(weights, adapters) as opened,
    ):
        tokenizer = opened.tokenizer()
        _check_chat_template(opened, tokenizer)
        with opened.sampler() as sampler:
            if not isinstance(tokenizer, TextTokenizer):
                # a model that cannot be loaded fails here, before the first line is typed
                sampler.logprobs(tokenizer.encode("a")).result()
            opening_is_over()
            if at_terminal:
                greeting = f"{opened.weights.name}: type /help to see the commands"
                console(to_stderr=True).print(greeting, soft_wrap=True)
            kwargs = opened.chat_template_kwargs
            session = Chat(sampler, tokenizer, params, system, chat_template_kwargs=kwargs)
            _run_conversation(session, at_terminal=at_terminal)
    return 0


def _check_chat_template(opened: OpenWeights, tokenizer: Tokenizer) -> None:
    if opened.separator(tokenizer) is None:
        return
    reason = NO_TEMPLATE_REASON if tokenizer.chat else "its tokenizer has none"
    raise ConfigError(
        f"{opened.weights.name}: chatting needs a chat template, and {reason}; `kitchen sample` "
        "completes a text"
    )


@dataclass
class Answer:
    """An answer of the model while it is sampled."""

    tokens: Tokens = field(default_factory=lambda: np.empty(0, np.int64))
    text: str = ""  # shown so far
    stopped_by: Literal["", "stop", "length", "context"] = ""


@dataclass
class Chat:
    """A conversation so far."""

    sampler: Sampler
    tokenizer: Tokenizer
    params: SamplingParams
    system: str
    messages: list[Message] = field(default_factory=list)
    requests: int = 0  # each has its own seed
    # variables for the chat template
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""  # why the last answer ended, if the user should know

    def answer(self, text: str) -> Iterator[str]:
        """Yield the answer in pieces; what was sampled joins the conversation, however it ends."""
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        answer = Answer()
        self.note = ""
        prompt = self.tokenizer.render(
            conversation(self.system, messages),
            answer=True,
            chat_template_kwargs=self.chat_template_kwargs,
        )
        is_text = isinstance(self.tokenizer, TextTokenizer)
        try:
            yield from self._whole(answer, prompt) if is_text else self._chunks(answer, prompt)
        finally:  # also after Ctrl-C
            if answer.text or answer.stopped_by:
                self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        self.note = self._note_on(answer)

    def _chunks(self, answer: Answer, prompt: Tokens) -> Iterator[str]:
        """Yield an answer that is sampled a few tokens at a time."""
        for size in chain(CHUNK_SIZES, repeat(CHUNK_SIZES[-1])):
            self._extend(answer, prompt, min(size, self.params.max_tokens - len(answer.tokens)))
            yield self._new_text(answer)
            if answer.stopped_by:
                return

    def _whole(self, answer: Answer, prompt: Tokens) -> Iterator[str]:
        """Yield an answer of a sampler of text, which continues none, in pieces if it streams."""
        self.requests += 1
        params = asdict(self.params) | {"seed": self.params.seed + self.requests}
        if not isinstance(self.sampler, StreamingSampler):
            [sampled] = self.sampler.sample(prompt, **params).result()
        else:
            tokens = stream_tokens(self.sampler, prompt, params)
            try:
                while True:
                    answer.tokens = np.append(answer.tokens, next(tokens))
                    yield self._new_text(answer)
            except StopIteration as end:
                [sampled] = end.value
        answer.tokens, answer.stopped_by = sampled.tokens, sampled.stop_reason
        yield self._new_text(answer)

    def _note_on(self, answer: Answer) -> str:
        if answer.stopped_by == "length":
            return f"truncated at {self.params.max_tokens} tokens; --max-tokens allows more"
        if answer.stopped_by == "context":
            return f"the model's context is full; {RESET_HINT}"
        return "" if answer.text else "the answer is empty"

    def _extend(self, answer: Answer, prompt: Tokens, size: int) -> None:
        params = self.params
        self.requests += 1
        try:
            [piece] = self.sampler.sample(
                np.concatenate([prompt, answer.tokens]),
                max_tokens=size,
                temperature=params.temperature,
                top_p=params.top_p,
                seed=params.seed + self.requests,
            ).result()
        except DataError as error:
            if not len(answer.tokens):
                raise DataError(f"{error}; {RESET_HINT}") from error
            answer.stopped_by = "context"
            return
        answer.tokens = np.concatenate([answer.tokens, piece.tokens])
        if piece.stop_reason == "stop":
            answer.stopped_by = "stop"
        elif len(piece.tokens) < size:
            answer.stopped_by = "context"
        elif len(answer.tokens) >= params.max_tokens:
            answer.stopped_by = "length"

    def _new_text(self, answer: Answer) -> str:
        """Return the text beyond what was shown, without an incomplete character at its end."""
        text = answer_text(answer.tokens, self.tokenizer)
        if not answer.stopped_by:
            text = text.rstrip(INCOMPLETE_CHARACTER)
        new_text = text[len(answer.text) :]
        answer.text += new_text
        return new_text


def _run_conversation(chat: Chat, *, at_terminal: bool) -> None:
    if at_terminal:
        with contextlib.suppress(ImportError):  # Windows has none, and edits lines by itself
            import readline  # noqa: F401 it gives `input` line editing and history
    while (line := _read_line(at_terminal=at_terminal)) is not None:
        try:
            if line.startswith("/"):
                if not _run_command(chat, line):
                    return
            elif line.strip():
                _print_answer(chat, line)
        except KitchenError as error:
            if not at_terminal:
                raise
            report_error(error, debug=False)


def _read_line(*, at_terminal: bool) -> str | None:
    """Return a line, or None at the end of the input."""
    try:
        return input("> " if at_terminal else "")
    except EOFError:
        if at_terminal:
            print()
        return None
    except KeyboardInterrupt:
        if not at_terminal:
            raise
        print()
        _print_note("/exit or Ctrl-D leaves")
        return ""


def _print_answer(chat: Chat, text: str) -> None:
    try:
        for piece in chat.answer(text):
            print(printable(piece), end="", flush=True)
        print(flush=True)
        if chat.note:
            _print_note(chat.note)
    except KeyboardInterrupt:
        print(flush=True)
        _print_note("stopped")


def _run_command(chat: Chat, line: str) -> bool:
    """Run a command; return False to leave. Raises ConfigError for an unknown command."""
    command, _, argument = line.partition(" ")
    if command not in COMMANDS:
        raise ConfigError(
            f"{command} is not a command; {did_you_mean(command, COMMANDS)} (to send a message "
            "that starts with /, type a space before it)"
        )
    if command == "/reset":
        chat.messages = []
        _print_note("a new conversation")
    elif command == "/system":
        chat.system = argument.strip()
        _print_note(
            "the system message is set" if chat.system else "there is no system message now"
        )
    elif command == "/help":
        for name, summary in COMMANDS.items():
            _print_note(f"{name:8} {summary}")
    return command != "/exit"


def _print_note(text: str) -> None:
    """Print a note that is not part of the answer."""
    print_wrapped(console(to_stderr=True), f"({text})", style="dim")
