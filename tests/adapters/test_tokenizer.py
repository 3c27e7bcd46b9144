"""Tokenizers of folders: special tokens around texts, and chat templates that fail."""

import json

import pytest

from adapters.fake.hub import FakeHub
from adapters.tokenizer import fetch_tokenizer_alone, load_tokenizer
from kitchen.artifacts.open import prompt_tokens
from kitchen.errors import BackendError, ConfigError, DataError
from stages.chat.conversations import parse_conversation
from stages.chat.prompts import render_prompt
from stages.chat.render import render
from tests.support.tiny_model import TEMPLATE, tiny_model

pytest.importorskip("transformers")
QUESTION = [{"role": "user", "content": "to be or not?"}]
TALK = [*QUESTION, {"role": "assistant", "content": "that is\n the question"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(model, tmp_path):
    for path in model.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def test_a_tokenizer_is_fetched_without_the_weights(model):
    fetched = []

    class Hub(FakeHub):
        def file(self, name, path):
            fetched.append(path)
            return super().file(name, path)

    files = {path.name: path.read_bytes() for path in model.iterdir()}
    tokenizer = fetch_tokenizer_alone(Hub({"owner/large": files}), "owner/large")
    assert tokenizer.encode("to be").tolist() == load_tokenizer(model).encode("to be").tolist()
    assert tokenizer.model_vocabulary == load_tokenizer(model).model_vocabulary
    assert "tokenizer.json" in fetched
    assert "model.safetensors" in files
    assert "model.safetensors" not in fetched


def with_post_processor(folder, template):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    special = {
        name: {"id": name, "ids": [number], "tokens": [name]}
        for number, name in ((1, "<|im_start|>"), (2, "<|im_end|>"))
    }
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": template,
        "pair": template,
        "special_tokens": special,
    }
    path.write_text(json.dumps(content))
    return load_tokenizer(folder)


BOS, EOS = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("<|im_start|>", "<|im_end|>"))
TEXT = {"Sequence": {"id": "A", "type_id": 0}}


@pytest.mark.parametrize(
    "template, start", [([BOS, TEXT, EOS], [1]), ([TEXT, EOS], []), ([BOS, TEXT], [1])]
)
def test_no_end_of_sequence_stands_behind_a_text(folder, template, start):
    tokenizer = with_post_processor(folder, template)
    for text in ("to be", "", "a"):
        plain = tokenizer.encode(text).tolist()
        assert tokenizer.encode(text, special=True).tolist() == start + plain


@pytest.mark.parametrize(
    "template, text, expected",
    [
        ([BOS, TEXT], "<|im_start|>to be", "<|im_start|>to be"),
        ([BOS, TEXT, EOS], "<|im_start|>to be<|im_end|>", "<|im_start|>to be<|im_end|>"),
        ([BOS, TEXT, EOS], "<|im_start|>", "<|im_start|>"),
        ([BOS, EOS, TEXT], "<|im_start|>to be", "<|im_start|><|im_end|><|im_start|>to be"),
        ([BOS, TEXT], "to <|im_start|>be", "<|im_start|>to <|im_start|>be"),
        ([TEXT, EOS], "<|im_start|>to be", "<|im_start|>to be"),
    ],
)
def test_the_start_of_a_text_is_not_doubled(folder, template, text, expected):
    tokenizer = with_post_processor(folder, template)
    tokens = tokenizer.encode(text, special=True)
    assert tokenizer.decode(tokens, special=True) == expected
    # training, evaluation and `kitchen sample` without a template
    row = parse_conversation({"prompt": text, "completion": "or"}, "rows:1")
    [datum] = render(row, tokenizer, chat=False)
    assert datum.tokens.tolist()[: len(tokens)] == tokens.tolist()
    prompt = render_prompt([{"role": "user", "content": text}], tokenizer, chat=False)
    assert prompt.tolist() == tokens.tolist()
    sampled = prompt_tokens(text, tokenizer, "", raw="no template", chat_template_kwargs={})
    assert sampled.tolist() == tokens.tolist()


@pytest.mark.parametrize(
    "content, count", [("<|im_start|>to be", 1), ("to be", 1), ("to <|im_start|>be", 2)]
)
@pytest.mark.parametrize("start", ["{{ bos_token }}", "<|im_start|>"])
def test_a_template_and_a_message_write_one_start(folder, content, count, start):
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "bos_token": "<|im_start|>"}))
    tokenizer = with_post_processor(folder, [BOS, TEXT])
    tokenizer = tokenizer.with_template(
        start + "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    tokens = tokenizer.render([{"role": "user", "content": content}])
    assert tokens.tolist().count(1) == count
    row = parse_conversation({"prompt": content, "completion": "or"}, "rows:1")
    [datum] = render(row, tokenizer)
    assert datum.tokens.tolist()[: len(tokens)] == tokens.tolist()


@pytest.mark.parametrize("answer", [False, True])
def test_rendering_equals_that_of_transformers(folder, answer):
    from transformers import AutoTokenizer

    inner = AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    options = {"add_generation_prompt": answer}
    assert tokenizer.render(TALK, answer=answer).tolist() == inner.apply_chat_template(
        TALK, return_dict=False, **options
    )
    text = inner.apply_chat_template(TALK, tokenize=False, **options)
    assert tokenizer.render_text(TALK, answer=answer) == text


@pytest.mark.parametrize(
    "template, problem",
    [
        ("{{ messages[0].content + 1 }}", "in its line 1: TypeError: "),
        ("{{ 'a' }}\n{{ messages[5].content.strip() }}", "has no element 5"),
        ("\n{{ 1 // 0 }}", "in its line 2: ZeroDivisionError: "),
        ("{{ messages | round }}", "TypeError: "),
        ("{{ '%d' % messages[0].content }}", "TypeError: %d format"),
        ("{% for m in messages %}", "refuses the conversation: Unexpected end of template"),
        ("{{ raise_exception('no') }}", "the chat template refuses the conversation: no"),
    ],
)
def test_any_failure_of_a_template_is_a_data_error(folder, template, problem):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(DataError) as caught:
        load_tokenizer(folder).render(QUESTION)
    assert str(caught.value).startswith(f"{folder}: ")
    assert problem in str(caught.value)


def test_named_templates_without_a_default_are_refused(folder):
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = [{"name": "rag", "template": "a"}, {"name": "tool_use", "template": "b"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": names}))
    with pytest.raises(BackendError, match=r"several chat templates \(rag, tool_use\)") as caught:
        load_tokenizer(folder).render(QUESTION)
    assert str(caught.value).startswith(f"{folder}: ")


def test_a_template_of_the_user_replaces_the_folders(folder):
    (folder / "chat_template.jinja").unlink()
    base = load_tokenizer(folder)
    assert not base.chat
    own = base.with_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    assert (own.chat, own.tools, base.chat) == (True, False, False)
    assert own.render_text(TALK) == "to be or not?<|im_end|>that is\n the question<|im_end|>"
    assert own.stop_ids == base.stop_ids
    assert own.with_template("{{ tools }}").tools
    with pytest.raises(ConfigError, match="not a Jinja template: line 2: Encountered unknown tag"):
        base.with_template("a\n{% stop %}")
    with pytest.raises(DataError, match=r"^rendering\.template: .* ZeroDivisionError"):
        base.with_template("{{ 1 / 0 }}").render(QUESTION)


@pytest.mark.parametrize("wrong", [-1, 320, 2**31])
def test_ids_that_the_model_does_not_have_are_refused(folder, wrong):
    """As a server with another model than the tokenizer's samples them."""
    tokenizer = load_tokenizer(folder)
    assert tokenizer.model_vocabulary == 320
    assert tokenizer.decode([319])
    with pytest.raises(BackendError, match=f"no token id {wrong} "):
        tokenizer.decode([5, wrong, 7])
