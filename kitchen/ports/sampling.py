"""Ports for reading and sampling text: Tokenizer, Sampler and SamplingClient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from kitchen.ports.future import Future
from kitchen.types import Checkpoint, Floats, Sampled, Tokens

Message = Mapping[str, Any]  # "role" and "content", text, and fields for the chat template
ToolSchema = Mapping[str, Any]  # a function, in the form of OpenAI's API


class Tokenizer(Protocol):
    """Text to token ids and back.

    A port of its own, apart from the session, so that a stage that only reads text does not look
    as if it trained.
    """

    @property
    def chat(self) -> bool:
        """True if there is a chat template."""

    @property
    def tools(self) -> bool:
        """True if the chat template has a place for tools."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: end of turn, end of sequence."""

    @property
    def end_id(self) -> int:
        """The end-of-sequence token."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""

    @property
    def model_vocabulary(self) -> int | None:
        """The number of token ids that the model reads; None if it is not known."""

    @property
    def context_length(self) -> int | None:
        """The maximum number of tokens that the model reads; None if it is not known."""

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        """Return the (T,) ids of a text.

        `special` adds what the model expects before a text, such as a beginning-of-sequence token;
        nothing is added behind it, since the text of an answer may follow.
        """

    def decode(self, tokens: Tokens, *, special: bool = False) -> str:
        """Return the text, without special tokens, or with their names if `special`."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> Tokens:
        """Apply the chat template; `answer` adds the prompt for the assistant's next turn.

        Raises DataError, with the template's own words, for a conversation that the template
        refuses, for tools where it has no place for them, and for variables that it does not read.
        """

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = False,
        tools: Sequence[ToolSchema] = (),
        chat_template_kwargs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Return the text that `render` encodes, with special tokens written out."""

    def with_template(self, template: str) -> Tokenizer:
        """Return a tokenizer with this chat template; raises ConfigError if it cannot be used."""


class Sampler(Protocol):
    """A frozen copy of some weights, to sample from and to score with."""

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        """Score a sequence: (T,) ids to (T,) nats; the first is NaN, as nothing precedes it."""

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        """Return the k likeliest tokens at each position: (T, k) ids and (T, k) nats.

        The first row is -1 and NaN. Needs the capability "top_logprobs".
        """

    def sample(
        self,
        prompt: Tokens,
        *,
        count: int = 1,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        """Sample `count` completions. Temperature 0 is greedy; top_k 0 is off.

        The model's own stop ids always stop. A stop token is among the tokens returned. A stop
        string ends the completion with the token that completes it.
        """

    def close(self) -> None:
        """Free the memory of the sampler; it cannot be used afterwards."""


class SamplingClient(Protocol):
    """A source of samplers: a service with models of others, or a training backend."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Features beyond the laws: "top_logprobs", "loss ppo", "lora_alpha"..."""

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Return a sampler of a model by name, or of a checkpoint of either kind."""
