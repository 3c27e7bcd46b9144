"""Tables of tokens in the previews of all recipes, and of texts that are hard to see."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from adapters.tokenizer import load_tokenizer
from kitchen import Kitchen, Recipe, Table
from kitchen.engine.preview import preview
from kitchen.errors import RunFailed
from recipes.chat_sl import ChatSl
from recipes.distillation import Distillation
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from stages.chat.conversations import Conversation, Message, parse_conversation
from stages.chat.render import RenderDataset, render
from stages.chat.template import DEFAULT_RENDERING
from stages.chat.token_table import SHOWN, MarkedTokens, pair_table, token_table
from stages.preference.comparisons import comparison, pair_of
from stages.rl.rollouts import first_prompt
from tests.support.tiny_model import tiny_model

ROWS = [{"prompt": f"q{at}", "completion": f"a{at}"} for at in range(8)]
CHATS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"},
        ]
    }
] * 4
PAIRS = [{"prompt": f"q{at}", "chosen": f"a{at}", "rejected": "no"} for at in range(8)]
LABELS = [{**row, "label": at % 2 == 0} for at, row in enumerate(ROWS)]
QUIZ = [{"question": "q", "choices": ["yes", "no"], "answer": 1}] * 4
DATA = FakeDatasets(
    {
        name: {"train": rows, "held": rows[:2]}
        for name, rows in {
            "rows": ROWS,
            "chats": CHATS,
            "pairs": PAIRS,
            "labels": LABELS,
            "quiz": QUIZ,
        }.items()
    }
)
TEXT: dict[str, Any] = {"metric": "text"}


def previewed(recipe: Recipe) -> dict[str, Table]:
    """Return the tables of a preview by title."""
    ports = Kitchen(FakeTraining(), DATA, None, FakeBlobs()).ports()
    return {table.title: table for table in preview(recipe.workflow(), ports)}


@pytest.mark.parametrize(
    ("recipe", "title", "rows"),
    [
        (
            SlBasic(model="m", dataset="rows"),
            "The first datum",
            [("context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"), ("trained", "3", "a0")],
        ),
        (
            ChatSl(model="m", mixture={"rows": 1, "chats": 2}),
            "The first datums",
            [
                ("rows", "context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"),
                ("", "trained", "3", "a0"),
                ("chats", "context", "7", "<|system|>s<|end_of_turn|><|user|>q<|end_of_turn|>"),
                ("", "trained", "2", "a"),
            ],
        ),
        (
            Dpo(model="m", dataset="pairs"),
            "The first pair",
            [
                ("both", "context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"),
                ("chosen", "trained", "3", "a0"),
                ("rejected", "trained", "3", "no"),
            ],
        ),
        (
            Dpo(model="m", dataset="rows"),
            "The first pair",
            [
                ("chosen", "context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"),
                ("", "trained", "3", "a0"),
                ("rejected", "", "", "(sampled from the model when the run starts)"),
            ],
        ),
        (
            Kto(model="m", dataset="labels"),
            "The first answer, labelled good",
            [("context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"), ("trained", "3", "a0")],
        ),
        (
            Kto(model="m", dataset="pairs"),
            "The first answer, labelled good",
            [("context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"), ("trained", "3", "a0")],
        ),
        (
            Rlhf(model="m", preferences="pairs", steps=2),
            "The judge's first pair",
            [
                ("both", "context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"),
                ("chosen", "trained", "3", "a0"),
                ("rejected", "trained", "3", "no"),
            ],
        ),
        (
            DistillationOffPolicy(model="m", dataset="rows", teacher="t", instruction="Be brief."),
            "The teacher's first prompt",
            [
                (
                    "context",
                    "16",
                    "<|system|>Be brief.<|end_of_turn|><|user|>q0<|end_of_turn|><|assistant|>",
                )
            ],
        ),
        (
            Evaluate(weights="m", dataset="rows", evaluation=TEXT),
            "The first question of held",
            [("context", "5", "<|user|>q0<|end_of_turn|><|assistant|>")],
        ),
        (
            SlBasic(model="m", dataset="rows", evaluation=TEXT),
            "The first question of held",
            [("context", "5", "<|user|>q0<|end_of_turn|><|assistant|>")],
        ),
        (
            Kto(model="m", dataset="labels"),
            "The first answer of held",
            [("context", "5", "<|user|>q0<|end_of_turn|><|assistant|>"), ("scored", "3", "a0")],
        ),
        (
            Evaluate(weights="m", dataset="quiz", evaluation={"metric": "choice"}),
            "The choices of the first question of held",
            [
                ("1", "context", "4", "<|user|>q<|end_of_turn|><|assistant|>"),
                ("", "scored", "4", "yes"),
                ("2", "context", "4", "<|user|>q<|end_of_turn|><|assistant|>"),
                ("", "scored", "3", "no"),
            ],
        ),
    ],
)
def test_a_preview_shows_the_first_tokens(
    recipe: Recipe, title: str, rows: list[tuple[str, ...]]
) -> None:
    shown = previewed(recipe)[title]
    unended = [(*row[:-1], row[-1].removesuffix("<|end_of_turn|>")) for row in shown.rows]
    assert len(unended) == len(rows)
    for found, wanted in zip(unended, rows, strict=True):
        assert found[:-1] == wanted[:-1]
        assert found[-1].startswith(wanted[-1])


@pytest.mark.parametrize(
    "recipe",
    [
        Rl(model="m", dataset="rows", steps=2, batch_size=2),
        Rlhf(model="m", preferences="pairs", steps=2, batch_size=2),
        Rlhf(model="m", dataset="rows", steps=2, batch_size=2),
        Distillation(model="m", dataset="rows", teacher="t", steps=2, batch_size=2),
    ],
)
def test_a_preview_shows_the_first_rollout_prompt(recipe: Recipe) -> None:
    [row] = previewed(recipe)["The first prompt"].rows
    assert row[:2] == ("context", "5")
    assert row[2] in [f"<|user|>q{at}<|end_of_turn|><|assistant|>" for at in range(8)]


def test_a_preview_shows_the_first_prompt_of_a_game() -> None:
    [row] = previewed(Rl(model="m", dataset="game:guess"))["The first prompt"].rows
    assert row[2].startswith("<|user|>")
    [row] = previewed(Rl(model="m", dataset="game:calculator"))["The first prompt"].rows
    assert '"name": "calculator"' in row[2], "tools are described in the system prompt"


class Broken:
    """A task whose environment cannot start."""

    tag = "broken"

    def env(self) -> Any:
        return self

    async def reset(self) -> Any:
        raise ZeroDivisionError("no eggs")

    async def step(self, answer: str) -> Any:
        raise AssertionError(answer)


def test_a_broken_environment_is_reported() -> None:
    with pytest.raises(RunFailed, match=r"environment of the first problem failed.*no eggs"):
        asyncio.run(first_prompt(Broken(), ByteTokenizer(), DEFAULT_RENDERING))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a↵\nb"),
        ("\n", "↵"),
        ("\n\na\n", "↵\n↵\na↵"),
        (" a ", "␣a␣"),
        ("  ", "␣␣"),
        ("é🍲", "é🍲"),
    ],
)
def test_white_space_is_visible(text: str, shown: str) -> None:
    ids = ByteTokenizer().encode(text)
    [row] = token_table("t", [MarkedTokens.of_prompt(ids)], ByteTokenizer()).rows
    assert row == ("context", str(len(ids)), shown)


def test_a_long_text_is_shown_at_both_ends() -> None:
    ids = ByteTokenizer().encode("a" * SHOWN + "b" * 1234 + "c" * SHOWN)
    [row] = token_table("t", [MarkedTokens.of_prompt(ids)], ByteTokenizer()).rows
    assert row[2] == "a" * SHOWN + "\n[... 1,234 characters ...]\n" + "c" * SHOWN


def test_a_split_character_does_not_hide_the_text() -> None:
    ids = ByteTokenizer().encode("né")
    trained = np.array([False, False, True])
    rows = token_table("t", [MarkedTokens(ids, trained)], ByteTokenizer()).rows
    assert [row[0] for row in rows] == ["context", "trained"]
    assert rows[0][2].startswith("n")


def test_a_pair_shows_its_common_prompt_once() -> None:
    call = {"role": "assistant", "content": "call"}
    result = {"role": "tool", "content": "4"}
    row = comparison(
        {
            "prompt": "2 + 2",
            "chosen": [call, result, {"role": "assistant", "content": "four"}],
            "rejected": [call, result, {"role": "assistant", "content": "five"}],
        },
        "here:1",
    )
    pair = pair_of(row.chosen, row.rejected, ByteTokenizer(), RenderDataset())
    assert pair is not None
    rows = pair_table("t", *pair, ByteTokenizer()).rows
    assert [row[:2] for row in rows] == [
        ("both", "context"),
        ("chosen", "trained"),
        ("rejected", "trained"),
    ]
    assert "call<|end_of_turn|><|tool|>4" in rows[0][3]


def test_special_tokens_of_a_model_are_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tokenizer = load_tokenizer(tiny_model(tmp_path))
    row = parse_conversation({"prompt": "to be?", "completion": "not to be"}, "here:1")
    [datum] = render(row, tokenizer)
    table = token_table("t", [MarkedTokens.of_datum(datum)], tokenizer)
    assert [(row[0], row[2]) for row in table.rows] == [
        ("context", "<|im_start|>user↵\nto be?<|im_end|>↵\n<|im_start|>assistant↵"),
        ("trained", "not to be<|im_end|>"),
        ("context", "↵"),
    ]


def test_marks_of_a_conversation_alternate() -> None:
    roles = ("user", "assistant", "user", "assistant")
    talk = Conversation(tuple(Message(role, role[0]) for role in roles), "here:1")
    [datum] = render(talk, ByteTokenizer())
    rows = token_table("t", [MarkedTokens.of_datum(datum)], ByteTokenizer()).rows
    assert [row[0] for row in rows] == ["context", "trained", "context", "trained"]
