"""Comparisons: their row formats, sampled rejected answers and rendered pairs."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, DataError
from kitchen.ports import Done, Tokenizer
from kitchen.types import Datum, Metrics, Sampled
from recipes._base import EpochRecipe
from recipes.dpo import Dpo
from recipes.kto import Kto
from stages.chat.conversations import Conversation, Message
from stages.chat.masks import TRAIN_ON, TrainOn
from stages.chat.messages import messages_from_dicts
from stages.chat.render import RenderDataset
from stages.evaluate.evaluation import EvalConfig
from stages.preference.comparisons import (
    TRAIN_ON_ANSWERS,
    Comparison,
    Comparisons,
    LoadComparisons,
    MistakesConfig,
    RenderPairs,
    SampledRejections,
    SampleRejectedAnswers,
    comparison,
    preview_pairs,
)
from tests.support.no_chat_template import PlainTokenizer
from tests.support.thoughts import ThoughtStrippingTokenizer
from tests.support.tool_template import TIMER, plain_tokenizer, tool_tokenizer


class StrippingTokenizer(ByteTokenizer):
    """A chat template that strips white space around messages, as that of Llama 3 does."""

    def render(self, messages: Any, **options: Any) -> Any:
        stripped = [{**message, "content": message["content"].strip()} for message in messages]
        return super().render(stripped, **options)


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "yes", "rejected": "no"},
        {
            "prompt": CHAT[:1],
            "chosen": CHAT[1:],
            "rejected": [{"role": "assistant", "content": "no"}],
        },
        {"chosen": CHAT, "rejected": [CHAT[0], {"role": "assistant", "content": "no"}]},
        {
            "prompt": "q",
            "chosen": CHAT,
            "rejected": [CHAT[0], {"role": "assistant", "content": "no"}],
        },
        {
            "prompt": " q\n",
            "chosen": CHAT,
            "rejected": [CHAT[0], {"role": "assistant", "content": "no"}],
            "label": True,
        },
    ],
)
def test_formats_of_comparisons(row: Any) -> None:
    found = comparison(row, "here:1")
    assert found.rejected is not None
    assert [m.content for m in found.chosen.messages] == ["q", "yes"]
    assert [m.content for m in found.rejected.messages] == ["q", "no"]
    assert found.chosen.where == found.rejected.where == "here:1"


def test_a_prompt_precedes_answers_of_several_messages() -> None:
    asked = [{"role": "system", "content": "Be kind."}, CHAT[0]]
    more = [{"role": "assistant", "content": "hm"}, {"role": "user", "content": "so?"}]
    row = {
        "prompt": asked,
        "chosen": [*more, CHAT[1]],
        "rejected": [*more, {"role": "assistant", "content": "no"}],
    }
    found = comparison(row, "here:1")
    assert [m.content for m in found.chosen.messages] == ["Be kind.", "q", "hm", "so?", "yes"]
    result = {"role": "tool", "content": "4"}
    short = {
        "prompt": "What is 4 + 4?",
        "chosen": [{"role": "assistant", "content": "4 + 4"}, result, CHAT[1]],
        "rejected": [{"role": "assistant", "content": "4 + 4"}, result, more[0]],
    }
    assert [m.content for m in comparison(short, "here:1").chosen.messages] == [
        "What is 4 + 4?",
        "4 + 4",
        "4",
        "yes",
    ]
    called = {
        "prompt": [*asked, more[0]],
        "chosen": [result, CHAT[1]],
        "rejected": [result, more[0]],
    }
    assert [m.content for m in comparison(called, "here:1").chosen.messages] == [
        "Be kind.",
        "q",
        "hm",
        "4",
        "yes",
    ]


@pytest.mark.parametrize(
    "prompt",
    [
        "q",
        "so?",
        " q\n",
        "",
        None,
        [],
        CHAT[:1],
        [{"role": "assistant", "content": "hello"}, CHAT[0]],
        "<system>Be "
        "kind.</s><assistant>hello</s><user>q</s><assistant>hm</s><user>so?</s><assistant>",
    ],
)
def test_a_prompt_within_a_conversation_is_not_repeated(prompt: Any) -> None:
    whole = [
        {"role": "system", "content": "Be kind."},
        {"role": "assistant", "content": "hello"},
        CHAT[0],
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": "so?"},
    ]
    row = {
        "prompt": prompt,
        "chosen": [*whole, CHAT[1]],
        "rejected": [*whole, {"role": "assistant", "content": "no"}],
    }
    found = comparison(row, "here:1")
    assert [m.content for m in found.chosen.messages] == [
        "Be kind.",
        "hello",
        "q",
        "hm",
        "so?",
        "yes",
    ]
    greeted = comparison(
        {"prompt": "q", "chosen": [*whole[1:3], CHAT[1]], "rejected": whole[1:4]}, "here:1"
    )
    assert [m.content for m in greeted.chosen.messages] == ["hello", "q", "yes"]


@pytest.mark.parametrize(
    "after", [[], [{"role": "user", "content": "thanks"}], [{"role": "tool", "content": "4"}]]
)
def test_a_sampled_rejection_directly_follows_the_prompt(
    after: list[dict[str, str]],
) -> None:
    row = comparison({"messages": [*CHAT, *after]}, "here:1")
    rejected = SampledRejections({"": {0: "no"}}).rejected("", 0, row)
    assert rejected is not None
    assert [(m.role, m.content) for m in rejected.messages] == [("user", "q"), ("assistant", "no")]


@pytest.mark.parametrize("recipe", [Dpo, Kto])
@pytest.mark.parametrize("train_on", TRAIN_ON)
def test_preferences_train_only_on_answers(recipe: type[EpochRecipe], train_on: TrainOn) -> None:
    configured = recipe(rendering=RenderDataset(train_on=train_on))
    if train_on in TRAIN_ON_ANSWERS:
        configured.workflow()
        return
    with pytest.raises(ConfigError, match=rf"rendering\.train_on={train_on}"):
        configured.workflow()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{**CHAT[0], "trainable": True}], "completion": "yes"},
        {
            "chosen": [{**CHAT[0], "trainable": True}, CHAT[1]],
            "rejected": [CHAT[0], {**CHAT[1], "content": "no"}],
        },
    ],
)
def test_only_answers_may_be_trainable(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"^here:1: message 0 is trainable, .* role 'user'"):
        comparison(row, "here:1")


@pytest.mark.parametrize(
    ("texts", "most", "words"),
    [
        (
            {},
            100,
            r"nothing to train on: 2 of 2 rows have no rejected answer .*mistakes\.tries",
        ),
        (
            {"": {0: "no"}, "held": {0: "no"}},
            3,
            r"1 of 2 rows have no .* and 1 of 2 rows are longer than rendering\.max_tokens=3",
        ),
        (
            {"": {0: "no", 1: "no"}, "held": {0: "no"}},
            3,
            r"train on: 2 of 2 rows are longer than rendering\.max_tokens=3",
        ),
        (
            {"": {0: "no"}},
            100,
            "nothing to evaluate on: held: 1 of 1 rows have no .*hold out more rows",
        ),
    ],
)
def test_errors_say_why_rows_are_left_out(
    texts: dict[str, dict[int, str]], most: int, words: str
) -> None:
    row = comparison({"prompt": "q", "completion": "yes"}, "here:1")
    stage = RenderPairs(RenderDataset(max_tokens=most, overlong="drop"))
    with pytest.raises(DataError, match=words):
        stage.run(
            Comparisons((row, row), {"held": (row,)}), SampledRejections(texts), ByteTokenizer()
        )


@pytest.mark.parametrize(
    "empty",
    [
        {"prompt": "q", "chosen": " ", "rejected": "no"},
        {"chosen": [CHAT[0], {"role": "assistant", "content": ""}], "rejected": CHAT},
        {"prompt": "q", "completion": ""},
    ],
)
def test_chosen_answers_that_are_all_empty_are_refused(empty: Any) -> None:
    stage = LoadComparisons("some")
    full = {"prompt": "q", "chosen": "yes", "rejected": "no"}
    with pytest.raises(DataError, match=r"^fake:some:train:0: the chosen answers of this row and"):
        stage.run(FakeDatasets({"some": {"train": [empty] * 2, "held": [full]}}))
    stage.run(FakeDatasets({"some": {"train": [empty, full], "held": [full]}}))


def test_rows_with_tools_in_the_system_message_are_counted() -> None:
    row = {"prompt": "q", "chosen": "yes", "rejected": "no", "tools": [TIMER]}
    rows = [comparison(row, "here:1"), comparison({**row, "tools": None}, "here:2")]
    stage = RenderPairs(RenderDataset("last_assistant_turn"))
    for tokenizer, count in ((plain_tokenizer(), 1), (tool_tokenizer(), None)):
        comparisons = Comparisons(rows, {"held": rows})
        _, metrics = stage.run(comparisons, SampledRejections({}), tokenizer)
        assert metrics.get("data/tools_in_system_message") == count
        *_, table = stage.preview(comparisons, tokenizer, MistakesConfig())
        assert dict(table.rows).get("tools in system message") == (count and str(count))


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def tool(content: str) -> dict[str, str]:
    return {"role": "tool", "content": content}


def trained_text(datum: Datum) -> str:
    """The text of the tokens that are trained on."""
    return ByteTokenizer().decode(datum.targets[datum.loss_inputs["weights"] != 0])


CALLED = [user("2 + 2?"), assistant("call(2 + 2)"), tool("4")]
SHOTS = [user("1 + 1?"), assistant("two"), user("2 + 2?")]
GREETED = [assistant("Hello!"), user("hi"), assistant("How can I help?"), user("2 + 2?")]


@pytest.mark.parametrize("train_on", [name for name in TRAIN_ON_ANSWERS if name != "trainable"])
@pytest.mark.parametrize("prompt", [CALLED, SHOTS, GREETED, [*SHOTS, *CALLED[1:]]])
@pytest.mark.parametrize("form", ["prompt", "whole", "both", "first"])
def test_answers_within_the_prompt_are_context(
    form: str, prompt: list[dict[str, str]], train_on: TrainOn
) -> None:
    answers: dict[str, Any] = {"chosen": [assistant("four")], "rejected": [assistant("five")]}
    if form != "prompt":
        answers = {name: [*prompt, *answer] for name, answer in answers.items()}
    prompts: dict[str, Any] = {
        "prompt": {"prompt": prompt},
        "whole": {},
        "both": {"prompt": prompt},
        "first": {"prompt": next(m["content"] for m in prompt if m["role"] == "user")},
    }
    row = comparison({**prompts[form], **answers}, "here:1")
    pairs, _ = RenderPairs(RenderDataset(train_on)).run(
        Comparisons((row,), {"held": (row,)}), SampledRejections({}), ByteTokenizer()
    )
    assert [trained_text(datum) for datum in pairs.train[0]] == ["four", "five"]
    assert row.chosen.prompt_length == len(prompt)


@pytest.mark.parametrize("rejected", [None, "three"])
def test_a_sampled_rejection_is_part_of_the_item(rejected: str | None) -> None:
    given = {"prompt": "q", "chosen": "four", "rejected": rejected}
    row = comparison(given if rejected else {"prompt": "q", "completion": "four"}, "here:1")

    def item(sampled: str) -> str:
        pairs, _ = RenderPairs(RenderDataset()).run(
            Comparisons((row,), {"held": (row,)}),
            SampledRejections({"": {0: "no"}, "held": {0: sampled}}),
            ByteTokenizer(),
        )
        [(_, recorded)] = pairs.items["held"]
        return recorded.item

    assert item("five") == item("five")
    assert item("five") != item("six")


@pytest.mark.parametrize("prompt", [CALLED, SHOTS, [*SHOTS, *CALLED[1:]]])
def test_context_of_sampled_rejections(prompt: list[dict[str, str]]) -> None:
    rows = (
        comparison({"messages": [*prompt, assistant("four")]}, "here:1"),
        comparison({"prompt": prompt, "completion": "four"}, "here:2"),
        comparison({"prompt": prompt[:1], "completion": [*prompt[1:], assistant("four")]}, "3"),
    )
    pairs, _ = RenderPairs(RenderDataset("all_assistant_messages")).run(
        Comparisons(rows, {"held": rows}),
        SampledRejections({"": dict.fromkeys(range(3), "five"), "held": {0: "five"}}),
        ByteTokenizer(),
    )
    assert [[trained_text(datum) for datum in pair] for pair in pairs.train] == [
        ["four", "five"]
    ] * 3


def test_answers_of_several_messages_are_trained_on() -> None:
    asked = [user("2 + 2?"), assistant("Let me see."), user("Well?")]
    chosen = [assistant("call(2 + 2)"), tool("4"), assistant("four")]
    rejected = [assistant("call(2 + 3)"), tool("5"), assistant("five")]
    rows = [
        {"prompt": asked, "chosen": chosen, "rejected": rejected},
        {"chosen": [*asked, *chosen], "rejected": [*asked, *rejected]},
        {"chosen": [*asked, *chosen], "rejected": [*asked, assistant("five")]},
    ]
    found = [comparison(row, "here:1") for row in rows]
    pairs, _ = RenderPairs(RenderDataset("last_assistant_turn")).run(
        Comparisons(found, {"held": found}), SampledRejections({}), ByteTokenizer()
    )
    assert [[trained_text(datum) for datum in pair] for pair in pairs.train] == [
        ["call(2 + 2)four", "call(2 + 3)five"],
        ["call(2 + 2)four", "call(2 + 3)five"],
        ["call(2 + 2)four", "five"],
    ]


def test_an_answer_may_begin_with_the_other_one() -> None:
    short = [assistant("call(2 + 2)")]
    row = comparison(
        {"prompt": "2 + 2?", "chosen": [*short, tool("4"), assistant("four")], "rejected": short},
        "here:1",
    )
    assert row.rejected is not None
    assert (row.chosen.prompt_length, row.rejected.prompt_length) == (1, 1)


def test_answers_may_not_differ_before_the_last_turn() -> None:
    turns = [user("hi"), assistant("Hello!"), user("2 + 2?"), assistant("four")]
    other = [user("hi"), assistant("Go away!"), user("2 + 2?"), assistant("four")]
    with pytest.raises(DataError, match=r"here:1: .* from message 1 on, .* from the user"):
        comparison({"chosen": turns, "rejected": other}, "here:1")


@pytest.mark.parametrize("field", ["chosen", "rejected"])
def test_marks_within_the_prompt_are_errors(field: str) -> None:
    row: dict[str, Any] = {
        "chosen": [*CALLED, assistant("four")],
        "rejected": [*CALLED, assistant("five")],
    }
    row[field] = [CALLED[0], {**CALLED[1], "trainable": True}, *row[field][2:]]
    with pytest.raises(
        DataError, match="here:1: message 1 is trainable, but belongs to the prompt"
    ):
        comparison(row, "here:1")


def test_marked_answers_of_pairs_are_trained_on() -> None:
    chosen = {**assistant("four"), "trainable": True}
    rejected = {**assistant("five"), "trainable": True}
    row = comparison({"chosen": [*CALLED, chosen], "rejected": [*CALLED, rejected]}, "here:1")
    pairs, _ = RenderPairs(RenderDataset("trainable")).run(
        Comparisons((row,), {"held": (row,)}), SampledRejections({}), ByteTokenizer()
    )
    assert [trained_text(datum) for datum in pairs.train[0]] == ["four", "five"]


THOUGHT = "Let me think about this. "


def cut_pairs(
    rows: list[dict[str, Any]], max_tokens: int, tokenizer: Tokenizer | None = None
) -> tuple[list[list[str]], Metrics]:
    """Return the trained texts of pairs cut to max_tokens, and the metrics."""
    found = [comparison(row, f"here:{at}") for at, row in enumerate(rows)]
    held_out = comparison({"prompt": "q", "chosen": "1", "rejected": "2"}, "held:1")
    pairs, metrics = RenderPairs(
        RenderDataset("last_assistant_turn", max_tokens, overlong="truncate")
    ).run(
        Comparisons(found, {"held": (held_out, *found)}),
        SampledRejections({}),
        tokenizer or ByteTokenizer(),
    )
    return [[trained_text(datum) for datum in pair] for pair in pairs.train], metrics


LATE: list[dict[str, Any]] = [
    {"prompt": "q", "chosen": THOUGHT + "Yes", "rejected": THOUGHT + "No"},
    {
        "chosen": [user("q"), assistant(THOUGHT + "Yes")],
        "rejected": [user("q"), assistant(THOUGHT + "No")],
    },
    {
        "prompt": [user("q")],
        "chosen": [assistant(THOUGHT + "call(4)"), tool("4"), assistant("Yes")],
        "rejected": [assistant(THOUGHT + "call(5)"), tool("5"), assistant("No")],
    },
]


@pytest.mark.parametrize("late", LATE)
def test_pairs_that_are_equal_once_cut_are_dropped(late: dict[str, Any]) -> None:
    early = {"prompt": "q", "chosen": "Yes. " + THOUGHT, "rejected": "No. " + THOUGHT}
    short = {"prompt": "q", "chosen": "Yes", "rejected": "No. " + THOUGHT}
    texts, metrics = cut_pairs([late, early, late, short], 12)
    assert texts == [["Yes. Let", "No. Let "], ["Yes", "No. Let "]]
    assert metrics["data/rows"] == 4
    assert metrics["data/pairs"] == 2
    assert metrics["data/equal_pairs"] == 2
    assert metrics["data/truncated"] == 3, "both answers of one pair, and one of the other"
    assert metrics["data/held_out_pairs"] == 3
    assert metrics["data/held_out_equal_pairs"] == 2


@pytest.mark.parametrize("late", LATE)
def test_only_pairs_that_are_equal_once_cut(late: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"nothing to train on: .* 2 of 2 rows .*max_tokens=12 "):
        cut_pairs([late, late], 12)
    with pytest.raises(DataError, match=r"nothing to train on: .* 1 of 1 rows .*max_tokens=12 "):
        preview_pairs(
            [comparison(late, "here:1")],
            ByteTokenizer(),
            RenderDataset("last_assistant_turn", 12, overlong="truncate"),
            MistakesConfig(),
        )


def test_answers_that_a_template_renders_equally_are_dropped() -> None:
    spaced = {"prompt": "q", "chosen": "Yes", "rejected": "Yes "}
    other = {"prompt": "q", "chosen": "Yes", "rejected": "No"}
    texts, metrics = cut_pairs([spaced, other], 99, StrippingTokenizer())
    assert texts == [["Yes", "No"]]
    assert (metrics["data/equal_pairs"], metrics["data/truncated"]) == (1, 0)


def test_a_sampled_rejection_that_is_equal_once_cut_is_dropped() -> None:
    row = comparison({"prompt": "q", "completion": THOUGHT + "Yes"}, "here:1")
    render = RenderDataset("last_assistant_turn", 12, overlong="truncate")
    sampled = SampledRejections({"": {0: THOUGHT + "No", 1: "No"}, "held": {0: "No"}})
    pairs, metrics = RenderPairs(render).run(
        Comparisons((row, row), {"held": (row,)}), sampled, ByteTokenizer()
    )
    assert len(pairs.train) == metrics["data/equal_pairs"] == 1


def test_a_row_may_have_no_rejected_answer() -> None:
    assert isinstance(comparison({"prompt": "q", "completion": "yes"}, "here:1"), Comparison)
    assert comparison({"prompt": "q", "completion": "yes"}, "here:1").rejected is None


class FixedAnswers(FakeTraining):
    """A client whose samplers answer each prompt with these texts."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.texts = texts

    def sampler(self, weights: Any) -> Any:
        return self

    def sample(self, prompt: Any, *, count: int, **how: Any) -> Any:
        answers = [ByteTokenizer().encode(text) for text in self.texts]
        return Done([Sampled(ids, np.zeros(len(ids), np.float32), "stop") for ids in answers])

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("metric", "wrong"), [("auto", "#### 4.0"), ("text", "#### 4.0"), ("math", "#### 5")]
)
def test_the_evaluation_metric_decides_which_answer_is_wrong(metric: Any, wrong: str) -> None:
    row = comparison({"prompt": "2 + 2", "completion": "It is #### 4"}, "here:1")
    stage = SampleRejectedAnswers("any", RenderDataset(), evaluation=EvalConfig(metric=metric))
    found, _ = asyncio.run(
        stage.run(FixedAnswers("#### 4.0", "#### 5"), ByteTokenizer(), Comparisons((row,), {}))
    )
    assert found.texts == {"": {0: wrong}}


class SeededAnswers(FixedAnswers):
    """A client whose samplers answer each prompt with the seed of the request."""

    def sample(self, prompt: Any, *, count: int, seed: int, **how: Any) -> Any:
        self.texts = (f"no {seed}",)
        return super().sample(prompt, count=count)


def test_held_out_rejections_are_the_same_for_every_seed() -> None:
    row = comparison({"prompt": "q", "completion": "yes"}, "here:1")
    rows = Comparisons((row,), {"held": (row,)})
    texts = []
    for seed in (0, 1, 7):
        stage = SampleRejectedAnswers("any", RenderDataset(), seed=seed)
        found, _ = asyncio.run(stage.run(SeededAnswers(), ByteTokenizer(), rows))
        texts.append(found.texts)
    assert len({each["held"][0] for each in texts}) == 1
    assert len({each[""][0] for each in texts}) == 3


def test_json_answers_are_compared_as_objects_by_default() -> None:
    row = comparison({"prompt": "q", "completion": '{"a": 1, "b": 2}'}, "here:1")
    stage = SampleRejectedAnswers("any", RenderDataset(), evaluation=EvalConfig(metric="loss"))
    found, _ = asyncio.run(
        stage.run(
            FixedAnswers('{"b": 2, "a": 1}', '{"a": 1}'), ByteTokenizer(), Comparisons((row,), {})
        )
    )
    assert found.texts == {"": {0: '{"a": 1}'}}


def test_a_reference_answer_that_cannot_be_parsed_is_named() -> None:
    row = comparison({"prompt": "2 + 2", "completion": "four, I think"}, "here:1")
    stage = SampleRejectedAnswers("any", RenderDataset(), evaluation=EvalConfig(metric="math"))
    with pytest.raises(DataError, match=r"here:1: evaluation\.metric=math: .*no number or formula"):
        asyncio.run(stage.run(FixedAnswers("5"), ByteTokenizer(), Comparisons((row,), {})))


def test_without_a_template_the_separator_is_not_doubled() -> None:
    row = comparison({"prompt": "q", "completion": "yes"}, "here:1")
    rows = Comparisons((row,), {"held": (row,)})
    found, _ = asyncio.run(
        SampleRejectedAnswers("any", RenderDataset()).run(
            FixedAnswers(" no"), PlainTokenizer(), rows
        )
    )
    assert found.texts == {"": {0: "no"}, "held": {0: "no"}}
    pairs, _ = RenderPairs(RenderDataset()).run(rows, found, PlainTokenizer())
    assert [PlainTokenizer().decode(datum.tokens[1:]) for datum in pairs.train[0]] == [
        "q yes",
        "q no",
    ]


def test_an_answer_of_several_sequences_is_an_error() -> None:
    turns = [
        CHAT[0],
        {"role": "assistant", "content": "hm/think>yes"},
        {"role": "user", "content": "sure?"},
    ]
    asked = messages_from_dicts(turns)
    row = Comparison(
        Conversation((*asked, Message("assistant", "yes")), "here:1"),
        Conversation((*asked, Message("assistant", "no")), "here:1"),
    )
    with pytest.raises(
        DataError, match=r"here:1: .* 2 sequences, .*rendering\.train_on=last_assistant_message"
    ):
        RenderPairs(RenderDataset()).run(
            Comparisons((row,), {}), SampledRejections({}), ThoughtStrippingTokenizer()
        )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "q", "chosen": "yes"}, "'rejected' is missing"),
        ({"prompt": "q", "chosen": "yes", "rejected": None}, "'rejected' is missing or null"),
        ({"chosen": "yes", "rejected": "no"}, "'prompt' is missing; add it, or drop the row$"),
        (
            {"question": "q", "chosen": "yes", "rejected": "no"},
            r"reading\.columns\.question=prompt$",
        ),
        (
            {"system": "s", "input": "q", "chosen": "yes", "rejected": "no"},
            r"reading\.columns\.input=prompt$",
        ),
        ({"prompt": 0, "chosen": "yes", "rejected": "no"}, "prompt is a number, not text"),
        (
            {"prompt": "other", "chosen": CHAT, "rejected": CHAT[:1]},
            "chosen starts with .*'prompt'",
        ),
        (
            {
                "prompt": [{"role": "system", "content": "s"}, CHAT[0]],
                "chosen": CHAT,
                "rejected": CHAT,
            },
            "chosen starts with .*'prompt'",
        ),
        (
            {"prompt": "q", "chosen": "yes", "rejected": "no", "label": False},
            "label is false",
        ),
        ({"prompt": "q", "chosen": "yes", "rejected": "yes"}, "chosen and rejected are equal"),
        (
            {"prompt": "q", "chosen": "yes", "rejected": 3},
            "pairs.jsonl:7: rejected is a number, not text; make it text",
        ),
        (
            {"prompt": "q", "chosen": "yes", "rejected": ["x"]},
            r"7: rejected\[0\] is text, not a message",
        ),
        (
            {"chosen": CHAT, "rejected": [{"role": "user", "content": "other"}, CHAT[1]]},
            "different prompts",
        ),
        ({"chosen": [*CHAT, CHAT[0]], "rejected": CHAT}, "chosen has the role 'user'"),
    ],
)
def test_rows_that_are_not_comparisons(row: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as found:
        comparison(row, "pairs.jsonl:7")
    assert str(found.value).startswith("pairs.jsonl:7")


def test_answers_that_the_template_strips_are_counted() -> None:
    row = {"prompt": "q", "chosen": "    yes\n", "rejected": " no"}
    rows = [comparison({**row, "rejected": "no"}, "here:1"), comparison(row, "here:2")]
    stage = RenderPairs(RenderDataset("last_assistant_turn"))
    plain = plain_tokenizer()
    template = str(plain._inner.chat_template)
    assert "m.content" in template
    trimming = plain.with_template(template.replace("m.content", "m.content | trim"))
    for tokenizer, count in ((trimming, 3), (plain, None)):
        comparisons = Comparisons(rows, {"held": rows})
        _, metrics = stage.run(comparisons, SampledRejections({}), tokenizer)
        assert metrics.get("data/stripped_answers") == count
        *_, table = stage.preview(comparisons, tokenizer, MistakesConfig())
        assert dict(table.rows).get("stripped answers") == (count and str(count))
