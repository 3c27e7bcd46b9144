"""What the laws of a training client are asked of, and how exactly it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from kitchen.ports.training import (
    CheckpointStore,
    ModelCatalog,
    TrainingClient,
    TrainingSession,
    why_missing,
)
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora, Loss

Open = Callable[[], TrainingSession]
TEXTS = (
    "one cup of chopped onions, divided",
    "two eggs",
    "salt and pepper to taste, and a pinch of sugar",
    "three limes",
)
FLAT = 1e6  # an epsilon so large that AdamW takes plain gradient steps: g / (|g| + eps) = g / eps


class TrainingSubject:
    """An adapter under the laws: subclass, say in `client` how to make one, and set what differs
    below.
    """

    model = "tiny"  # a small model that the client can open
    unknown_model = "no such model"
    lora = Lora(rank=8, seed=1)
    context = 4096  # tokens; the most that the model reads at once
    rounding = 1e-4  # relative: the same sum, added up in another order
    agreement = 1e-4  # nats: training and sampling log-probabilities of the same tokens
    curvature = 0.05  # relative: how far a small step may be from its linear prediction
    # nats: what the rounding of one forward pass does to a log-probability; about 0.03 in bfloat16
    grain = 0.0
    fall = 0.02  # nats that a small step lowers the loss by; raise it where arithmetic is coarse

    def client(self, tmp_path: Path) -> TrainingClient:
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for:\n"
            "    def client(self, tmp_path: Path) -> TrainingClient:\n"
            "        return MyTraining(...)  # a client of its own for each test, keeping "
            "checkpoints under tmp_path"
        )

    def corrupt(self, client: TrainingClient, checkpoint: Checkpoint) -> None:
        """Spoil some byte of a checkpoint where it is kept; without this, the law of corrupt
        checkpoints is skipped.
        """
        pytest.skip(f"{type(self).__name__}.corrupt is not given")

    @pytest.fixture
    def training(self, tmp_path: Path) -> TrainingClient:
        return self.client(tmp_path)

    @pytest.fixture
    def catalog(self, training: TrainingClient) -> ModelCatalog:
        """The client as a ModelCatalog; the laws that ask for it are skipped where it is none."""
        if problem := why_missing(ModelCatalog, training):
            pytest.skip(problem)
        return cast(ModelCatalog, training)

    @pytest.fixture
    def store(self, training: TrainingClient) -> CheckpointStore:
        """The client as a CheckpointStore; the laws that ask for it are skipped where it is none."""
        if problem := why_missing(CheckpointStore, training):
            pytest.skip(problem)
        return cast(CheckpointStore, training)

    @pytest.fixture
    def opened(self, training: TrainingClient) -> Iterator[Open]:
        sessions: list[TrainingSession] = []

        def fresh() -> TrainingSession:
            sessions.append(training.open(self.model, self.lora))
            return sessions[-1]

        yield fresh
        for session in sessions:
            session.close()

    @pytest.fixture
    def session(self, opened: Open) -> TrainingSession:
        return opened()

    def data(self, session: TrainingSession, *, scale: float = 1.0) -> list[Datum]:
        """Four sequences of different lengths, weighted unevenly; the first tokens of each are
        idle, some repel.
        """
        made, rng = [], np.random.default_rng(5)
        for text in TEXTS:
            ids = session.tokenizer().encode(text)
            weights = scale * rng.uniform(0.2, 1.0, len(ids) - 1).astype(np.float32)
            weights[:2], weights[-1] = 0.0, -0.1 * scale
            made.append(Datum(ids[:-1], {"target_tokens": ids[1:], "weights": weights}))
        return made

    def score(self, session: TrainingSession) -> Array:
        """(T,) nats: where the weights stand, seen through the log-probabilities of all the data."""
        return np.concatenate(session.forward(self.data(session)).result().logprobs).astype(
            np.float64
        )

    def norm(
        self, session: TrainingSession, data: Sequence[Datum], loss: str | Loss = "cross_entropy"
    ) -> float:
        """Of the gradient, which is then used up; the weights stay."""
        session.forward_backward(data, loss).result()
        return session.optim_step(Adam(learning_rate=0.0)).result().metrics["grad_norm"]

    def small_step(self, opened: Open, *, halves: int = 0) -> Adam:
        """A plain gradient step along the data's cross-entropy that lowers it by `fall` nats,
        halved a few times.
        """
        session = opened()
        rate = self.fall / self.norm(session, self.data(session)) ** 2 / 2**halves
        return Adam(learning_rate=rate * FLAT, eps=FLAT)

    def moved(
        self,
        session: TrainingSession,
        adam: Adam,
        *batches: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
    ) -> Array:
        """(T,) nats: by how much one step along the sum of some batches changes each
        log-probability.
        """
        before = self.score(session)
        for batch in batches:
            session.forward_backward(batch, loss)
        session.optim_step(adam).result()
        return self.score(session) - before

    def assert_same_move(self, one: Array, other: Array, tolerance: float | None = None) -> None:
        """Two moves are one, as measured against the size of the move and the grain of the
        arithmetic.
        """
        size = float(np.abs(other).max())
        assert size > 2 * self.grain, (
            "next to nothing moved, so there is nothing to compare: raise `fall`"
        )
        np.testing.assert_allclose(
            one, other, rtol=0, atol=(tolerance or self.curvature) * size + self.grain
        )
