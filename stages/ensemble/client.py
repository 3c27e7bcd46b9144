"""Ensembles as weights: a sampler over samplers, which ensemble:FILE.yaml opens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from kitchen.artifacts.open import rendering_settings
from kitchen.artifacts.weights import find_weights
from kitchen.backend.sampling_router import server_of
from kitchen.backend.text_tokens import TextPrompt, TextTokenizer
from kitchen.errors import BackendError, ConfigError
from kitchen.ports import BlobStore, Message, Sampler, Tokenizer, TrainingClient
from kitchen.ports.future import Failed, Future, Pending
from kitchen.ports.training import require_catalog
from kitchen.types import Checkpoint, Floats, Sampled, Tokens
from stages.chat.prompts import render_prompt
from stages.ensemble.asking import Ensemble, Problem, Reply
from stages.ensemble.file import PREFIX, read_ensemble
from stages.ensemble.grouping import AnswerGroups
from stages.ensemble.members import Member, RequestLimits, check_gives_logprobs, find_members

log = structlog.get_logger("stages.ensemble")


class EnsembleSampling:
    """A SamplingClient whose models are files that list members, which other clients open."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        self._client, self._blobs = client, blobs

    def find(self, name: str) -> None:
        """Raise ConfigError for a file that cannot be used, or for unknown weights in it."""
        file = read_ensemble(name)
        for member in file.members:
            weights = find_weights(member, self._client, self._blobs)
            if file.vote == "confidence":
                check_gives_logprobs(weights, require_catalog(self._client))

    def tokenizer(self, name: str) -> Tokenizer:
        return TextTokenizer()

    def sha256(self, name: str) -> str:
        """Return the digest of the file and of the weights that it names."""
        digest = sha256(Path(name.removeprefix(PREFIX)).expanduser().read_bytes())
        for member in read_ensemble(name).members:
            facts = find_weights(member, self._client, self._blobs).facts(self._client)
            known = {key: fact for key, fact in facts.items() if not key.startswith("machine.")}
            digest.update(repr(sorted(known.items())).encode())
        return digest.hexdigest()

    def server_of(self, name: str) -> str:
        """Return the addresses of the members that are on servers."""
        members = read_ensemble(name).members
        servers = [server_of(self._client, member) for member in members]
        return ", ".join(dict.fromkeys(filter(None, servers)))

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        if not isinstance(weights, str):
            raise ConfigError("a checkpoint is opened by the training adapter that saved it")
        return EnsembleSampler(weights, self._client, self._blobs)


class EnsembleSampler:
    """Samples from an ensemble: each answer is that which wins the vote of the members.

    Prompts and answers are tokens of TextTokenizer; each member reads the conversation by its own
    tokenizer and chat template. If no answer wins a unanimous vote, the answer is empty and counts
    as truncated. Members stay open until the sampler is closed.
    """

    def __init__(self, name: str, client: TrainingClient, blobs: BlobStore | None) -> None:
        self._name, self._client, self._blobs = name, client, blobs
        self._file = read_ensemble(name)
        self._tokenizer = TextTokenizer()
        self._groups = AnswerGroups(self._file.metric, self._file.grading)
        limits = RequestLimits(
            self._file.seconds, self._file.concurrency, self._file.vote == "confidence"
        )
        models = require_catalog(client)
        self._members = find_members(self._file.members, limits, client, models, blobs)
        self._missing: dict[str, int] = {}  # answers that did not arrive, by name of the member
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return Failed(self._text_only())

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return Failed(self._text_only())

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
        try:
            config = self._file.config(temperature)
            prompts = self._prompts(self._tokenizer.prompt_of(prompt), max_tokens)
            texts = _only_texts(stop)
        except Exception as error:  # noqa: BLE001 errors surface on the future
            return Failed(error)
        weights = self._file.weights or (1.0,) * len(self._members)
        options = {"top_p": top_p, "top_k": top_k}
        ensemble = Ensemble(config, self._members, weights, max_tokens, texts, options)
        problems = [Problem(prompts, self._groups, (seed, at)) for at in range(count)]
        return self._submit(self._answers(ensemble, problems))

    def close(self) -> None:
        """Close all members, and report the answers that did not arrive."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        for member in self._members:
            member.close()
        for name, count in self._missing.items():
            log.warning(f"{self._name}: {count} answers of {name} did not arrive")
        self._missing = {}

    def _submit(self, work: Coroutine[Any, Any, Sequence[Sampled]]) -> Future[Sequence[Sampled]]:
        return Pending(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _prompts(self, prompt: TextPrompt, max_tokens: int) -> Mapping[int, Tokens]:
        """Return the prompt of each member whose context it fits into."""
        prompts = {at: _rendered(member, prompt) for at, member in enumerate(self._members)}
        return {
            at: tokens
            for at, tokens in prompts.items()
            if _has_room(tokens, max_tokens, self._members[at].tokenizer)
        }

    async def _answers(self, ensemble: Ensemble, problems: Sequence[Problem]) -> Sequence[Sampled]:
        await ensemble.answer(problems, self._client, self._blobs, keep_open=True)
        return [self._sampled(problem) for problem in problems]

    def _sampled(self, problem: Problem) -> Sampled:
        missing = [reply for reply in problem.replies if reply.no_answer is not None]
        for reply in missing:
            name = self._file.members[reply.member]
            self._missing[name] = self._missing.get(name, 0) + 1
        if not problem.votes:
            raise BackendError(f"{self._name}: no member answered: {_reasons(missing)}")
        winner = problem.outcome.winner
        if winner is None:
            return Sampled(np.zeros(0, np.int64), np.zeros(0, np.float32), "length")
        won = problem.answered[list(problem.votes).index(winner)]
        tokens = self._tokenizer.encode(won.text)
        stopped = won.sampled is None or won.sampled.stop_reason == "stop"
        if stopped:
            tokens = np.append(tokens, self._tokenizer.end_id)
        unknown = np.full(len(tokens), np.nan, np.float32)
        return Sampled(tokens, unknown, "stop" if stopped else "length")

    def _text_only(self) -> BackendError:
        return BackendError(f"{self._name}: an ensemble gives no log-probabilities")


def _rendered(member: Member, prompt: TextPrompt) -> Tokens:
    """Return the (T,) tokens of a prompt as a member reads it; a run's, as it was trained."""
    rendering = rendering_settings(member.weights.record)
    tokenizer, template = member.tokenizer, rendering.get("template")
    if template:
        tokenizer = tokenizer.with_template(template)
    if not prompt.messages:
        return tokenizer.encode(prompt.text, special=True)
    messages: list[Message] = list(prompt.messages)
    if prompt.text:
        messages.append({"role": "assistant", "content": prompt.text, "prefix": True})
    chat, variables = rendering.get("chat"), rendering.get("chat_template_kwargs", {})
    tokens = render_prompt(messages, tokenizer, chat, prompt.tools, variables)
    uses_template = tokenizer.chat if chat is None else chat
    separator = "" if uses_template else str(rendering.get("separator", ""))
    return np.append(tokens, tokenizer.encode(separator)) if separator else tokens


def _has_room(tokens: Tokens, max_tokens: int, tokenizer: Tokenizer) -> bool:
    context = tokenizer.context_length
    return context is None or len(tokens) + max_tokens <= context


def _only_texts(stop: Sequence[str] | Sequence[int]) -> Sequence[str]:
    """Return stop texts; raises ConfigError for token ids, which members do not share."""
    if any(not isinstance(each, str) for each in stop):
        raise ConfigError(
            "members of an ensemble have different tokens: stop at texts rather than token ids"
        )
    return [str(each) for each in stop]


def _reasons(replies: Sequence[Reply]) -> str:
    reasons = [reply.no_answer.reason for reply in replies if reply.no_answer is not None]
    return "; ".join(dict.fromkeys(reasons))
