"""Laws of state: a saved session is restored to the last bit, and a name means one checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kitchen.errors import CorruptCheckpoint, KitchenError
from kitchen.ports.training import CheckpointStore, TrainingClient, TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Adam, Array


class StateLaws(TrainingSubject):
    """Checkpoints hold weights and optimiser, or weights alone; snapshots do not change."""

    adam = Adam(0.01)

    def train(self, session: TrainingSession, steps: int = 1) -> TrainingSession:
        for _ in range(steps):
            session.forward_backward(self.data(session))
            session.optim_step(self.adam)
        return session

    def test_an_untrained_session_is_the_base_model(
        self, training: TrainingClient, session: TrainingSession
    ) -> None:
        tokens = self.data(session)[0].tokens
        base = training.sampler(self.model).logprobs(tokens).result()[1:]
        untrained = session.snapshot().result().logprobs(tokens).result()[1:]
        np.testing.assert_allclose(untrained, base, atol=self.agreement)

    def test_a_restored_session_takes_the_same_next_step(self, opened: Open, prefix: str) -> None:
        session, other = self.train(opened(), 2), self.train(opened(), 1)
        checkpoint = session.save(f"{prefix}/run/after-two").result()
        assert (checkpoint.step, checkpoint.kind) == (2, "training")
        expected = self.score(self.train(session, 2))
        for reader in (opened(), other, session):
            reader.load(checkpoint).result()
            np.testing.assert_array_equal(self.score(self.train(reader, 2)), expected)

    def test_loading_drops_a_pending_gradient(self, opened: Open, prefix: str) -> None:
        session = self.train(opened())
        checkpoint = session.save(f"{prefix}/one").result()
        expected = self.score(self.train(session))
        session.forward_backward(self.data(session)[:1])
        session.load(checkpoint).result()
        np.testing.assert_array_equal(self.score(self.train(session)), expected)

    def test_loading_weights_gives_a_fresh_optimiser(self, opened: Open, prefix: str) -> None:
        source = self.train(opened(), 2)
        full = source.save(f"{prefix}/full").result()
        weights_only = source.save_weights(f"{prefix}/weights").result()
        assert weights_only.kind == "weights"
        next_scores: list[Array] = []
        for checkpoint, reader in (
            (full, opened()),
            (weights_only, self.train(opened(), 3)),
            (weights_only, source),
        ):
            reader.load_weights(checkpoint).result()
            next_scores.append(self.score(self.train(reader)))
        np.testing.assert_array_equal(next_scores[1], next_scores[0])
        np.testing.assert_array_equal(next_scores[2], next_scores[0])
        with_optimiser = opened()
        with_optimiser.load(full).result()
        assert not np.array_equal(self.score(self.train(with_optimiser)), next_scores[0])

    def test_weights_alone_cannot_be_loaded_with_an_optimiser(
        self, opened: Open, prefix: str
    ) -> None:
        checkpoint = self.train(opened()).save_weights(f"{prefix}/alone").result()
        with pytest.raises(KitchenError):
            opened().load(checkpoint).result()

    def test_a_name_used_twice_is_an_error(self, opened: Open, prefix: str) -> None:
        session = self.train(opened())
        session.save(f"{prefix}/full").result()
        session.save_weights(f"{prefix}/alone").result()
        with pytest.raises(KitchenError, match="full"):
            opened().save(f"{prefix}/full").result()
        with pytest.raises(KitchenError, match="alone"):
            opened().save_weights(f"{prefix}/alone").result()

    def test_weights_are_overwritten_on_request(
        self, training: TrainingClient, opened: Open, prefix: str
    ) -> None:
        session = opened()
        session.save_weights(f"{prefix}/best").result()
        checkpoint = self.train(session).save_weights(f"{prefix}/best", overwrite=True).result()
        tokens = self.data(session)[0].tokens
        expected = session.snapshot().result().logprobs(tokens).result()[1:]
        actual = training.sampler(checkpoint).logprobs(tokens).result()[1:]
        np.testing.assert_allclose(actual, expected, atol=self.agreement)

    def test_a_pending_gradient_cannot_be_saved(
        self, session: TrainingSession, prefix: str
    ) -> None:
        session.forward_backward(self.data(session))
        future = session.save(f"{prefix}/half")
        with pytest.raises(KitchenError, match="gradient"):
            future.result()

    def test_a_sampler_of_a_checkpoint_is_the_snapshot_of_its_step(
        self, training: TrainingClient, opened: Open, prefix: str
    ) -> None:
        session = self.train(opened(), 2)
        tokens = self.data(session)[0].tokens
        snapshot = session.snapshot().result()
        saved = [
            session.save(f"{prefix}/a").result(),
            session.save_weights(f"{prefix}/b").result(),
        ]
        expected = snapshot.logprobs(tokens).result()[1:]
        self.train(session, 2).snapshot().result()
        for checkpoint in saved:
            actual = training.sampler(checkpoint).logprobs(tokens).result()[1:]
            np.testing.assert_allclose(actual, expected, atol=self.agreement)

    def test_a_snapshot_does_not_move(self, opened: Open, prefix: str) -> None:
        session = opened()
        tokens, start = self.data(session)[0].tokens, session.save(f"{prefix}/start").result()
        self.train(session)
        frozen = session.snapshot().result()
        before = frozen.logprobs(tokens).result()
        self.train(session)
        np.testing.assert_array_equal(frozen.logprobs(tokens).result(), before)
        session.load(start).result()
        np.testing.assert_array_equal(frozen.logprobs(tokens).result(), before)
        moved = session.snapshot().result().logprobs(tokens).result()
        assert not np.array_equal(moved[1:], before[1:])

    def test_a_corrupt_checkpoint_is_refused_by_name(self, tmp_path: Path) -> None:
        """Uses a separate client, so that `corrupt` knows where it saves."""
        client = self.client(tmp_path)
        session = self.train(client.open(self.model, self.lora))
        intact = session.save("run/whole").result()
        corrupt_checkpoint = session.save("run/spoilt").result()
        self.corrupt(client, corrupt_checkpoint)
        readers = [client.open(self.model, self.lora) for _ in range(3)]
        with pytest.raises(CorruptCheckpoint, match="spoilt"):
            readers[0].load(corrupt_checkpoint).result()
        with pytest.raises(CorruptCheckpoint, match="spoilt"):
            readers[1].load_weights(corrupt_checkpoint).result()
        readers[2].load(intact).result()
        np.testing.assert_array_equal(self.score(readers[2]), self.score(session))
        for opened_session in (session, *readers):
            opened_session.close()

    def test_a_closed_session_takes_no_calls(self, opened: Open) -> None:
        session = opened()
        data = self.data(session)
        session.close()
        future = session.forward(data)
        with pytest.raises(KitchenError):
            future.result()


class CheckpointLaws(TrainingSubject):
    """Checkpoints are listed by the beginning of their path, and deleted."""

    def test_checkpoints_are_listed_and_deleted(
        self, store: CheckpointStore, opened: Open, prefix: str
    ) -> None:
        others = {checkpoint.path for checkpoint in store.checkpoints()}
        session = opened()
        first = session.save(f"{prefix}/first").result()
        second = session.save_weights(f"{prefix}/second").result()

        def listed() -> list[tuple[str, str]]:
            return [(c.path, c.kind) for c in store.checkpoints() if c.path not in others]

        assert sorted(listed()) == sorted([(first.path, "training"), (second.path, "weights")])
        session.delete(first).result()
        session.delete(first).result()
        assert listed() == [(second.path, "weights")]
        store.delete(second)
        store.delete(second)
        assert listed() == []
        for checkpoint in (first, second):
            with pytest.raises(KitchenError):
                opened().load_weights(checkpoint).result()
        session.save(f"{prefix}/first").result()

    def test_checkpoints_have_the_number_of_their_step(
        self, store: CheckpointStore, session: TrainingSession, prefix: str
    ) -> None:
        session.forward_backward(self.data(session))
        session.optim_step(Adam(0.01))
        saved = session.save(f"{prefix}/one").result()
        assert [c.step for c in store.checkpoints(saved.path) if c.path == saved.path] == [1]

    def test_checkpoints_are_listed_by_prefix(
        self, store: CheckpointStore, session: TrainingSession, prefix: str
    ) -> None:
        first = session.save_weights(f"{prefix}/one/a").result()
        session.save_weights(f"{prefix}/two/a").result()
        assert [c.path for c in store.checkpoints(first.path)] == [first.path]
