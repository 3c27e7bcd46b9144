import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import ConfigError, DataError

TOKENIZER = TextTokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TOOL = {"type": "function", "function": {"name": "weigh", "parameters": {}}}


@given(TEXT)
def test_a_text_is_decoded_as_it_was(text):
    tokens = TOKENIZER.encode(text)
    assert TOKENIZER.decode(tokens) == text
    assert (tokens >= 0).all()
    assert (tokens < TOKENIZER.vocabulary).all()
    assert TOKENIZER.prompt_of(tokens).text == text


def test_tokens_are_about_as_many_as_words():
    text = "The quick brown fox jumps over the lazy dog, and it runs away. " * 20
    assert 14 * 20 <= len(TOKENIZER.encode(text)) <= 18 * 20


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXT)), st.booleans())
def test_a_conversation_is_restored(turns, tools):
    messages = [{"role": role, "content": content} for role, content in turns]
    schemas = [TOOL] if tools else []
    tokens = TOKENIZER.render(messages, answer=True, tools=schemas)
    prompt = TOKENIZER.prompt_of(tokens)
    assert prompt.messages == messages
    assert prompt.tools == schemas
    assert prompt.text == ""


def test_other_fields_of_a_message_are_restored():
    call = {"id": "1", "function": {"name": "weigh", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "how much?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2 g", "tool_call_id": "1"},
    ]
    assert TOKENIZER.prompt_of(TOKENIZER.render(messages, answer=True)).messages == messages


def test_an_answer_continues_its_prompt():
    question = [{"role": "user", "content": "two cups of"}]
    prompt = TOKENIZER.render(question, answer=True)
    started = np.concatenate([prompt, TOKENIZER.encode("flo")])
    assert TOKENIZER.prompt_of(started).text == "flo"
    whole = TOKENIZER.render([*question, {"role": "assistant", "content": "flour"}])
    answer = [*TOKENIZER.encode("flour"), TOKENIZER.end_id]
    assert whole.tolist() == [*prompt, *answer]


def test_a_template_has_no_effect_and_is_refused():
    with pytest.raises(ConfigError):
        TOKENIZER.with_template("{{ messages }}")
    with pytest.raises(DataError):
        TOKENIZER.render([{"role": "user", "content": ""}], chat_template_kwargs={"thinking": True})


def test_special_tokens_are_shown_by_name():
    shown = TOKENIZER.render_text([{"role": "user", "content": "hello"}], answer=True)
    assert shown == "<|role|>user<|content|>hello<|end|><|role|>assistant<|content|>"
