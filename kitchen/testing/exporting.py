"""Laws of export: exported weights give the same numbers; a folder appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kitchen.errors import BackendError, ConfigError, KitchenError
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import CheckpointStore, ModelCatalog, TrainingClient, TrainingSession
from kitchen.testing.subject import TrainingSubject
from kitchen.types import Adam, Checkpoint


class ExportLaws(TrainingSubject):
    """An exported folder, opened as `path:FOLDER`, gives the log-probabilities of its weights."""

    @pytest.fixture
    def weights(
        self,
        training: TrainingClient,
        store: CheckpointStore,
        session: TrainingSession,
        prefix: str,
    ) -> Checkpoint:
        if "export" not in training.capabilities:
            pytest.skip(f"{type(training).__name__} exports nothing")
        for _ in range(2):
            session.forward_backward(self.data(session))
            session.optim_step(Adam(0.01))
        return session.save_weights(f"{prefix}/weights").result()

    def opened_again(self, training: TrainingClient, folder: Path) -> Sampler:
        """Return a sampler of an exported folder; override it if the client opens no folders."""
        return training.sampler(f"path:{folder}")

    @pytest.mark.parametrize("merged", [False, True])
    def test_exported_weights_give_the_same_logprobs(
        self,
        training: TrainingClient,
        store: CheckpointStore,
        session: TrainingSession,
        weights: Checkpoint,
        tmp_path: Path,
        merged: bool,
    ) -> None:
        tokens = self.data(session)[0].tokens
        if merged and "export merged" not in training.capabilities:
            with pytest.raises(BackendError, match="merge"):
                store.export(weights, tmp_path / "out", merged=True)
            return
        store.export(weights, tmp_path / "out", merged=merged)
        expected = training.sampler(weights).logprobs(tokens).result()[1:]
        actual = self.opened_again(training, tmp_path / "out").logprobs(tokens).result()[1:]
        assert np.abs(actual - expected).mean() < self.agreement
        base = training.sampler(self.model).logprobs(tokens).result()[1:]
        changed = np.abs(expected - base).max() > self.agreement
        assert changed, "the weights equal the base model: training changed nothing measurable"

    def test_a_checkpoint_with_its_optimiser_is_exported_too(
        self,
        training: TrainingClient,
        store: CheckpointStore,
        session: TrainingSession,
        weights: Checkpoint,
        prefix: str,
        tmp_path: Path,
    ) -> None:
        store.export(weights, tmp_path / "weights")
        store.export(session.save(f"{prefix}/full").result(), tmp_path / "full")
        assert _files(tmp_path / "weights") == _files(tmp_path / "full")

    def test_the_digest_of_a_folder_is_that_of_its_weights(
        self,
        catalog: ModelCatalog,
        training: TrainingClient,
        store: CheckpointStore,
        session: TrainingSession,
        weights: Checkpoint,
        prefix: str,
        tmp_path: Path,
    ) -> None:
        if catalog.sha256(self.model) is None:
            pytest.skip(f"{type(training).__name__} reports no digest of weights")
        session.forward_backward(self.data(session))
        session.optim_step(Adam(0.01))
        later = session.save_weights(f"{prefix}/later").result()
        exports = {"first": weights, "repeated": weights, "later": later}
        for name, checkpoint in exports.items():
            store.export(checkpoint, tmp_path / name)
        digests = {name: catalog.sha256(f"path:{tmp_path / name}") for name in exports}
        assert digests["first"] == digests["repeated"]
        assert len({digests["first"], digests["later"], catalog.sha256(self.model)}) == 3

    def test_a_folder_in_use_is_left_as_it_was(
        self, training: TrainingClient, store: CheckpointStore, weights: Checkpoint, tmp_path: Path
    ) -> None:
        for path in (tmp_path / "file", tmp_path / "full" / "mine.txt"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
        for name in ("file", "full"):
            with pytest.raises(ConfigError, match=name):
                store.export(weights, tmp_path / name)
        assert (tmp_path / "file").read_text() == "mine"
        assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
        assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]

    def test_an_empty_folder_is_filled_and_a_missing_one_made(
        self, training: TrainingClient, store: CheckpointStore, weights: Checkpoint, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        for folder in (tmp_path / "empty", tmp_path / "not" / "there"):
            store.export(weights, folder)
            assert any(folder.iterdir())

    def test_a_failed_export_leaves_nothing_behind(
        self, training: TrainingClient, store: CheckpointStore, weights: Checkpoint, tmp_path: Path
    ) -> None:
        store.delete(weights)
        with pytest.raises(KitchenError, match="weights"):
            store.export(weights, tmp_path / "place" / "out")
        with pytest.raises(BackendError):
            store.export(self.model, tmp_path / "place" / "out")
        assert not (tmp_path / "place").exists() or not any((tmp_path / "place").iterdir())


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
