"""A bigram model, trainable weights over it, and their optimiser, in float64."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from adapters.fake.tokenizer import VOCABULARY
from kitchen.errors import Diverged
from kitchen.types import Adam, Array, Datum, Tokens

Table = npt.NDArray[np.float64]  # (V, V): previous token, next token
# logits per unit of weight: one weight stands in for all LoRA weights that move a logit
LOGITS_PER_WEIGHT = 16.0


class Bigram:
    """Frozen logits, and the log-probabilities that they give."""

    def __init__(self, logits: Table) -> None:
        self.logits = logits

    @cached_property
    def logprobs(self) -> Table:
        """(V, V) nats."""
        return log_softmax(self.logits)

    def score(self, tokens: Tokens, targets: Tokens) -> Table:
        """Map (N,) previous ids and (N,) or (N, K) next ids to nats of the shape of the latter."""
        return self.logprobs[_like_targets(tokens, targets), np.asarray(targets)]

    def gradient(self, data: Sequence[Datum], logprob_grads: Sequence[Array]) -> Table:
        """Return dloss/dlogits from dloss/dlogprob of each target.

        A softmax gives grad * (1[target] - p) at each row.
        """
        cells = np.concatenate(
            [(_like_targets(d.tokens, d.targets) * VOCABULARY + d.targets).ravel() for d in data]
        )
        grads = np.concatenate([grad.ravel() for grad in logprob_grads])
        summed = np.bincount(cells, grads, VOCABULARY**2).reshape(VOCABULARY, VOCABULARY)
        return np.asarray(summed - np.exp(self.logprobs) * summed.sum(1, keepdims=True))


def base_logits(model: str) -> Table:
    """Return the logits of an untrained model: near zero, drawn from its name."""
    rng = np.random.default_rng(list(name_digest(model)))
    return 0.01 * rng.standard_normal((VOCABULARY, VOCABULARY))


def name_digest(model: str) -> bytes:
    return hashlib.sha256(model.encode()).digest()


class Adapter:
    """Minimal LoRA: logits are base + A B, with A diagonal and random, and B 0 at first."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        # fixed; the seed matters once B is not 0
        self.a: Table = LOGITS_PER_WEIGHT * rng.uniform(0.8, 1.25, (VOCABULARY, 1))
        self.b: Table = np.zeros((VOCABULARY, VOCABULARY))

    def apply(self, logits: Table) -> Bigram:
        """Return the model with these weights added to base logits."""
        return Bigram(logits + self.a * self.b)


def all_weights(base: Table, adapter: Adapter) -> Adapter:
    """Return logits, whole, as weights in training over base logits of 0."""
    full = Adapter(0)
    full.a = np.full((VOCABULARY, 1), LOGITS_PER_WEIGHT)
    full.b = adapter.apply(base).logits / full.a
    return full


class AdamW:
    """torch.optim.AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), algorithm 2."""

    def __init__(self) -> None:
        self.first: Table = np.zeros((VOCABULARY, VOCABULARY))
        self.second: Table = np.zeros((VOCABULARY, VOCABULARY))
        self.steps = 0

    def step(self, weights: Table, gradient: Table, adam: Adam) -> tuple[Table, float]:
        """Return new weights, and the global norm before clipping.

        Raises Diverged, with nothing changed, for a gradient that is not finite.
        """
        norm = float(np.sqrt(np.sum(gradient**2)))
        if not np.isfinite(norm):
            raise Diverged(
                f"the gradient is not finite (its norm is {norm}), so step {self.steps + 1} is not "
                "taken"
            )
        if 0 < adam.grad_clip_norm < norm:
            gradient = gradient * (adam.grad_clip_norm / norm)
        self.steps += 1
        self.first = adam.beta1 * self.first + (1 - adam.beta1) * gradient
        self.second = adam.beta2 * self.second + (1 - adam.beta2) * gradient**2
        size = np.sqrt(self.second / (1 - adam.beta2**self.steps)) + adam.eps
        decayed = weights * (1 - adam.learning_rate * adam.weight_decay)
        return decayed - adam.learning_rate / (1 - adam.beta1**self.steps) * self.first / size, norm


def _like_targets(tokens: Tokens, targets: Tokens) -> Tokens:
    """Return (N,) tokens as (N,), or as (N, 1) where there are K targets at each position."""
    return np.asarray(tokens).reshape(-1, *[1] * (np.ndim(targets) - 1))


def log_softmax(logits: Table) -> Table:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
