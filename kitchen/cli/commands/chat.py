"""`kitchen chat`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Literal

import numpy as np

from kitchen.artifacts.open import (
    NO_TEMPLATE_REASON,
    SamplingParams,
    answer_text,
    conversation,
    open_weights,
)
from kitchen.cli.commands.failure import tell
from kitchen.cli.console import console, printable
from kitchen.config.request import AdapterChoice
from kitchen.errors import ConfigError, DataError, KitchenError, did_you_mean
from kitchen.ports import Message, Sampler, Tokenizer
from kitchen.types import Tokens

# tokens asked for at once; each time all that was said before is read again
PIECES = (2, 4, 8, 16, 32)
HALF = "\N{REPLACEMENT CHARACTER}"  # what the end of a text decodes to in the middle of a character
COMMANDS = {
    "/reset": "begin a new conversation; the system message stays",
    "/system": "TEXT: set the system message, from the next answer on; without TEXT, have none",
    "/help": "show this",
    "/exit": "leave; so does Ctrl-D. Ctrl-C stops an answer",
}
NEW = "/reset begins a new conversation"


def chat(typed: str, adapter_choice: AdapterChoice, how: SamplingParams, system: str) -> int:
    """A conversation, until the end of the input."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with open_weights(typed, adapter_choice) as opened:
        tokenizer = opened.tokenizer()
        if opened.separator(tokenizer) is not None:
            why = NO_TEMPLATE_REASON if tokenizer.chat else "its tokenizer has none"
            raise ConfigError(
                f"{opened.weights.name}: to chat needs a chat template, and {why}; `kitchen "
                "sample` "
                "completes a text"
            )
        with opened.sampler() as sampler:
            # what cannot be loaded is told before the first word
            sampler.logprobs(tokenizer.encode("a")).result()
            if at_terminal:
                console(to_stderr=True).print(
                    f"{opened.weights.name}: /help shows what can be typed", soft_wrap=True
                )
            _converse(Chat(sampler, tokenizer, how, system), at_terminal=at_terminal)
    return 0


@dataclass
class Answer:
    """What the model says, as it comes."""

    written: Tokens = field(default_factory=lambda: np.empty(0, np.int64))
    text: str = ""  # shown so far
    ended: Literal["", "stop", "length", "context"] = ""


@dataclass
class Chat:
    """A conversation so far."""

    sampler: Sampler
    tokenizer: Tokenizer
    how: SamplingParams
    system: str
    turns: list[Message] = field(default_factory=list)
    asked: int = 0  # requests, each with a seed of its own
    aside: str = ""  # why the last answer ended where it did, if that is worth a word

    def answer(self, said: str) -> Iterator[str]:
        """The answer in pieces; what came of it is remembered, however it ends."""
        turns, answer, self.aside = [*self.turns, {"role": "user", "content": said}], Answer(), ""
        prompt = self.tokenizer.render(conversation(self.system, turns), answer=True)
        try:
            for size in chain(PIECES, repeat(PIECES[-1])):
                self._extend(answer, prompt, min(size, self.how.max_tokens - len(answer.written)))
                yield self._new(answer)
                if answer.ended:
                    break
        finally:  # stopped by Ctrl-C too
            if answer.text or answer.ended:
                self.turns = [*turns, {"role": "assistant", "content": answer.text}]
        if answer.ended == "length":
            self.aside = f"cut at {self.how.max_tokens} tokens; --max-tokens allows more"
        elif answer.ended == "context":
            self.aside = f"the model's context is full; {NEW}"
        elif not answer.text:
            self.aside = "the model says nothing"

    def _extend(self, answer: Answer, prompt: Tokens, size: int) -> None:
        how, self.asked = self.how, self.asked + 1
        try:
            [piece] = self.sampler.sample(
                np.concatenate([prompt, answer.written]),
                max_tokens=size,
                temperature=how.temperature,
                top_p=how.top_p,
                seed=how.seed + self.asked,
            ).result()
        except DataError as error:
            if not len(answer.written):
                raise DataError(f"{error}; {NEW}") from error
            answer.ended = "context"
            return
        answer.written = np.concatenate([answer.written, piece.tokens])
        if piece.stop_reason == "stop":
            answer.ended = "stop"
        elif len(piece.tokens) < size:
            answer.ended = "context"
        elif len(answer.written) >= how.max_tokens:
            answer.ended = "length"

    def _new(self, answer: Answer) -> str:
        """What is to be shown beyond what was, held back in the middle of a character."""
        text = answer_text(answer.written, self.tokenizer)
        text = text if answer.ended else text.rstrip(HALF)
        new = text[len(answer.text) :]
        answer.text += new
        return new


def _converse(chat: Chat, *, at_terminal: bool) -> None:
    if at_terminal:
        with contextlib.suppress(ImportError):  # Windows has none, and edits lines by itself
            import readline  # noqa: F401 it gives `input` its editing and history
    while (said := _read(at_terminal=at_terminal)) is not None:
        try:
            if said.startswith("/"):
                if not _command(chat, said):
                    return
            elif said.strip():
                _say(chat, said)
        except KitchenError as error:
            if not at_terminal:
                raise
            tell(error, debug=False)


def _read(*, at_terminal: bool) -> str | None:
    """A line, or None at the end of the input."""
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
        _note("/exit or Ctrl-D leaves")
        return ""


def _say(chat: Chat, said: str) -> None:
    try:
        for piece in chat.answer(said):
            print(printable(piece), end="", flush=True)
        print(flush=True)
        if chat.aside:
            _note(chat.aside)
    except KeyboardInterrupt:
        print(flush=True)
        _note("stopped")


def _command(chat: Chat, said: str) -> bool:
    """Whether to go on; raises ConfigError for a word that is no command."""
    word, _, rest = said.partition(" ")
    if word not in COMMANDS:
        raise ConfigError(
            f"{word} is no command; {did_you_mean(word, COMMANDS)} (a line that begins with a "
            "space is "
            "said as it is)"
        )
    if word == "/reset":
        chat.turns = []
        _note("a new conversation")
    elif word == "/system":
        chat.system = rest.strip()
        _note("the system message is set" if chat.system else "there is no system message now")
    elif word == "/help":
        for name, about in COMMANDS.items():
            _note(f"{name:8} {about}")
    return word != "/exit"


def _note(text: str) -> None:
    """Aside of what the model says."""
    console(to_stderr=True).print(f"({text})", style="dim", soft_wrap=True)
