"""Prompts and answers joined without a template: tokens of one text, with no doubled space."""

import json

import pytest

from adapters.tokenizer import FolderTokenizer
from stages.chat.conversations import parse_conversation
from stages.chat.joining import encode_after, encode_continuation
from stages.chat.render import RenderDataset, render
from tests.support.tokenizers import KINDS, trained_tokenizer

pytest.importorskip("transformers")
SEPARATORS = (" ", "\n", "", "\n\n", " -> ", "\n### Answer:\n", "<|im_start|>")
PROMPTS = ("is basil a herb?", "", "two cups ", "is salt a herb?\n", "日本", "user:")
ANSWERS = ("yes, chef.", "\nyes", " no", "日本 🍲", "42", "")


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request):
    return trained_tokenizer(request.param)


def tokens_of(prompt, answer, tokenizer, separator):
    row = parse_conversation({"prompt": prompt, "completion": answer}, "rows:1")
    [datum] = render(row, tokenizer, separator=separator, chat=False)
    weights = [0, *datum.loss_inputs["weights"].astype(int).tolist()]
    return [*datum.tokens.tolist(), int(datum.targets[-1])], weights


@pytest.mark.parametrize("separator", SEPARATORS)
def test_joined_tokens_are_those_of_one_text(tokenizer, separator):
    for prompt in PROMPTS[:1] + PROMPTS[3:]:
        for answer in ANSWERS[:-1]:
            before = tokenizer.encode(prompt, special=True).tolist()
            text = prompt + separator + answer
            whole = [*tokenizer.encode(text, special=True).tolist(), tokenizer.end_id]
            tokens, weights = tokens_of(prompt, answer, tokenizer, separator)
            assert tokens[: len(before)] == before
            assert weights == [0] * len(before) + [1] * (len(tokens) - len(before))
            if whole[: len(before)] == before:
                assert tokens == whole
            else:  # a token would reach across the border
                assert tokenizer.decode(tokens) == tokenizer.decode(whole)


def test_the_space_before_every_text_is_not_doubled():
    for kind in ("metaspace", "normaliser"):
        tokenizer = trained_tokenizer(kind)

        def pieces(separator, tokenizer=tokenizer):
            tokens, weights = tokens_of("is basil a herb?", "yes", tokenizer, separator)
            answer = [token for token, on in zip(tokens, weights, strict=True) if on]
            return tokenizer._inner.convert_ids_to_tokens(answer[:-1])

        assert "".join(pieces(" ")) == "▁yes"
        assert "".join(pieces("")) == "yes"
        assert pieces("\n")[0] != "▁"
        assert "".join(pieces("\n"))[-3:] == "yes"


@pytest.mark.parametrize("text", [*ANSWERS[:-1], "\n</think>\n\nyes<|im_end|>", " \nno", "'s"])
def test_a_continuation_has_the_text_that_follows(tokenizer, text):
    before = tokenizer.encode("the cook")
    after = encode_continuation(text, tokenizer)
    joined = tokenizer.decode([*before, *after])
    expected = tokenizer.decode(tokenizer.encode("the cook" + text))
    assert joined == expected


def test_byte_level_continuations_are_encoded_alone():
    for kind in ("byte-level", "newlines"):
        tokenizer = trained_tokenizer(kind)
        for text in ("\n</think>\n\nyes<|im_end|>\n", "yes", " yes", "\n\n\nno", "42", "?!", "é"):
            alone = tokenizer.encode(text).tolist()
            assert encode_continuation(text, tokenizer).tolist() == alone


def test_no_end_of_sequence_stands_in_the_middle(tokenizer):
    content = json.loads(tokenizer._inner.backend_tokenizer.to_str())
    ends = [tokenizer._inner.convert_tokens_to_ids("<s>"), tokenizer.end_id]
    names = ("<s>", "<|im_end|>")
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in zip(names, ends, strict=True)
        },
    }
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    inner = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)), eos_token="<|im_end|>"
    )
    ending = FolderTokenizer(inner, tokenizer._folder, tokenizer._folder)
    for answer in ("yes, chef.", "yes<|im_end|>"):
        tokens, _ = tokens_of("is basil a herb?", answer, ending, " ")
        assert tokens[0] == ends[0]
        assert [at for at, token in enumerate(tokens) if token == ends[1]] == [len(tokens) - 1]


def test_sampled_answers_lose_the_separator(tokenizer):
    for separator in (" ", "\n"):
        stage = RenderDataset(chat=False, separator=separator)
        tokens, weights = tokens_of("is basil a herb?", "yes, chef.", tokenizer, separator)
        answer = [token for token, on in zip(tokens, weights, strict=True) if on]
        assert stage.answer_text(tokenizer.decode(answer), tokenizer) == "yes, chef."


def test_prompt_and_text_are_encoded_apart_at_a_merge(tokenizer):
    before, after = encode_after("two cups ", "of", tokenizer)
    assert before.tolist() == tokenizer.encode("two cups ", special=True).tolist()
    assert tokenizer.decode([*before, *after]) == tokenizer.decode(tokenizer.encode("two cups of"))
