"""Reference models and other samplers of weights by name, sampling, and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from kitchen.artifacts.weights import find_weights, parse_weights_name
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.backend.work import gather_counted
from kitchen.errors import BackendError, ConfigError, KitchenError
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Need, Stage
from kitchen.types import Array, Facts, Floats, Sampled, Tokens

# of stages that compute log-probabilities of whole texts; some servers only sample
PROMPT_LOGPROBS = Need(TrainingClient, "prompt_logprobs")
ROUNDING = 1e-3  # nats by which rounding may put the log-probability of a token above 0


class Reference(Sampler, Protocol):
    """A sampler of the reference model: fixed weights that the policy is compared with."""


class IdentifyWeights(Stage):
    """Record which weights a name stands for, before a memoized stage samples from them.

    A resumed run does not compute a memoized stage again (ADR 5); this stage does run again, so
    that the run is refused if a folder holds other weights by then.
    """

    name: str  # of weights
    prefix: str = "weights"  # of the names of its facts

    def run(self, client: TrainingClient, blobs: BlobStore | None = None) -> Facts:
        return weights_facts(self.name, self.prefix, client, blobs)

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.name, client, blobs)


def weights_facts(name: str, prefix: str, client: TrainingClient, blobs: BlobStore | None) -> Facts:
    """Return the name of weights, their digest if known, and their model, as facts."""
    weights = find_weights(name, client, blobs)
    return Facts({**weights.facts(client, prefix), f"{prefix}.model": weights.model})


class OpenReference(Stage):
    """Open the reference model; a resumed run must find the same weights under its name."""

    name: str  # of weights
    model: str = ""  # the one that is trained, for a check before the run

    def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        tokenizer: Tokenizer,
        blobs: BlobStore | None = None,
    ) -> tuple[Reference, Facts]:
        facts = weights_facts(self.name, "reference", client, blobs)
        return open_reference(self.name, "reference", client, models, tokenizer, blobs), facts

    def verify(
        self,
        client: TrainingClient,
        models: ModelCatalog | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        verify_reference(self.name, "reference", self.model, client, models, blobs)


def open_reference(
    name: str,
    setting: str,
    client: TrainingClient,
    models: ModelCatalog,
    tokenizer: Tokenizer,
    blobs: BlobStore | None,
) -> Sampler:
    """Open weights to compare with; raises ConfigError that names the setting if tokens differ."""
    weights = find_weights(name, client, blobs)
    _check_tokens(name, setting, weights.tokenizer(models), tokenizer)
    return client.sampler(weights.source)


def verify_reference(
    name: str,
    setting: str,
    model: str,
    client: TrainingClient,
    models: ModelCatalog | None,
    blobs: BlobStore | None,
) -> None:
    """Raise the error of `open_reference` before a run, as far as no download is needed.

    `model` is the one that is trained; without it, only weights that give text are refused.
    """
    weights = find_weights(name, client, blobs)
    if models is None or weights.model == model:
        return
    is_remote = parse_weights_name(weights.model).kind == "openai"
    if is_remote:
        _check_tokens(name, setting, weights.tokenizer(models), None)
    trained = find_weights(model, client, blobs).model if model else ""
    kinds = {parse_weights_name(each).kind for each in (weights.model, trained) if each}
    if trained and trained != weights.model and (is_remote or "hub" not in kinds):
        _check_tokens(name, setting, weights.tokenizer(models), models.tokenizer(trained))


def _check_tokens(name: str, setting: str, tokenizer: Tokenizer, trained: Tokenizer | None) -> None:
    """Raise ConfigError if the log-probabilities of weights cannot be compared."""
    if isinstance(tokenizer, TextTokenizer):
        fix = ""
        if parse_weights_name(name).kind == "openai":
            fix = (
                "; if its server takes token ids (vLLM, SGLang, kitchen serve), set "
                "sampling.tokenizer to the model whose tokenizer it uses"
            )
        raise ConfigError(
            f"{setting}={name!r} gives text only, and log-probabilities are needed here{fix}"
        )
    if trained is not None and not same_tokens(tokenizer, trained):
        raise ConfigError(
            f"{setting}={name!r} has another tokenizer than the model that is trained, so the "
            "log-probabilities of the two cannot be compared; choose weights with the same one"
        )


def same_tokens(first: Tokenizer, second: Tokenizer) -> bool:
    """Return whether two tokenizers have equal vocabulary sizes and encode a probe text alike."""
    letters = "".join(map(chr, range(32, 0x250)))
    probe = "The quick brown fox jumps over 1,234 lazy dogs.\n\n\t" + letters
    return first.vocabulary == second.vocabulary and np.array_equal(
        first.encode(probe), second.encode(probe)
    )


def open_sampler(name: str, client: TrainingClient, blobs: BlobStore | None) -> Sampler:
    """Open a sampler of weights by name; raises ConfigError for an unknown name."""
    return client.sampler(find_weights(name, client, blobs).source)


MAX_SEED = 2**31  # exclusive; every server accepts seeds below it


def spawn_seeds(entropy: Sequence[int], count: int) -> list[int]:
    """Derive `count` sampling seeds, below MAX_SEED."""
    states = np.random.SeedSequence(list(entropy)).generate_state(count)
    seeds: list[int] = (states >> 1).tolist()
    return seeds


async def sample_answers(
    sampler: Sampler, prompts: Sequence[Tokens], entropy: Sequence[int], **options: Any
) -> list[Sequence[Sampled]]:
    """Sample answers to all prompts at once, with seeds from `entropy` and options of `sample`."""
    seeds = spawn_seeds(entropy, len(prompts))
    futures = [
        sampler.sample(prompt, seed=seed, **options)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    return await gather_counted(futures, "answers", each=options.get("count", 1))


async def score_sequences(sampler: Sampler, sequences: Sequence[Tokens]) -> list[Floats]:
    """Return the (T,) log-probabilities of each sequence in nats, the first NaN; all at once."""
    return await gather_counted([sampler.logprobs(tokens) for tokens in sequences], "sequences")


def check_logprobs(
    values: Array, of: str, error: Callable[[str], KitchenError] = BackendError
) -> None:
    """Raise an error for a log-probability that is not finite, or above 0 beyond rounding.

    `error` is its class: Diverged for the weights that are trained.
    """
    wrong = ~np.isfinite(values) | (values > ROUNDING)
    if wrong.any():
        raise error(
            f"{of} returned the log-probability {values[wrong][0]:g} for a token, where a number "
            "of at most 0 is needed: its weights have diverged, or its server computes "
            "log-probabilities wrongly"
        )
