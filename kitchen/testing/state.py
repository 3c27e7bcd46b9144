"""Laws of state: what is saved comes back to the last bit, and names mean one thing."""

from __future__ import annotations

import numpy as np
import pytest

from kitchen.errors import CorruptCheckpoint, KitchenError
from kitchen.ports.training import CheckpointStore, TrainingClient, TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Adam, Array


class StateLaws(TrainingSubject):
    """Checkpoints keep weights and optimiser, or weights alone; snapshots stand still."""

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
        mine = session.snapshot().result().logprobs(tokens).result()[1:]
        np.testing.assert_allclose(mine, base, atol=self.agreement)

    def test_saved_and_opened_again_the_next_step_is_the_same_to_the_last_bit(
        self, opened: Open
    ) -> None:
        session, other = self.train(opened(), 2), self.train(opened(), 1)
        checkpoint = session.save("run/after-two").result()
        assert (checkpoint.step, checkpoint.kind) == (2, "training")
        expected = self.score(self.train(session, 2))
        for reader in (opened(), other, session):
            reader.load(checkpoint).result()
            np.testing.assert_array_equal(self.score(self.train(reader, 2)), expected)

    def test_loading_forgets_a_pending_gradient(self, opened: Open) -> None:
        session = self.train(opened())
        checkpoint = session.save("one").result()
        expected = self.score(self.train(session))
        session.forward_backward(self.data(session)[:1])
        session.load(checkpoint).result()
        np.testing.assert_array_equal(self.score(self.train(session)), expected)

    def test_loading_weights_gives_a_fresh_optimiser(self, opened: Open) -> None:
        source = self.train(opened(), 2)
        full, alone = source.save("full").result(), source.save_weights("alone").result()
        assert alone.kind == "weights"
        next_scores: list[Array] = []
        for checkpoint, reader in (
            (full, opened()),
            (alone, self.train(opened(), 3)),
            (alone, source),
        ):
            reader.load_weights(checkpoint).result()
            next_scores.append(self.score(self.train(reader)))
        np.testing.assert_array_equal(next_scores[1], next_scores[0])
        np.testing.assert_array_equal(next_scores[2], next_scores[0])
        kept = opened()
        kept.load(full).result()
        assert not np.array_equal(self.score(self.train(kept)), next_scores[0])

    def test_weights_alone_cannot_be_loaded_with_an_optimiser(self, opened: Open) -> None:
        checkpoint = self.train(opened()).save_weights("alone").result()
        with pytest.raises(KitchenError):
            opened().load(checkpoint).result()

    def test_a_name_used_twice_is_an_error(self, opened: Open) -> None:
        session = self.train(opened())
        session.save("full").result()
        session.save_weights("alone").result()
        with pytest.raises(KitchenError, match="full"):
            opened().save("full").result()
        with pytest.raises(KitchenError, match="alone"):
            opened().save_weights("alone").result()

    def test_weights_can_be_overwritten_when_told(
        self, training: TrainingClient, opened: Open
    ) -> None:
        session = opened()
        session.save_weights("best").result()
        checkpoint = self.train(session).save_weights("best", overwrite=True).result()
        tokens = self.data(session)[0].tokens
        expected = session.snapshot().result().logprobs(tokens).result()[1:]
        got = training.sampler(checkpoint).logprobs(tokens).result()[1:]
        np.testing.assert_allclose(got, expected, atol=self.agreement)

    def test_a_pending_gradient_cannot_be_saved(self, session: TrainingSession) -> None:
        session.forward_backward(self.data(session))
        future = session.save("half")
        with pytest.raises(KitchenError, match="gradient"):
            future.result()

    def test_a_sampler_of_a_checkpoint_is_a_snapshot_of_then(
        self, training: TrainingClient, opened: Open
    ) -> None:
        session = self.train(opened(), 2)
        tokens = self.data(session)[0].tokens
        snapshot, saved = (
            session.snapshot().result(),
            [session.save("a").result(), session.save_weights("b").result()],
        )
        expected = snapshot.logprobs(tokens).result()[1:]
        self.train(session, 2).snapshot().result()
        for checkpoint in saved:
            got = training.sampler(checkpoint).logprobs(tokens).result()[1:]
            np.testing.assert_allclose(got, expected, atol=self.agreement)

    def test_a_snapshot_does_not_move(self, opened: Open) -> None:
        session = opened()
        tokens, start = self.data(session)[0].tokens, session.save("start").result()
        self.train(session)
        frozen = session.snapshot().result()
        before = frozen.logprobs(tokens).result()
        self.train(session)
        np.testing.assert_array_equal(frozen.logprobs(tokens).result(), before)
        session.load(start).result()
        np.testing.assert_array_equal(frozen.logprobs(tokens).result(), before)
        moved = session.snapshot().result().logprobs(tokens).result()
        assert not np.array_equal(moved[1:], before[1:])

    def test_checkpoints_are_listed_and_deleted(self, store: CheckpointStore, opened: Open) -> None:
        session = self.train(opened())
        first, second = (
            session.save("run/first").result(),
            session.save_weights("run/second").result(),
        )
        assert {(c.path, c.kind, c.step) for c in store.checkpoints()} == {
            (first.path, "training", 1),
            (second.path, "weights", 1),
        }
        session.delete(first).result()
        session.delete(first).result()
        assert [c.path for c in store.checkpoints()] == [second.path]
        store.delete(second)
        store.delete(second)
        assert list(store.checkpoints()) == []
        for checkpoint in (first, second):
            with pytest.raises(KitchenError):
                opened().load_weights(checkpoint).result()
        session.save("run/first").result()

    def test_checkpoints_are_listed_by_the_beginning_of_their_path(
        self, store: CheckpointStore, session: TrainingSession
    ) -> None:
        kept = session.save_weights("one/a").result(), session.save_weights("two/a").result()
        assert [c.path for c in store.checkpoints(kept[0].path)] == [kept[0].path]

    def test_a_corrupt_checkpoint_is_found_out_and_named(
        self, training: TrainingClient, opened: Open
    ) -> None:
        session = self.train(opened())
        whole, spoilt = session.save("run/whole").result(), session.save("run/spoilt").result()
        self.corrupt(training, spoilt)
        reader = opened()
        with pytest.raises(CorruptCheckpoint, match="spoilt"):
            reader.load(spoilt).result()
        with pytest.raises(CorruptCheckpoint, match="spoilt"):
            opened().load_weights(spoilt).result()
        fresh = opened()
        fresh.load(whole).result()
        np.testing.assert_array_equal(self.score(fresh), self.score(session))

    def test_a_closed_session_takes_no_calls(self, opened: Open) -> None:
        session = opened()
        data = self.data(session)
        session.close()
        future = session.forward(data)
        with pytest.raises(KitchenError):
            future.result()
