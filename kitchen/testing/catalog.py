"""Laws of a model catalog: facts about models, without loading their weights."""

from __future__ import annotations

import pytest

from kitchen.errors import BackendError
from kitchen.ports.training import ModelCatalog, TrainingSession
from kitchen.testing.subject import TrainingSubject
from kitchen.types import Lora


class CatalogLaws(TrainingSubject):
    """A catalog reports of a model what a session shows; unknown models are refused."""

    def test_the_tokenizer_is_that_of_a_session(
        self, catalog: ModelCatalog, session: TrainingSession
    ) -> None:
        catalog.find(self.model)
        alone, of_session = catalog.tokenizer(self.model), session.tokenizer()
        assert alone.encode("two eggs").tolist() == of_session.encode("two eggs").tolist()
        assert alone.stop_ids == of_session.stop_ids
        assert alone.chat == of_session.chat
        assert alone.vocabulary == of_session.vocabulary

    def test_the_hidden_size_is_positive_where_it_is_known(self, catalog: ModelCatalog) -> None:
        size = catalog.hidden_size(self.model)
        assert size is None or size > 0

    def test_a_whole_model_has_no_lora_weights(self, catalog: ModelCatalog) -> None:
        assert catalog.lora(self.model) is None

    def test_the_digest_of_a_model_repeats(self, catalog: ModelCatalog) -> None:
        assert catalog.sha256(self.model) == catalog.sha256(self.model) != ""

    def test_an_unknown_model_is_refused_without_loading(self, catalog: ModelCatalog) -> None:
        for lookup in (
            catalog.find,
            catalog.tokenizer,
            catalog.hidden_size,
            catalog.lora,
            lambda model: catalog.notes(model, Lora()),
            catalog.sha256,
        ):
            with pytest.raises(BackendError, match=self.unknown_model):
                lookup(self.unknown_model)
