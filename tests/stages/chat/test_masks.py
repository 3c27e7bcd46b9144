"""Loss masks with real chat templates and a byte-level BPE, token by token as at inference."""

from dataclasses import replace

import pytest

from adapters.tokenizer import load_tokenizer
from kitchen.errors import DataError
from stages.chat.conversations import (
    Conversation,
    Message,
    TrainRows,
    parse_conversation,
    with_system_prompt,
)
from stages.chat.masks import TRAIN_ON, mask_conversation, trained_messages
from stages.chat.render import RenderDataset, render
from stages.preference.comparisons import pair_of
from tests.support.tiny_model import tiny_model
from tests.support.trained_spans import trained_spans

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nbe "
    "helpful<|im_end|>\n"
    "{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# as Qwen3's: thoughts are kept only after the last question, and are empty where there are none
THINKING = (
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% "
    "endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "{% if '</think>' in m.content %}{{ m.content }}{% else %}{{ '<think>\n\n</think>\n\n' + "
    "m.content }}{% endif %}"
    "{% else %}{{ m.content.split('</think>')[-1].lstrip() }}{% endif %}<|im_end|>{{ '\n' }}{% "
    "endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MERGING = (
    "{% for m in messages %}<|im_start|>t{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>t{% endif %}"
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tiny_model(tmp_path_factory.mktemp("tiny"))

    def with_template(template):
        (folder / "chat_template.jinja").write_text(template)
        return load_tokenizer(folder)

    return with_template


def talk(*messages):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return Conversation(
        tuple(Message(names[role], text) for role, text in messages), "chats.jsonl:3"
    )


def shown(data, tokenizer):
    return [
        "".join(f"[{text}]" if on else text for text, on in trained_spans(datum, tokenizer))
        for datum in data
    ]


TALK = talk(
    ("u", "to be or not?"), ("a", "that is\nthe question 🍲"), ("u", "日本"), ("a", " two cups\n")
)


def test_chatml_trains_on_the_answer_and_end_of_turn(pretrained):
    tokenizer = pretrained(CHATML)
    assert shown(render(TALK, tokenizer), tokenizer) == [
        "<1>system\nbe helpful<2>\n<1>user\nto be or not?<2>\n<1>assistant\n[that is\nthe question "
        "🍲<2>]\n"
        "<1>user\n日本<2>\n<1>assistant\n[ two cups\n<2>]\n"
    ]
    assert shown(render(TALK, tokenizer, train_on="all_user_and_system_messages"), tokenizer) == [
        "<1>[system\nbe helpful<2>\n<1>user\nto be or not?<2>\n]<1>assistant\nthat is\nthe "
        "question 🍲<2>\n"
        "[<1>user\n日本<2>\n]<1>assistant\n two cups\n<2>\n"
    ]


@pytest.mark.parametrize(
    "train_on", ["last_assistant_message", "last_assistant_turn", "all_assistant_messages"]
)
@pytest.mark.parametrize("template", [CHATML, THINKING])
def test_trained_tokens_follow_the_inference_prompt(pretrained, template, train_on):
    """Each run of trained-on targets, put after the prompt that inference gives, is the datum up to
    there.
    """
    tokenizer = pretrained(template)
    messages = [{"role": m.role, "content": m.content} for m in TALK.messages]
    prompts = [tokenizer.render(messages[:count], answer=True).tolist() for count in (1, 3)]
    answered = 0
    for datum in render(TALK, tokenizer, train_on=train_on):
        tokens = [int(datum.tokens[0]), *datum.targets.tolist()]
        weights = [0, *datum.loss_inputs["weights"].tolist()]
        starts = [at for at, on in enumerate(weights) if on and not weights[at - 1]]
        answered += len(starts)
        for start in starts:
            assert tokens[:start] in prompts
            end = next(at for at in range(start, len(tokens)) if tokens[at] in tokenizer.stop_ids)
            assert all(weights[start : end + 1])
            assert end + 1 == len(weights) or not weights[end + 1]
    assert answered == (2 if train_on == "all_assistant_messages" else 1)


def test_dropped_old_thoughts_give_one_datum_per_turn(pretrained):
    tokenizer = pretrained(THINKING)
    messages = talk(
        ("u", "a"),
        ("a", "<think>\nx\n</think>\n\nB"),
        ("u", "c"),
        ("a", "D"),
        ("t", "e"),
        ("a", "F"),
    )
    assert shown(render(messages, tokenizer), tokenizer) == [
        "<1>user\na<2>\n<1>assistant\n[<think>\nx\n</think>\n\nB<2>]\n",
        "<1>user\na<2>\n<1>assistant\nB<2>\n<1>user\nc<2>\n<1>assistant\n[<think>\n\n</think>\n\nD<2>]\n"
        "<1>tool\ne<2>\n<1>assistant\n[<think>\n\n</think>\n\nF<2>]\n",
    ]
    whole = mask_conversation(
        messages, tokenizer, trained_messages(messages, "last_assistant_turn")
    )
    assert [(masked.split, int(masked.trained.sum()) > 0) for masked in whole] == [(False, True)]


def test_answers_that_merge_with_the_prompt_follow_it(pretrained):
    tokenizer = pretrained(MERGING)
    for text in (" cup", "wo cups"):  # "two" is one token
        assert shown(render(talk(("u", "a"), ("a", text)), tokenizer), tokenizer) == [
            f"<1>ta<2><1>t[{text}<2>]"
        ]
    datum = render(talk(("u", "a"), ("a", "wo cups")), tokenizer)[0]
    prompt = tokenizer.render([{"role": "user", "content": "a"}], answer=True)
    answer = tokenizer.encode("wo cups<|im_end|>")
    assert [*datum.tokens, datum.targets[-1]] == [*prompt, *answer]


def test_merging_answers_of_one_turn_are_rendered_apart(pretrained):
    tokenizer = pretrained(MERGING)
    messages = talk(("u", "a"), ("a", "wo cups"), ("t", "b"), ("a", "wo"), ("u", "c"), ("a", "D"))
    data, metrics = RenderDataset().run(TrainRows((messages,)), tokenizer)
    assert shown(data.data, tokenizer) == [
        "<1>ta<2><1>t[wo cups<2>]",
        "<1>ta<2><1>two cups<2><1>tb<2><1>t[wo<2>]",
        "<1>ta<2><1>two cups<2><1>tb<2><1>two<2><1>tc<2><1>t[D<2>]",
    ]
    assert metrics["data/split_rows"] == 1
    alone = RenderDataset().run(TrainRows((talk(("u", "a"), ("a", "wo")),)), tokenizer)[1]
    assert alone["data/split_rows"] == 0


def test_unmaskable_model_answers_are_dropped(pretrained):
    tokenizer = pretrained(MERGING)
    messages = [
        replace(talk(("u", "a"), ("a", text)), sampled=True)
        for text in (" cup", "wo cups", "<|im_end|> cup")
    ]
    assert [len(RenderDataset().datums(each, tokenizer)) for each in messages] == [1, 1, 0]
    data, metrics = RenderDataset().run(TrainRows(messages), tokenizer)
    assert (len(data.data), metrics["data/rows"], metrics["data/dropped"]) == (2, 3.0, 1.0)
    assert pair_of(messages[0], messages[2], tokenizer, RenderDataset()) is None
    earlier = talk(("u", "a"), ("a", "<|im_end|>b"), ("u", "b"), ("a", " cup"))
    with pytest.raises(DataError, match=r"chats\.jsonl:3: the text of message 1 contains a stop"):
        RenderDataset().datums(replace(earlier, sampled=True), tokenizer)  # nobody sampled that


def test_template_errors_name_the_row(pretrained):
    refusing = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('begin with a question') }}{% endif "
        "%}" + CHATML
    )
    with pytest.raises(DataError, match=r"^chats.jsonl:3: .*begin with a question"):
        render(talk(("s", "S"), ("u", "a"), ("a", "B")), pretrained(refusing))


@pytest.mark.parametrize(
    ("train_on", "wanted"),
    [
        ("all_assistant_messages", [4, 6]),
        ("last_assistant_turn", [4, 6]),
        ("last_assistant_message", [6]),
        ("all_user_and_system_messages", [0, 2]),
        ("all_messages", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
@pytest.mark.parametrize("fields", [("prompt", "completion"), ("input", "output")])
def test_assistant_messages_of_a_prompt_are_context(fields, train_on, wanted):
    texts = [
        {"role": role, "content": str(at)}
        for at, role in enumerate(
            ["user", "assistant", "user", "tool", "assistant", "tool", "assistant"]
        )
    ]
    prompt, answer = fields
    row = parse_conversation({prompt: texts[:4], answer: texts[4:]}, "a:1")
    picked = trained_messages(row, train_on)
    assert [at for at, is_selected in enumerate(picked) if is_selected] == wanted
    instructed = with_system_prompt(row, "Be brief.")
    picked = trained_messages(instructed, train_on)[1:]
    assert [at for at, is_selected in enumerate(picked) if is_selected] == wanted


def test_a_marked_message_of_a_prompt_is_trained_on():
    marked = [
        {"role": "user", "content": "0"},
        {"role": "assistant", "content": "1", "trainable": True},
        {"role": "user", "content": "2"},
    ]
    row = parse_conversation({"prompt": marked, "completion": "3"}, "a:1")
    assert trained_messages(row, "trainable") == (False, True, False, False)


@pytest.mark.parametrize("train_on", TRAIN_ON)
def test_train_on_selects_messages(train_on):
    messages = (
        Message("user", "a"),
        Message("assistant", "b"),
        Message("tool", "c"),
        Message("assistant", "d"),
    )
    if train_on == "trainable":
        messages = (
            messages[0],
            Message("assistant", "b", True),
            Message("tool", "c", False),
            messages[3],
        )
    wanted = {
        "last_assistant_message": "d",
        "last_assistant_turn": "bd",
        "all_assistant_messages": "bd",
        "all_messages": "abcd",
        "all_tokens": "abcd",
        "all_user_and_system_messages": "a",
        "trainable": "b",
    }[train_on]
    picked = trained_messages(Conversation(messages, "a:1"), train_on)
    assert "".join(m.content for m, yes in zip(messages, picked, strict=True) if yes) == wanted
