"""Rendering: exact tokens, exact loss masks, and rows that are refused rather than guessed."""

import numpy as np
import pytest

from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import ConfigError, DataError
from stages.chat.conversations import Conversation, Message, TrainRows, parse_conversation
from stages.chat.masks import TRAIN_ON
from stages.chat.render import RenderCounts, RenderDataset, render
from tests.support.no_chat_template import PlainTokenizer
from tests.support.thoughts import ThoughtStrippingTokenizer
from tests.support.trained_spans import trained_spans

END, EOT, SYSTEM, USER, ASSISTANT, TOOL = 256, 257, 258, 259, 260, 261  # the fake's special tokens


class Newline(ByteTokenizer):
    """Adds a default system message, and a newline after each end of turn, as ChatML does."""

    def render(self, messages, *, answer=False, **options):
        if messages and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": "S"}, *messages]
        turns = [np.append(ByteTokenizer.render(self, [message]), 10) for message in messages]
        suffix = [np.array([ASSISTANT])] if answer else []
        return np.concatenate([np.empty(0, np.int64), *turns, *suffix])


class Closing(ByteTokenizer):
    """Appends the end of sequence if there is no generation prompt, as Phi-3's template does."""

    def render(self, messages, *, answer=False, **options):
        tokens = ByteTokenizer.render(self, messages, answer=answer)
        return tokens if answer else np.append(tokens, END)


class Prompting(ByteTokenizer):
    """Prompts with a token that is absent from the rendered answer."""

    def render(self, messages, *, answer=False, **options):
        tokens = ByteTokenizer.render(self, messages, answer=answer)
        return np.append(tokens, ord("!")) if answer else tokens


class Strict(ByteTokenizer):
    """Knows no conversation without a user, as many templates do."""

    def render(self, messages, *, answer=False, **options):
        if not any(message["role"] == "user" for message in messages):
            raise DataError("the template needs a user message")
        return ByteTokenizer.render(self, messages, answer=answer)


class Unending(ByteTokenizer):
    """Stops at a token that its template never writes."""

    stop_ids = (END,)


def talk(*messages, where="chats.jsonl:3"):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return Conversation(tuple(Message(names[role], text) for role, text in messages), where)


def shown(datum, tokenizer=ByteTokenizer()):  # noqa: B008 - it has no state
    """Return the text of a datum, with trained-on spans in brackets."""
    return "".join(f"[{text}]" if on else text for text, on in trained_spans(datum, tokenizer))


def only(data):
    [datum] = data
    return datum


LONG = talk(("s", "S"), ("u", "a"), ("a", "B"), ("u", "c"), ("a", "D"), ("t", "e"), ("a", "F"))


def test_prompt_and_completion_rendered_to_exact_tokens():
    row = parse_conversation({"prompt": "hi", "completion": "yo"}, "a:1")
    datum = only(render(row, ByteTokenizer()))
    assert datum.tokens.tolist() == [USER, 104, 105, EOT, ASSISTANT, 121, 111]
    assert datum.targets.tolist() == [104, 105, EOT, ASSISTANT, 121, 111, EOT]
    assert datum.loss_inputs["weights"].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert datum.tokens.dtype == datum.targets.dtype == np.int64
    assert datum.loss_inputs["weights"].dtype == np.float32


@pytest.mark.parametrize("tokenizer, chat", [(PlainTokenizer(), None), (ByteTokenizer(), False)])
@pytest.mark.parametrize("separator", [" ", "\n", ""])
def test_without_template_rows_are_joined_and_ended(tokenizer, chat, separator):
    row = parse_conversation({"input": "hi", "output": "yo"}, "a:1")
    datum = only(render(row, tokenizer, chat=chat, separator=separator))
    ids = [*separator.encode(), 121, 111, END]
    assert datum.tokens.tolist() == [END, 104, 105, *ids[:-1]]
    assert datum.targets.tolist() == [104, 105, *ids]
    assert datum.loss_inputs["weights"].tolist() == [0, 0] + [1] * len(ids)


@pytest.mark.parametrize(
    "train_on, text",
    [
        (
            "last_assistant_message",
            "<258>S<257><259>a<257><260>B<257><259>c<257><260>D<257><261>e<257><260>[F<257>]",
        ),
        (
            "last_assistant_turn",
            "<258>S<257><259>a<257><260>B<257><259>c<257><260>[D<257>]<261>e<257><260>[F<257>]",
        ),
        (
            "all_assistant_messages",
            "<258>S<257><259>a<257><260>[B<257>]<259>c<257><260>[D<257>]<261>e<257><260>[F<257>]",
        ),
        (
            "all_user_and_system_messages",
            "<258>[S<257><259>a<257>]<260>B<257>[<259>c<257>]<260>D<257><261>e<257><260>F<257>",
        ),
        (
            "all_messages",
            "<258>[S<257><259>a<257>]<260>[B<257><259>c<257>]<260>[D<257><261>e<257>]<260>[F<257>]",
        ),
        (
            "all_tokens",
            "<258>[S<257><259>a<257><260>B<257><259>c<257><260>D<257><261>e<257><260>F<257>]",
        ),
    ],
)
def test_every_train_on_choice(train_on, text):
    assert shown(only(render(LONG, ByteTokenizer(), train_on=train_on))) == text


def test_system_message_starts_a_turn():
    messages = talk(("u", "a"), ("a", "B"), ("s", "S"), ("a", "D"))
    text = "<259>a<257><260>B<257><258>S<257><260>[D<257>]"
    assert shown(only(render(messages, ByteTokenizer(), train_on="last_assistant_turn"))) == text


def test_trainable_is_per_message():
    marks = (None, True, False, None, None, True, True)
    messages = tuple(
        Message(m.role, m.content, mark) for m, mark in zip(LONG.messages, marks, strict=True)
    )
    datum = only(render(Conversation(messages, "a:1"), ByteTokenizer(), train_on="trainable"))
    assert (
        shown(datum)
        == "<258>S<257>[<259>a<257>]<260>B<257><259>c<257><260>D<257>[<261>e<257>]<260>[F<257>]"
    )
    datum = only(render(Conversation(messages, "a:1"), ByteTokenizer()))
    assert (
        shown(datum)
        == "<258>S<257>[<259>a<257>]<260>B<257><259>c<257><260>[D<257><261>e<257>]<260>[F<257>]"
    )
    with pytest.raises(DataError, match=r"^a:1: train_on is 'all_tokens', but a message is marked"):
        render(Conversation(messages, "a:1"), ByteTokenizer(), train_on="all_tokens")


def test_text_after_the_end_of_turn_is_not_trained_on():
    messages = talk(("u", "a"), ("a", "B"), ("u", "c"), ("a", "D"))
    newline = Newline()
    assert shown(only(render(messages, newline))) == (
        "<258>S<257>\n<259>a<257>\n<260>[B<257>]\n<259>c<257>\n<260>[D<257>]\n"
    )
    # the default system message belongs to the first message, for no rendering has one without the
    # other
    assert shown(only(render(messages, newline, train_on="all_user_and_system_messages"))) == (
        "<258>[S<257>\n<259>a<257>\n]<260>B<257>\n[<259>c<257>\n]<260>D<257>\n"
    )


def test_tokens_equal_those_of_inference():
    for tokenizer in (ByteTokenizer(), Newline(), ThoughtStrippingTokenizer()):
        datum = only(render(LONG, tokenizer, train_on="last_assistant_message"))
        messages = [{"role": m.role, "content": m.content} for m in LONG.messages]
        prompt = tokenizer.render(messages[:-1], answer=True)
        trained = np.flatnonzero(datum.loss_inputs["weights"])
        assert datum.tokens[: trained[0] + 1].tolist() == prompt.tolist()
        assert datum.targets[trained].tolist() == [ord("F"), EOT]


THOUGHTS = talk(
    ("u", "a"),
    ("a", "x/think>B"),
    ("u", "c"),
    ("a", "y/think>D"),
    ("t", "e"),
    ("a", "z/think>F"),
    ("u", "g"),
)


def test_rewritten_history_gives_one_datum_per_turn():
    data, metrics = RenderDataset().run(TrainRows((THOUGHTS, LONG)), ThoughtStrippingTokenizer())
    assert [shown(datum) for datum in data.data[:2]] == [
        "<259>a<257><260>[x/think>B<257>]",
        "<259>a<257><260>B<257><259>c<257><260>[y/think>D<257>]<261>e<257><260>[z/think>F<257>]",
    ]
    assert len(data.data) == 3  # what has no thoughts is not rewritten
    assert metrics["data/split_rows"] == 1
    assert metrics["data/rows"] == 2
    last = only(render(THOUGHTS, ThoughtStrippingTokenizer(), train_on="last_assistant_message"))
    assert shown(last).endswith("<260>y/think>D<257><261>e<257><260>[z/think>F<257>]")


@pytest.mark.parametrize("train_on", ["all_messages", "all_user_and_system_messages"])
def test_rewritten_history_refuses_other_messages(train_on):
    with pytest.raises(
        DataError, match=r"chats.jsonl:3: the chat template rewrites earlier messages"
    ):
        render(THOUGHTS, ThoughtStrippingTokenizer(), train_on=train_on)
    assert shown(
        only(render(THOUGHTS, ThoughtStrippingTokenizer(), train_on="all_tokens"))
    ).startswith("<259>[a<257><260>B")


def test_first_stop_token_ends_an_answer():
    messages = talk(("u", "a"), ("a", "B"), ("u", "c"), ("a", "D"))
    datum = only(render(messages, Closing()))
    assert shown(datum) == "<259>a<257><260>[B<257>]<259>c<257><260>[D<257>]<256>"


def test_answers_without_stop_token_are_counted():
    data, metrics = RenderDataset().run(TrainRows((LONG,)), Unending())
    assert shown(only(data.data)) == shown(only(render(LONG, ByteTokenizer())))
    assert metrics["data/no_stop_token"] == 3
    _, _, counts = RenderDataset().preview(TrainRows((LONG,)), Unending())
    assert counts.rows[-1][-1].startswith("3 of 3 answers end with no stop token")
    assert RenderDataset().run(TrainRows((LONG,)), ByteTokenizer())[1]["data/no_stop_token"] == 0


def test_system_and_user_message_are_masked_together():
    assert shown(only(render(LONG, Strict(), train_on="all_user_and_system_messages"))).startswith(
        "<258>[S<257><259>a"
    )


class Parsing(ByteTokenizer):
    """Reads the name of its stop token in a text as that token."""

    def encode(self, text, *, special=False):
        parts = text.split("<end>")
        return np.concatenate([np.append(ByteTokenizer.encode(self, part), EOT) for part in parts])[
            :-1
        ]


@pytest.mark.parametrize(
    "messages, tokenizer, options, message",
    [
        (
            talk(("u", "a")),
            ByteTokenizer(),
            {},
            "train_on='all_assistant_messages'; the messages are from: user",
        ),
        (
            LONG,
            ByteTokenizer(),
            {"train_on": "trainable"},
            "no message to train on with train_on='trainable'",
        ),
        (
            talk(("a", "hello"), ("u", "a"), ("a", "B")),
            ByteTokenizer(),
            {},
            "the first message is the assistant's",
        ),
        (
            talk(("u", "a"), ("a", "B<end>C")),
            Parsing(),
            {},
            "the text of message 1 contains a stop token of the model",
        ),
        (
            talk(("u", "a"), ("a", "B")),
            Prompting(),
            {},
            "renders message 1 differently",
        ),
        (talk(("s", "a"), ("a", "B")), Strict(), {}, "the template needs a user message"),
        (
            LONG,
            ByteTokenizer(),
            {"chat": False},
            "only a row of one prompt and one answer can be joined without a chat template",
        ),
        (
            LONG,
            PlainTokenizer(),
            {},
            "only a row of one prompt and one answer can be joined without a chat template",
        ),
        (
            LONG,
            ByteTokenizer(),
            {"max_tokens": 20},
            "21 tokens are more than rendering.max_tokens=20; raise it, or set rendering.overlong",
        ),
    ],
)
def test_ambiguous_masks_are_refused_with_their_place(messages, tokenizer, options, message):
    with pytest.raises(DataError) as caught:
        render(messages, tokenizer, **options)
    assert str(caught.value).startswith("chats.jsonl:3: ")
    assert message in str(caught.value)


class Bare(PlainTokenizer):
    """Puts nothing before a text."""

    def encode(self, text, *, special=False):
        return ByteTokenizer.encode(self, text)


def test_unexpected_full_or_empty_mask_is_refused():
    empty_prompt = parse_conversation({"prompt": "", "completion": "yo"}, "a:1")
    with pytest.raises(DataError, match=r"a:1: train_on=.* selects all of the row's 4 tokens"):
        render(empty_prompt, Bare())
    assert (
        only(render(parse_conversation({"prompt": "x", "completion": "yo"}, "a:1"), Bare()))
        .loss_inputs["weights"]
        .all()
    )
    assert (
        only(render(empty_prompt, PlainTokenizer(), train_on="all_tokens"))
        .loss_inputs["weights"]
        .all()
    )
    with pytest.raises(DataError, match=r"a:1: train_on=.* selects none of the row's 5 tokens"):
        render(empty_prompt, PlainTokenizer(), train_on="all_user_and_system_messages")


def test_overlong_datums_are_cut_or_dropped_and_counted():
    long, short = talk(("u", "a"), ("a", "B" * 10)), talk(("u", "a"), ("a", "B"))
    late = talk(("u", "a" * 10), ("a", "B"))
    rows = TrainRows((long, short, late))
    cut, metrics = RenderDataset(max_tokens=8, overlong="truncate").run(rows, ByteTokenizer())
    assert [shown(datum) for datum in cut.data] == [
        "<259>a<257><260>[BBBB]",
        "<259>a<257><260>[B<257>]",
    ]
    assert cut.counts == RenderCounts(
        rows=3, datums=2, tokens=12, trained_tokens=6, truncated=1, dropped=1, lost_tokens=21
    )
    assert metrics == {
        "data/rows": 3,
        "data/datums": 2,
        "data/tokens": 12,
        "data/trained_tokens": 6,
        "data/truncated": 1,
        "data/dropped": 1,
        "data/split_rows": 0,
        "data/no_stop_token": 0,
        "data/empty_answers": 0,
        "data/lost_tokens": 21,
    }
    dropped, _ = RenderDataset(max_tokens=8, overlong="drop").run(rows, ByteTokenizer())
    assert dropped.counts == RenderCounts(
        rows=3, datums=1, tokens=5, trained_tokens=2, dropped=2, lost_tokens=28
    )
    exact, _ = RenderDataset(max_tokens=6).run(TrainRows((short,)), ByteTokenizer())
    assert exact.counts.truncated == 0
    dropping = RenderDataset(max_tokens=2, overlong="drop"), "rendering.overlong=truncate"
    truncating = RenderDataset(max_tokens=2, overlong="truncate"), "shorten the rows"
    for rendering, fix in (dropping, truncating):
        with pytest.raises(DataError, match=rf"no data is left: all 1 .* of 1 rows.*{fix}\)$"):
            rendering.run(TrainRows((long,)), ByteTokenizer())
    with pytest.raises(DataError, match="no data is left: all 0 datums of 0 rows"):
        RenderDataset().run(TrainRows(()), ByteTokenizer())


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: RenderDataset(train_on="last_asistant_message"),
            "did you mean 'last_assistant_message'",
        ),
        (lambda: RenderDataset(overlong="trunc"), "did you mean 'truncate'"),
        (lambda: RenderDataset(max_tokens=1), "max_tokens=1 must be at least 2"),
        (lambda: render(LONG, PlainTokenizer(), chat=True), "chat=true needs a chat template"),
    ],
)
def test_invalid_options_are_refused(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


def test_trained_spans_cover_every_token():
    messages = talk(("u", "né"), ("a", "日本 🍲"))
    pieces = trained_spans(only(render(messages, ByteTokenizer())), ByteTokenizer())
    assert pieces == [("<259>né<257><260>", False), ("日本 🍲<257>", True)]


@pytest.mark.parametrize("train_on", [choice for choice in TRAIN_ON if choice != "trainable"])
def test_any_train_on_keeps_the_template_tokens(train_on):
    messages = [{"role": m.role, "content": m.content} for m in LONG.messages]
    for tokenizer in (ByteTokenizer(), Newline(), ThoughtStrippingTokenizer(), Strict()):
        datum = only(render(LONG, tokenizer, train_on=train_on))
        assert (
            np.append(datum.tokens, datum.targets[-1]).tolist()
            == tokenizer.render(messages).tolist()
        )


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hm?", "completion": ""},
        {"prompt": "hm?", "completion": " \n"},
        {"instruction": "hm?", "output": ""},
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}]},
        {
            "prompt": [
                {"role": "user", "content": "hm?"},
                {"role": "assistant", "content": "Context."},
                {"role": "user", "content": "hm?"},
            ],
            "completion": "",
        },
    ],
)
def test_only_empty_answers_are_an_error(row):
    empty = [parse_conversation(row, f"rows:{at}") for at in range(3)]
    stage = RenderDataset()
    for check in (stage.run, stage.preview):
        with pytest.raises(DataError, match=r"^rows:0: .* all others are empty"):
            check(TrainRows(empty), ByteTokenizer())
    one = parse_conversation({"prompt": "?", "completion": "yes"}, "rows:3")
    rows = TrainRows([one, *empty])
    assert stage.run(rows, ByteTokenizer())[1]["data/empty_answers"] == 3
    assert ("the first empty answer", "rows:0") in stage.preview(rows, ByteTokenizer())[2].rows


def test_questions_may_be_learnt_without_answers():
    row = parse_conversation({"prompt": "hm?", "completion": ""}, "rows:0")
    stage = RenderDataset("all_user_and_system_messages")
    assert len(stage.run(TrainRows([row]), ByteTokenizer())[0].data) == 1


def test_answers_without_text_are_counted() -> None:
    rows = tuple(
        parse_conversation({"prompt": "hm?", "completion": text}, "a test")
        for text in ("", " ", "yes")
    )
    assert RenderDataset().run(TrainRows(rows), ByteTokenizer())[1]["data/empty_answers"] == 2
    *_, counts = RenderDataset().preview(TrainRows(rows), ByteTokenizer())
    assert dict(counts.rows)["note"].startswith("2 answers are empty (the first: ")


def test_other_right_answers_are_counted() -> None:
    rows = [
        parse_conversation({"prompt": "Who?", "completion": right}, "rows:0")
        for right in (["Ann", "Ann Lee", "A. Lee"], "Bo", ["Cy"])
    ]
    data, metrics = RenderDataset().run(TrainRows(rows), ByteTokenizer())
    assert (metrics["data/other_answers"], len(data.data)) == (2, 3)
    assert ("other answers", "2") in data.counts.table().rows
    _, metrics = RenderDataset().run(TrainRows(rows[1:]), ByteTokenizer())
    assert "data/other_answers" not in metrics
