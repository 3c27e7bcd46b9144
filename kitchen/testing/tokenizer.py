"""Laws of the tokenizer that comes with a session."""

from __future__ import annotations

import numpy as np
import pytest

from kitchen.errors import ConfigError, DataError
from kitchen.ports.training import TrainingSession
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
    """Ids decode to their text; a conversation begins with the prompt of each assistant turn."""

    def test_decode_reverses_encode(self, session: TrainingSession) -> None:
        tokenizer = session.tokenizer()
        for text in ("two eggs, beaten", "1½ cups crème fraîche\nto taste", '{"unit": null}'):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert tokenizer.decode(tokenizer.encode(text, special=True)) == text
            assert ids.ndim == 1
            assert 0 <= ids.min() <= ids.max() < tokenizer.vocabulary

    def test_limits_of_the_model_cover_the_tokens_of_a_text(self, session: TrainingSession) -> None:
        tokenizer = session.tokenizer()
        ids = tokenizer.encode("two eggs, beaten")
        known, context = tokenizer.model_vocabulary, tokenizer.context_length
        assert known is None or int(ids.max()) < known
        assert context is None or len(ids) < context

    def test_tools_are_rendered_where_the_template_has_a_place(
        self, session: TrainingSession
    ) -> None:
        tokenizer = session.tokenizer()
        if not tokenizer.tools:
            with pytest.raises(DataError, match="tools"):
                tokenizer.render(CHAT[:1], tools=[TOOL])
            return
        rendered = tokenizer.decode(tokenizer.render(CHAT[:1], answer=True, tools=[TOOL]))
        assert "count_eggs" in rendered
        assert "count_eggs" not in tokenizer.decode(tokenizer.render(CHAT[:1], answer=True))

    def test_stop_ids_are_tokens_without_text(self, session: TrainingSession) -> None:
        tokenizer = session.tokenizer()
        assert tokenizer.stop_ids
        assert tokenizer.end_id in tokenizer.stop_ids
        for stop in tokenizer.stop_ids:
            assert 0 <= stop < tokenizer.vocabulary
            assert tokenizer.decode(np.array([stop])) == ""

    def test_a_conversation_begins_with_its_prompts(self, session: TrainingSession) -> None:
        tokenizer = session.tokenizer()
        if not tokenizer.chat:
            pytest.skip("the model has no chat template")
        for turn in (1, 3):
            prompt = tokenizer.render(CHAT[:turn], answer=True).tolist()
            whole = tokenizer.render(CHAT[: turn + 1]).tolist()
            assert whole[: len(prompt)] == prompt
            answer = whole[len(prompt) :]
            assert tokenizer.decode(np.array(answer)).strip() == CHAT[turn]["content"]
            assert set(answer) & set(tokenizer.stop_ids)

    def test_a_variable_that_the_template_does_not_read_is_refused(
        self, session: TrainingSession
    ) -> None:
        tokenizer = session.tokenizer()
        if not tokenizer.chat:
            pytest.skip("the model has no chat template")
        with pytest.raises(DataError, match="number_of_eggs"):
            tokenizer.render(CHAT[:1], chat_template_kwargs={"number_of_eggs": 2})

    def test_the_text_of_a_conversation_begins_with_its_prompts(
        self, session: TrainingSession
    ) -> None:
        tokenizer = session.tokenizer()
        if not tokenizer.chat:
            pytest.skip("the model has no chat template")
        whole = tokenizer.render_text(CHAT)
        assert whole.startswith(tokenizer.render_text(CHAT[:3], answer=True))
        assert all(message["content"] in whole for message in CHAT)

    def test_a_template_replaces_that_of_the_tokenizer(self, session: TrainingSession) -> None:
        template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        try:
            tokenizer = session.tokenizer().with_template(template)
        except ConfigError:
            pytest.skip("the tokenizer renders no Jinja templates")
        assert tokenizer.chat
        assert tokenizer.decode(tokenizer.render(CHAT[:1])) == "user: How many eggs?\n"
        with pytest.raises(ConfigError, match="line 2"):
            tokenizer.with_template("{% for m in messages %}\n{% endif %}")
