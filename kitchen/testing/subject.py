"""The adapter under the laws of training, how exactly it computes, and helpers of the laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from kitchen.ports.training import (
    CheckpointStore,
    ModelCatalog,
    TrainingClient,
    TrainingSession,
    why_missing,
)
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora, Loss, Trainable

Open = Callable[[], TrainingSession]
T = TypeVar("T")
TEXTS = (
    "one cup of chopped onions, divided",
    "two eggs",
    "salt and pepper to taste, and a pinch of sugar",
    "three limes",
)
# an epsilon so large that AdamW takes plain gradient steps: g / (|g| + eps) = g / eps
PLAIN_EPS = 1e6


class TrainingSubject:
    """An adapter under test: subclass, define `client`, and set the attributes that differ.

    The laws of a class share one client, and each opens sessions of its own. For a client that
    cannot open some 200 sessions, override the fixture `training` with one of function scope.
    """

    model = "tiny"  # a small model that the client can open
    unknown_model = "no such model"
    lora: Trainable = Lora(rank=8, seed=1)  # the weights that sessions train
    context = 4096  # tokens; the most that the model reads at once
    rounding = 1e-4  # relative: the same sum, added up in another order
    agreement = 1e-4  # nats: training and sampling log-probabilities of the same tokens
    curvature = 0.05  # relative: how far a small step may be from its linear prediction
    # nats: the rounding error of a log-probability in one forward pass; about 0.03 in bfloat16
    logprob_noise = 0.0
    # nats by which a small step lowers the loss; raise it where arithmetic is imprecise
    loss_drop = 0.02
    # True: try every bad argument; False: one of each kind, for adapters that use kitchen.backend
    thorough = False

    def client(self, tmp_path: Path) -> TrainingClient:
        """Return the adapter under test, which keeps its checkpoints under `tmp_path`."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for:\n"
            "    def client(self, tmp_path: Path) -> TrainingClient:\n"
            "        return MyTraining(...)  # keeps checkpoints under tmp_path"
        )

    def corrupt(self, client: TrainingClient, checkpoint: Checkpoint) -> None:
        """Change a byte of a saved checkpoint; the law of corrupt checkpoints needs this."""
        pytest.skip(f"{type(self).__name__}.corrupt is not defined")

    @pytest.fixture(scope="class")
    @classmethod
    def training(cls, tmp_path_factory: pytest.TempPathFactory) -> TrainingClient:
        """The client that the laws of a class share; a pytest fixture."""
        return cls().client(tmp_path_factory.mktemp("laws"))

    @pytest.fixture
    def catalog(self, training: TrainingClient) -> ModelCatalog:
        """The client as a ModelCatalog; laws that need one are skipped if it is not one."""
        if problem := why_missing(ModelCatalog, training):
            pytest.skip(problem)
        return cast(ModelCatalog, training)

    @pytest.fixture
    def store(self, training: TrainingClient) -> CheckpointStore:
        """The client as a CheckpointStore; laws that need one are skipped if it is not one."""
        if problem := why_missing(CheckpointStore, training):
            pytest.skip(problem)
        return cast(CheckpointStore, training)

    @pytest.fixture
    def prefix(self) -> str:
        """A beginning of checkpoint names that no other law uses."""
        return f"law-{token_hex(4)}"

    @pytest.fixture
    def opened(self, training: TrainingClient) -> Iterator[Open]:
        """A function that opens sessions, which are closed when the law ends."""
        sessions: list[TrainingSession] = []

        def open_session() -> TrainingSession:
            sessions.append(training.open(self.model, self.lora))
            return sessions[-1]

        yield open_session
        for session in sessions:
            session.close()

    @pytest.fixture
    def session(self, opened: Open) -> TrainingSession:
        return opened()

    def cases(self, cases: Mapping[str, T], representative: Sequence[str]) -> Mapping[str, T]:
        """Return all cases of a matrix of bad arguments, or one of each kind."""
        return cases if self.thorough else {name: cases[name] for name in representative}

    def data(self, session: TrainingSession, *, scale: float = 1.0) -> list[Datum]:
        """Return four sequences of different lengths with uneven weights.

        The first two tokens of each have weight 0, the last a negative one.
        """
        rng = np.random.default_rng(5)
        datums = []
        for text in TEXTS:
            ids = session.tokenizer().encode(text)
            weights = scale * rng.uniform(0.2, 1.0, len(ids) - 1).astype(np.float32)
            weights[:2] = 0.0
            weights[-1] = -0.1 * scale
            datums.append(Datum(ids[:-1], {"target_tokens": ids[1:], "weights": weights}))
        return datums

    def score(self, session: TrainingSession) -> Array:
        """Return the (T,) log-probabilities of all the data, which show where the weights are."""
        logprobs = session.forward(self.data(session)).result().logprobs
        return np.concatenate(logprobs).astype(np.float64)

    def norm(
        self, session: TrainingSession, data: Sequence[Datum], loss: str | Loss = "cross_entropy"
    ) -> float:
        """Return the norm of the gradient, which a step of rate 0 clears."""
        session.forward_backward(data, loss).result()
        return session.optim_step(Adam(learning_rate=0.0)).result().metrics["grad_norm"]

    def small_step(self, opened: Open) -> Adam:
        """Return a plain gradient step that lowers the data's cross-entropy by `loss_drop`."""

        def rate() -> float:
            session = opened()
            return float(self.loss_drop / self.norm(session, self.data(session)) ** 2)

        return Adam(learning_rate=self.once_per_class("rate", rate) * PLAIN_EPS, eps=PLAIN_EPS)

    def once_per_class(self, name: str, compute: Callable[[], float]) -> float:
        """Return a number that is the same for every law of a class, computed by the first."""
        computed: dict[str, Any] = vars(type(self)).get("_computed", {})
        if name not in computed:
            computed = {**computed, name: compute()}
            setattr(type(self), "_computed", computed)  # noqa: B010 of this class, not of its base
        return float(computed[name])

    def moved(
        self,
        session: TrainingSession,
        adam: Adam,
        *batches: Sequence[Datum],
        loss: str | Loss = "cross_entropy",
    ) -> Array:
        """Return the (T,) changes of log-probabilities by one step along the sum of batches."""
        before = self.score(session)
        for batch in batches:
            session.forward_backward(batch, loss)
        session.optim_step(adam).result()
        return self.score(session) - before

    def assert_same_move(
        self, actual: Array, expected: Array, tolerance: float | None = None
    ) -> None:
        """Compare two moves, relative to the size of the move and the noise of the arithmetic."""
        size = float(np.abs(expected).max())
        assert size > 2 * self.logprob_noise, "the move is too small to compare: raise `loss_drop`"
        np.testing.assert_allclose(
            actual, expected, rtol=0, atol=(tolerance or self.curvature) * size + self.logprob_noise
        )
