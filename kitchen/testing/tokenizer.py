"""Laws of the tokenizer that comes with a session."""

from __future__ import annotations

import numpy as np
import pytest

from kitchen.errors import BackendError, DataError
from kitchen.ports.training import ModelCatalog, TrainingSession
from kitchen.testing.subject import TrainingSubject

CHAT = (
    {"role": "user", "content": "How many eggs?"},
    {"role": "assistant", "content": "Two, beaten."},
    {"role": "user", "content": "And limes?"},
    {"role": "assistant", "content": "Three."},
)
TOOL = {
    "type": "function",
    "function": {
        "name": "count_eggs",
        "description": "Counts them.",
        "parameters": {"type": "object", "properties": {}},
    },
}


class TokenizerLaws(TrainingSubject):
    """Text comes back from its ids; a conversation begins with what the assistant saw when it
    spoke.
    """

    def test_text_comes_back(self, session: TrainingSession) -> None:
        tokenizer = session.tokenizer()
        for text in ("two eggs, beaten", "1½ cups crème fraîche\nto taste", '{"unit": null}'):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert tokenizer.decode(tokenizer.encode(text, special=True)) == text
            assert ids.ndim == 1
            assert 0 <= ids.min() <= ids.max() < tokenizer.vocabulary

    def test_tools_are_told_of_where_the_template_has_a_place_for_them(
        self, session: TrainingSession
    ) -> None:
        tokenizer = session.tokenizer()
        if not tokenizer.tools:
            with pytest.raises(DataError, match="tools"):
                tokenizer.render(CHAT[:1], tools=[TOOL])
            return
        told = tokenizer.decode(tokenizer.render(CHAT[:1], answer=True, tools=[TOOL]))
        assert "count_eggs" in told
        assert "count_eggs" not in tokenizer.decode(tokenizer.render(CHAT[:1], answer=True))

    def test_it_can_be_had_without_the_weights(
        self, catalog: ModelCatalog, session: TrainingSession
    ) -> None:
        catalog.find(self.model)
        alone, whole = catalog.tokenizer(self.model), session.tokenizer()
        assert alone.encode("two eggs").tolist() == whole.encode("two eggs").tolist()
        assert (alone.stop_ids, alone.chat, alone.vocabulary) == (
            whole.stop_ids,
            whole.chat,
            whole.vocabulary,
        )

    def test_how_wide_a_model_is_can_be_known_without_the_weights(
        self, catalog: ModelCatalog
    ) -> None:
        size = catalog.hidden_size(self.model)
        assert size is None or size > 0

    def test_which_weights_a_model_has_can_be_known_without_loading_them(
        self, catalog: ModelCatalog
    ) -> None:
        assert catalog.sha256(self.model) == catalog.sha256(self.model) != ""

    def test_an_unknown_model_is_refused_without_loading(self, catalog: ModelCatalog) -> None:
        for lookup in (catalog.find, catalog.tokenizer, catalog.hidden_size, catalog.sha256):
            with pytest.raises(BackendError, match=self.unknown_model):
                lookup(self.unknown_model)

    def test_stop_ids_are_tokens_without_text(self, session: TrainingSession) -> None:
        tokenizer = session.tokenizer()
        assert tokenizer.stop_ids
        assert tokenizer.end_id in tokenizer.stop_ids
        for stop in tokenizer.stop_ids:
            assert 0 <= stop < tokenizer.vocabulary
            assert tokenizer.decode(np.array([stop])) == ""

    def test_a_conversation_begins_with_what_the_assistant_saw(
        self, session: TrainingSession
    ) -> None:
        tokenizer = session.tokenizer()
        if not tokenizer.chat:
            pytest.skip("the model has no chat template")
        for turn in (1, 3):
            asked = tokenizer.render(CHAT[:turn], answer=True).tolist()
            answered = tokenizer.render(CHAT[: turn + 1]).tolist()
            assert answered[: len(asked)] == asked
            rest = tokenizer.decode(answered[len(asked) :])
            assert rest.strip() == CHAT[turn]["content"]
            assert set(answered[len(asked) :]) & set(tokenizer.stop_ids)
