"""Random conversations in the formats of seven model families: exact tokens, exact masks."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.chat.conversations import Conversation, Message
from stages.chat.prompts import prompt_tokens
from stages.chat.render import RenderDataset, render
from tests.support.tokenizers import trained_tokenizer

pytest.importorskip("transformers")
# template, end of an answer, whether there is a system message, kind of tokenizer
FAMILIES = {
    "llama2": (
        "{{ '<s>' }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}",
        "</s>",
        False,
        "metaspace",
    ),
    "llama3": (
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>"
        "\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "<|eot_id|>",
        True,
        "newlines",
    ),
    "qwen3": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and "
        "loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        True,
        "newlines",
    ),
    "gemma": (
        "<bos>{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else "
        "m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}"
        "<start_of_turn>model\n{% endif %}",
        "<end_of_turn>",
        False,
        "normaliser",
    ),
    "phi3": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|end|>",
        True,
        "metaspace",
    ),
    "mistral": (
        "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
        "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}",
        "</s>",
        False,
        "normaliser",
    ),
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
        True,
        "byte-level",
    ),
}
TEXT = st.text(st.sampled_from("abe ?.\n1<"), min_size=1, max_size=12).filter(str.strip)
TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)
SYSTEM = st.none() | TEXT


@cache
def tokenizer_of(family):
    template, end, _, kind = FAMILIES[family]
    return trained_tokenizer(kind, end=end, template=template)


def squeezed(text):
    return "".join(text.split())


def check_family(family, system, turns):
    tokenizer = tokenizer_of(family)
    messages = [("system", system)] if system is not None and FAMILIES[family][2] else []
    for question, answer in turns:
        messages += [("user", question), ("assistant", answer)]
    dicts = [{"role": role, "content": content} for role, content in messages]
    conversation = Conversation(tuple(Message(*message) for message in messages), "rows:1")
    data = render(conversation, tokenizer)
    trained = []
    for datum in data:
        tokens = [int(datum.tokens[0]), *datum.targets.tolist()]
        marks = [False, *(datum.loss_inputs["weights"] != 0).tolist()]
        starts = [at for at, on in enumerate(marks) if on and not marks[at - 1]]
        prompts = [
            tokenizer.render(dicts[:count], answer=True).tolist()
            for count in range(1, len(dicts))
            if dicts[count]["role"] == "assistant"
        ]
        for start in starts:
            assert tokens[:start] in prompts  # what inference reads
            end = next(at for at in range(start, len(tokens)) if tokens[at] == tokenizer.end_id)
            assert all(marks[start : end + 1])
            assert not any(marks[end + 1 : end + 2])
            trained.append(tokenizer.decode(tokens[start:end]))
        prefixes = [tokenizer.render_text(dicts[:count]) for count in range(2, len(dicts) + 1)]
        assert squeezed(tokenizer.decode(tokens, special=True)) in map(squeezed, prefixes)
    answers = [answer for _, answer in turns]
    expected = [squeezed(answer) for answer in answers]
    assert [squeezed(text).replace("<think></think>", "") for text in trained] == expected
    whole = tokenizer.render(dicts).tolist()
    if len(data) == 1 and tokenizer.render_text(dicts).startswith(
        tokenizer.render_text(dicts[:-1], answer=True)
    ):
        [datum] = data
        first = len(tokenizer.render(dicts[:-1], answer=True))
        if whole[:first] == [int(datum.tokens[0]), *datum.targets.tolist()][:first]:
            assert [int(datum.tokens[0]), *datum.targets.tolist()] == whole


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(system=SYSTEM, turns=TURNS)
def test_random_conversations_are_masked_exactly(family, system, turns):
    check_family(family, system, turns)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=500, deadline=None)
@given(system=SYSTEM, turns=TURNS)
def test_many_random_conversations_are_masked_exactly(family, system, turns):
    check_family(family, system, turns)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(question=TEXT, prefill=TEXT, answer=TEXT)
def test_random_prefills_are_continued(family, question, prefill, answer):
    tokenizer = tokenizer_of(family)
    messages = (
        Message("user", question),
        Message("assistant", prefill, prefix=True),
        Message("assistant", answer),
    )
    conversation = Conversation(messages, "rows:1")
    [datum] = render(conversation, tokenizer)
    tokens = [int(datum.tokens[0]), *datum.targets.tolist()]
    marks = [False, *(datum.loss_inputs["weights"] != 0).tolist()]
    start = marks.index(True)
    assert tokens[:start] == prompt_tokens(conversation, tokenizer, RenderDataset()).tolist()
    end = tokens.index(tokenizer.end_id, start)
    assert all(marks[start : end + 1])
    assert squeezed(tokenizer.decode(tokens[start:end])) == squeezed(answer)
    as_one = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": prefill + answer},
    ]
    whole = tokenizer.render_text(as_one)
    assert squeezed(tokenizer.decode(tokens, special=True)) == squeezed(whole)
