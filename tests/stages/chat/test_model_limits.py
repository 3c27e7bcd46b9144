"""Tokens that the tokenizer has and the model lacks, and limits that are not known."""

import numpy as np
import pytest

from adapters.fake.tokenizer import VOCABULARY, ByteTokenizer
from kitchen.errors import DataError
from stages.chat.conversations import parse_conversation
from stages.chat.model_limits import has_room, longest_sequence
from stages.chat.prompts import prompts_with_room
from stages.chat.render import RenderDataset, render

HERB = VOCABULARY  # the token of "<herb>", which was added after training


class Added(ByteTokenizer):
    """Has a token more than the model."""

    vocabulary = VOCABULARY + 1

    def encode(self, text, *, special=False):
        parts = [super(Added, self).encode(part) for part in text.split("<herb>")]
        joined = parts[0]
        for part in parts[1:]:
            joined = np.concatenate([joined, [HERB], part])
        return joined

    def decode(self, tokens, *, special=False):
        texts = []
        for token in tokens:
            text = "<herb>" if token == HERB else super().decode([token], special=special)
            texts.append(text)
        return "".join(texts)


class Unlimited(ByteTokenizer):
    """Belongs to a model of which nothing is known."""

    model_vocabulary = None
    context_length = None


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a <herb>", "completion": "b"},
        {"prompt": "a", "completion": "a <herb>"},
        {
            "messages": [
                {"role": "user", "content": "<herb>"},
                {"role": "assistant", "content": "b"},
            ]
        },
    ],
)
def test_an_unknown_token_names_row_and_fix(row):
    with pytest.raises(DataError, match=r"a:1: .*token 262 \('<herb>'\).*below 262.*resize"):
        render(parse_conversation(row, "a:1"), Added())


@pytest.mark.parametrize("overlong", ["error", "drop", "truncate"])
def test_prompts_with_unknown_tokens_are_refused(overlong):
    row = parse_conversation({"prompt": "a <herb>", "completion": "b"}, "a:7")
    with pytest.raises(DataError, match=r"a:7: .*token 262"):
        prompts_with_room([row], Added(), RenderDataset(overlong=overlong), 1, "max_tokens")


def test_unknown_limits_refuse_nothing():
    long = parse_conversation({"prompt": "a", "completion": "b" * 9000}, "a:1")
    [datum] = render(long, Unlimited(), max_tokens=10_000)
    assert len(datum.tokens) > 9000
    assert longest_sequence(7, Unlimited()) == 7
    assert has_room(datum.tokens, 10**9, "max_tokens", Unlimited(), "a:1")
