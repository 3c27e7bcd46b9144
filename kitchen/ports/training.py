"""Where weights are trained and sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kitchen.ports.checkpointable import Checkpointable
from kitchen.ports.future import Future
from kitchen.types import (
    Adam,
    Checkpoint,
    Datum,
    Facts,
    Floats,
    Lora,
    Loss,
    LossOutput,
    Sampled,
    Stepped,
    Tokens,
)

Message = Mapping[str, str]  # "role" and "content"
# a function's name, description and parameters, as chat templates read it
ToolSchema = Mapping[str, Any]


class Tokenizer(Protocol):
    """Text to ids and back. Not the session: what only reads text must not look like training."""

    @property
    def chat(self) -> bool:
        """Whether it has a chat template."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: end of turn, end of sequence."""
        ...

    @property
    def end_id(self) -> int:
        """The end-of-sequence token."""
        ...

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        ...

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        """`special` adds what the model expects around a text of its own, such as a
        beginning-of-sequence token.
        """
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text, without special tokens."""
        ...

    @property
    def tools(self) -> bool:
        """Whether its chat template has a place for tools."""
        ...

    def render(
        self, messages: Sequence[Message], *, answer: bool = False, tools: Sequence[ToolSchema] = ()
    ) -> Tokens:
        """A conversation through the model's chat template; with `answer`, ready for the assistant
        to speak.

        Raises DataError, with the template's own words, for a conversation that the template
        refuses, and for tools where it has no place for them.
        """
        ...


class Sampler(Protocol):
    """A frozen copy of some weights."""

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        """Score a sequence: (T,) ids to (T,) nats; the first entry is NaN, for it has nothing
        before it.
        """
        ...

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        """The k likeliest tokens at each position: (T, k) ids and (T, k) nats; the first row is -1
        and NaN.

        Needs the capability "top_logprobs".
        """
        ...

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
        """`count` completions. Temperature 0 is greedy; top_k 0 is off. The model's own stop ids
        always stop.

        A stop token is among the tokens returned. A stop string ends the completion with the token
        that completes it.
        """
        ...

    def close(self) -> None: ...


class TrainingSession(Checkpointable, Protocol):
    """One set of LoRA weights under training. Calls take effect in the order they are made, from
    any thread.

    `save` keeps weights and optimiser. A gradient not yet stepped along cannot be kept: saving then
    is an error. After a failed update, later calls fail too.
    """

    def tokenizer(self) -> Tokenizer: ...
    def facts(self) -> Facts:
        """What its numbers depend on: "model.sha256", "model.dtype", "machine.device",
        "machine.threads", versions.
        """
        ...

    def forward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Mapping[str, float] | None = None,
    ) -> Future[LossOutput]:
        """The loss alone; gradients stay as they are and every position is scored."""
        ...

    def forward_backward(
        self,
        data: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
        options: Mapping[str, float] | None = None,
    ) -> Future[LossOutput]:
        """The loss, its gradient added to what is there. Raises on the future, before any gradient
        is touched, DataError that names datum and field.
        """
        ...

    def optim_step(self, adam: Adam) -> Future[Stepped]:
        """Step along the summed gradient and clear it."""
        ...

    def load_weights(self, checkpoint: Checkpoint) -> Future[None]:
        """The weights of a checkpoint of either kind, and a fresh optimiser."""
        ...

    def save_weights(self, name: str, *, overwrite: bool = False) -> Future[Checkpoint]:
        """Keep the weights alone, in PEFT's format where the backend can: for sampling and for
        people.
        """
        ...

    def snapshot(self) -> Future[Sampler]: ...
    def close(self) -> None: ...


class TrainingClient(Protocol):
    """Opens training sessions: Tinker's service, a local GPU, a fake."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can do beyond the laws: "loss ppo", "loss of one's own", "lora_alpha",
        "top_logprobs", ...
        """
        ...

    def find(self, model: str) -> None:
        """Raise BackendError if no session can be opened on `model`; cheap, loads nothing and needs
        no network.
        """
        ...

    def tokenizer(self, model: str) -> Tokenizer:
        """Of a model, without loading its weights; raises BackendError."""
        ...

    def hidden_size(self, model: str) -> int | None:
        """How wide the layers of a model are, None where that is not known; loads no weights,
        raises BackendError.
        """
        ...

    def sha256(self, model: str) -> str | None:
        """Digest of the weights that a model's name stands for now, None where a service does not
        say; raises BackendError.
        """
        ...

    def open(self, model: str, lora: Lora) -> TrainingSession: ...
    def sampler(self, weights: str | Checkpoint) -> Sampler:
        """Of a base model by name, or of a checkpoint of either kind."""
        ...

    def export(self, weights: str | Checkpoint, folder: Path, *, merged: bool = False) -> None:
        """Write weights for other programs into a folder, which appears whole or not at all.

        A folder of PEFT's with the tokenizer, or with `merged` a whole model that plain
        transformers opens. Needs the capability "export", or "export merged"; raises BackendError
        where there is nothing to export, ConfigError for a folder in use.
        """
        ...

    def checkpoints(self, prefix: str = "") -> Sequence[Checkpoint]: ...
    def delete(self, checkpoint: Checkpoint) -> None: ...
