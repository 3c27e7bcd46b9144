"""Messages and parts of answers that a chat template leaves out."""

import pytest

from kitchen.errors import ConfigError, DataError
from stages.chat.conversations import TrainRows, parse_conversation
from stages.chat.left_out import missing_text
from stages.chat.prompts import prompt_tokens, render_prompt
from stages.chat.render import RenderDataset, render
from stages.chat.template import PromptRendering
from stages.preference.comparisons import pair_of
from tests.support.tokenizers import KINDS, trained_tokenizer

pytest.importorskip("transformers")
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}" + PROMPT
NO_THOUGHT = CHATML.replace("m.content", "m.content.split('</think>')[-1].strip()")
NO_SYSTEM = CHATML.replace("in messages", "in messages if m.role != 'system'")
NO_TOOL = CHATML.replace("in messages", "in messages if m.role != 'tool'")
SHORT = CHATML.replace("m.content", "m.content[:9]")
# as Qwen3.5's: the prompt opens the thought that the conversation closes
OPENED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and '</think>' "
    "not in m.content %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
# as the first of R1-Distill: the prompt opens a thought that the conversation does not have
UNOPENED = NO_THOUGHT.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
THOUGHT = "<think>\nit is a plant\n</think>\n\nyes, chef."


def row(*messages):
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    listed = [{"role": roles[role], "content": content} for role, content in messages]
    return parse_conversation({"messages": listed}, "chats.jsonl:7")


def tokens_and_answer(datum):
    tokens = [int(datum.tokens[0]), *datum.targets.tolist()]
    first = datum.loss_inputs["weights"].argmax() + 1
    weights = datum.loss_inputs["weights"]
    answer = [token for token, on in zip(datum.targets.tolist(), weights, strict=True) if on]
    return tokens[:first], answer


@pytest.mark.parametrize(
    "template, messages, problem",
    [
        (NO_THOUGHT, [("u", "a?"), ("a", THOUGHT)], "message 1 (assistant).*'it is a plant'"),
        (SHORT, [("u", "a?"), ("a", "yes, chef.\nof course")], "message 1 .*'yes, chef.*course'"),
        (NO_SYSTEM, [("s", "be"), ("u", "be it?"), ("a", "yes")], "message 0 (system): 'be'"),
        (NO_TOOL, [("u", "a?"), ("a", "b"), ("t", "c"), ("a", "d")], "message 2 (tool): 'c'"),
    ],
)
def test_what_a_template_leaves_out_is_named(template, messages, problem):
    tokenizer = trained_tokenizer("newlines", template=template)
    problem = problem.replace("(", r"\(").replace(")", r"\)")
    for train_on in ("all_assistant_messages", "all_tokens"):
        with pytest.raises(DataError, match=rf"^chats\.jsonl:7: .*(?s:{problem})"):
            render(row(*messages), tokenizer, train_on=train_on)


def test_prompts_lack_no_message():
    tokenizer = trained_tokenizer("newlines", template=NO_SYSTEM)
    conversation = row(("s", "be"), ("u", "a?"), ("a", "b"))
    with pytest.raises(DataError, match=r"chats\.jsonl:7: .* leaves out message 0 \(system\)"):
        prompt_tokens(conversation, tokenizer, RenderDataset())
    with pytest.raises(DataError, match="leaves out message 0"):
        render_prompt(
            [{"role": "system", "content": "be"}, {"role": "user", "content": "a"}], tokenizer
        )


def test_history_may_lose_its_thoughts():
    last = "messages | map(attribute='role') | list"
    template = (
        f"{{% set roles = {last} %}}{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n"
        "{% if 'user' in roles[loop.index:] %}{{ m.content.split('</think>')[-1] }}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}" + PROMPT
    )
    tokenizer = trained_tokenizer("newlines", template=template)
    data = render(row(("u", "a?"), ("a", THOUGHT), ("u", "b?"), ("a", "no")), tokenizer)
    answers = [tokenizer.decode(tokens_and_answer(datum)[1]) for datum in data]
    assert answers == [THOUGHT, "no"]


@pytest.mark.parametrize(
    "content, rendered, missing",
    [
        ("<think>a b</think>\n\nc", "<think>\na b\n</think>c", ""),
        ("<think>a b</think>c", "<thought>a b</thought> c", ""),
        ("  a b\n", "a b", ""),
        ("", "x", ""),
        ("new", "old", "new"),
        ("yes", "YES", "yes"),
        ("a < b", "a &lt; b", "a < b"),
        ("one\ntwo", "one two", "one\ntwo"),
        ("one\ntwo\nthree", "one three", "two"),
        ("a  b", "a b", "a  b"),
        ("yes</think>yes", "yes", "yes"),
    ],
)
def test_missing_text_is_exact(content, rendered, missing):
    assert missing_text(content, rendered) == missing


def test_missing_text_may_be_escaped_as_json():
    for rendered in ('say \\"hé\\"\\n', 'say \\"h\\u00e9\\"'):
        assert missing_text('say "hé"\n', rendered, as_json=True) == ""
        assert missing_text('say "hé"\n', rendered) == 'say "hé"'
    assert missing_text("a < b", "a &lt; b", as_json=True) == "a < b"


CHANGES = (
    "m.content | upper",
    "m.content | title",
    "m.content | e",
    "m.content | replace('\\n', ' ')",
    "m.content.split() | join(' ')",
    "m.content | replace('  ', '')",
    "m.content | tojson",
    "m.content | replace('b', '8')",
    "m.content[::-1]",
)
CODE = "if a < b:\n    return b  # 'both'"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["newlines", "metaspace"])
def test_a_changed_answer_is_refused(kind, change):
    template = CHATML.replace("m.content", f"({change}) if m.role == 'assistant' else m.content")
    tokenizer = trained_tokenizer(kind, template=template)
    talk = row(("u", "b?"), ("a", CODE), ("u", "c?"))
    for train_on in ("all_assistant_messages", "all_messages", "all_tokens"):
        with pytest.raises(DataError, match=r"^chats\.jsonl:7: .* changes a part of message 1"):
            render(talk, tokenizer, train_on=train_on)
    answer, other = row(("u", "b?"), ("a", CODE)), row(("u", "b?"), ("a", "no <b>\nat  all"))
    with pytest.raises(DataError, match="changes a part of message 1"):
        pair_of(answer, other, tokenizer, RenderDataset())
    with pytest.raises(DataError, match="changes a part of message 1"):
        pair_of(other, answer, tokenizer, RenderDataset())


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_question_is_what_the_model_reads(change):
    template = CHATML.replace("m.content", f"({change}) if m.role == 'user' else m.content")
    tokenizer = trained_tokenizer("newlines", template=template)
    [datum] = render(row(("u", CODE), ("a", CODE)), tokenizer)
    assert tokenizer.decode(tokens_and_answer(datum)[1]) == CODE


def test_a_changed_thought_or_call_is_refused():
    template = CHATML.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}<think>{{ m.reasoning_content | THOUGHT }}</think>{% endif %}"
        "{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.name | CALL }}"
        "{{ call.function.arguments | tojson }}{% endfor %}",
    )
    calls = [{"function": {"name": "look_up", "arguments": {"text": "a"}}}]
    answer = {"role": "assistant", "content": "", "reasoning_content": "so it is"}
    talk = parse_conversation(
        {"messages": [{"role": "user", "content": "a?"}, {**answer, "tool_calls": calls}]}, "r:1"
    )
    for thought, call, problem in (
        ("trim", "upper", "'look_up'"),
        ("upper", "trim", "'so it is'"),
        ("replace('is', 'was')", "trim", "'so it is'"),
    ):
        changed = template.replace("THOUGHT", thought).replace("CALL", call)
        with pytest.raises(DataError, match=f"changes a part of message 1 .*{problem}"):
            render(talk, trained_tokenizer("newlines", template=changed))
    kept = template.replace("THOUGHT", "trim").replace("CALL", "trim")
    assert render(talk, trained_tokenizer("newlines", template=kept))


@pytest.mark.parametrize(
    "answer, stripped",
    [
        ("    return b", 1),
        ("yes\n", 1),
        ("\tif a:\n\t\tb", 1),
        ("<think>\na\n</think>\n\n  return b", 1),
        ("<think>\na\n</think>\n\nyes", 0),
        ("a\n    b", 0),
        ("", 0),
        (" \n", 0),
    ],
)
def test_stripped_answers_are_counted(answer, stripped):
    trim = CHATML.replace(
        "m.content",
        "m.content.split('</think>')[0] ~ '</think>\n\n' ~ (m.content.split('</think>')[-1] | trim)"
        " if '</think>' in m.content else m.content | trim",
    )
    for template, count in ((trim, stripped), (CHATML, 0)):
        tokenizer = trained_tokenizer("newlines", template=template)
        rows = TrainRows((row(("u", "b?"), ("a", "yes")), row(("u", "b?"), ("a", answer))))
        for train_on in ("all_assistant_messages", "all_tokens"):
            stage = RenderDataset(train_on)
            _, metrics = stage.run(rows, tokenizer)
            assert metrics.get("data/stripped_answers", 0) == count
            table = stage.preview(rows, tokenizer)[-1]
            stripped_notes = [text for name, text in table.rows if "white space" in text]
            assert len(stripped_notes) == count
            assert all("1 answers (the first: chats.jsonl:7)" in note for note in stripped_notes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "template, answer",
    [
        (OPENED, "yes, chef."),
        (CHATML, "\nyes, chef."),
        (CHATML, "\n\n\nno"),
        (CHATML.replace("assistant\n{% endif", "assistant{% endif"), "42"),
    ],
)
def test_answers_follow_the_tokens_of_their_prompt(kind, template, answer):
    tokenizer = trained_tokenizer(kind, template=template)
    conversation = row(("u", "is basil a herb?"), ("a", answer))
    [datum] = render(conversation, tokenizer)
    before, trained = tokens_and_answer(datum)
    prompt = prompt_tokens(conversation, tokenizer, RenderDataset())
    assert before == prompt.tolist()
    question, whole = (
        tokenizer.render_text([{"role": "user", "content": "is basil a herb?"}], answer=True),
        tokenizer.render_text(
            [
                {"role": "user", "content": "is basil a herb?"},
                {"role": "assistant", "content": answer},
            ]
        ),
    )
    if kind in ("byte-level", "newlines"):
        rest = tokenizer.encode(whole[len(question) :]).tolist()
        assert trained == rest[: rest.index(tokenizer.end_id) + 1]
    assert trained[-1] == tokenizer.end_id
    chosen, rejected = row(("u", "x"), ("a", answer)), row(("u", "x"), ("a", answer + " no"))
    assert pair_of(chosen, rejected, tokenizer, RenderDataset()) is not None


def test_an_unknown_continuation_is_explained():
    tokenizer = trained_tokenizer("newlines", template=UNOPENED)
    with pytest.raises(DataError) as caught:
        render(row(("u", "a?"), ("a", "yes")), tokenizer)
    assert "the prompt has '<think>\\n' where the conversation has 'yes" in str(caught.value)


@pytest.mark.parametrize("gap", ["", "\n", " "])
def test_ends_between_messages_are_trained_on(gap):
    template = (
        "{% for m in messages %}{% if not loop.first %}" + gap + "<|im_end|>\n{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}" + gap + "<|im_end|>\n<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = trained_tokenizer("newlines", template=template)
    conversation = row(("u", "a?"), ("a", "yes"), ("u", "b?"), ("a", "no"))
    [datum] = render(conversation, tokenizer)
    ends = [
        bool(on)
        for token, on in zip(datum.targets, datum.loss_inputs["weights"], strict=True)
        if token == tokenizer.end_id
    ]
    assert ends == [False, True, False]
    [first] = render(row(("u", "a?"), ("a", "yes"), ("u", "b?"), ("a", "")), tokenizer)
    assert first.targets[-1] != tokenizer.end_id


@pytest.fixture
def template_file(tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(CHATML)
    return path


def test_a_template_of_the_user_makes_base_models_chat(template_file):
    base = trained_tokenizer("newlines")
    chat = trained_tokenizer("newlines", template=CHATML)
    conversation = row(("s", "be"), ("u", "a?"), ("a", "yes"), ("u", "b?"), ("a", "no"))
    with pytest.raises(DataError, match=r"rendering\.template=FILE"):
        render(conversation, base)
    own = RenderDataset(template=str(template_file))
    [datum], [same] = own.datums(conversation, base), render(conversation, chat)
    assert datum.targets.tolist() == same.targets.tolist()
    assert (
        prompt_tokens(conversation, base, own).tolist()
        == prompt_tokens(conversation, chat, RenderDataset()).tolist()
    )
    assert own.answer_text(" yes", base) == " yes"
    assert own.template == PromptRendering(template=str(template_file)).template


def test_the_text_of_a_template_becomes_the_setting(template_file):
    setting = RenderDataset(template=str(template_file))
    template_file.unlink()
    assert setting.template == CHATML
    assert RenderDataset(template=setting.template) == setting
    with pytest.raises(ConfigError, match=r"chat\.jinja: the file cannot be read \(No such file"):
        RenderDataset(template=str(template_file))
    template_file.write_bytes(b"\xff{{")
    with pytest.raises(ConfigError, match="not UTF-8"):
        PromptRendering(template=str(template_file))
    template_file.write_text("hello")
    with pytest.raises(ConfigError, match="no Jinja expression"):
        PromptRendering(template=str(template_file))
