"""Answers extracted and folded before they are compared, and several right answers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen import Recipe
from kitchen.errors import ConfigError, DataError
from kitchen.types import Sampled
from recipes.chat_sl import ChatSl
from recipes.distillation import Distillation
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from stages.chat.conversations import parse_conversation
from stages.data.dataset import HeldOut
from stages.evaluate.evaluation import GREEDY, EvalConfig, metrics_by_set
from stages.evaluate.graded_answers import GradedAnswer, grade_samples
from stages.tasks.grading import GradingConfig
from stages.tasks.tasks import LoadTasks

LETTER = r"(?i:answer is|answer:)\s*\W*([A-D])\b"
FOLDED: dict[str, Any] = {"ignore_case": True, "ignore_punctuation": True}


def graded(metric: str, right: Any, text: str, **options: Any) -> GradedAnswer:
    row = parse_conversation({"prompt": "?", "completion": right}, "rows:0")
    sampled = Sampled(
        ByteTokenizer().encode(text), np.zeros(len(text.encode()), np.float32), "stop"
    )
    [answer] = asyncio.run(
        grade_samples(
            metric,
            [(row, sampled)],
            ByteTokenizer(),  # type: ignore[arg-type]
            grading=EvalConfig(metric=metric, **options),  # type: ignore[arg-type]
        )
    )
    return answer


@pytest.mark.parametrize(
    ("pattern", "text", "right"),
    [
        (LETTER, "Let me think. The answer is (B).", "B"),
        (LETTER, "ANSWER: **B**", "B"),
        (r"^\W*([A-D])\b", "B. 4", "B"),
        (r"[A-D]", "so it is C, not D", "C"),
        (r"(\d+) eggs|(\d+) apples", "there are 4 apples", "4"),
        (r"(?s)<final>(.*?)</final>", "so <final>\ntwo\n</final>", "two"),
        (r"[\u4e00-\u9fff]+", "答案是 北京 (Beijing)", "答案是"),
    ],
)
def test_answers_are_extracted(pattern: str, text: str, right: str) -> None:
    answer = graded("text", right, text, extract=pattern)
    assert (answer.exact, answer.parsed, answer.text) == (True, True, text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(LETTER, "B"), (LETTER, "The answer is A"), (r"(x)?", "B"), (r"####\s*(.+)", "B ###")],
)
def test_text_without_the_answer_is_wrong(pattern: str, text: str) -> None:
    assert not graded("text", "B", text, extract=pattern).exact


def test_text_without_a_match_is_not_parsed() -> None:
    assert not graded("text", "B", "I do not know", extract=LETTER).parsed


def test_references_are_extracted_if_they_match() -> None:
    pattern = r"####\s*(.+)"
    assert graded("text", "2 + 2 = 4\n#### 4", "so\n#### 4", extract=pattern).exact
    assert graded("text", "4", "so\n#### 4", extract=pattern).exact
    assert graded("math", "2 + 2 = 4\n#### 4", "4.0 eggs, or\n#### 4.0", extract=pattern).exact


def test_json_and_math_are_extracted_too() -> None:
    pattern = r"(?s)Result:(.*)"
    assert graded("json", '{"a": 1}', 'Result: {"a": 1.0}', extract=pattern).exact
    assert graded("math", "1/2", "7 Result: 0.5", extract=pattern).exact


@pytest.mark.parametrize(
    ("text", "right", "options"),
    [
        ("spice girls", "Spice Girls", {"ignore_case": True}),
        ("STRASSE", "Straße", {"ignore_case": True}),
        ("É", "e\u0301", {"ignore_case": True}),
        ("Spice Girls.", "Spice Girls", {"ignore_punctuation": True}),
        ("(B)", "B", {"ignore_punctuation": True}),
        ("**B**", "B", {"ignore_punctuation": True}),
        ("“Yes”!", "Yes", {"ignore_punctuation": True}),
        ("«yes.»", "Yes", FOLDED),
        ("don't  stop", "Dont stop", FOLDED),
        ("是。", "是", {"ignore_punctuation": True}),
    ],
)
def test_differences_are_ignored(text: str, right: str, options: Any) -> None:
    assert graded("text", right, text, **options).exact
    assert graded("text", text, right, **options).exact
    assert not graded("text", right, text).exact


@pytest.mark.parametrize(
    ("text", "right", "options"),
    [
        ("spice girls", "Spice Girls", {"ignore_punctuation": True}),
        ("Yes.", "Yes", {"ignore_case": True}),
        ("1.5", "15", FOLDED),
        ("-5", "5", FOLDED),
        ("Yes, it is", "Yes", FOLDED),
    ],
)
def test_other_differences_count(text: str, right: str, options: Any) -> None:
    assert not graded("text", right, text, **options).exact


@given(st.text(max_size=20))
def test_reference_is_right_by_itself_or_refused(text: str) -> None:
    row = parse_conversation({"prompt": "?", "completion": text}, "rows:0")
    config = EvalConfig(metric="text", **FOLDED)
    held_out = HeldOut({"held": (row,)})
    if text.strip() and not config.folded(text).strip():
        with pytest.raises(DataError, match="rows:0"):
            metrics_by_set(held_out, config, GREEDY)
    else:
        assert metrics_by_set(held_out, config, GREEDY) == {"held": "text"}
        assert graded("text", text, text, **FOLDED).exact


def test_reference_of_which_nothing_is_left_is_named() -> None:
    rows = tuple(
        parse_conversation({"prompt": "?", "completion": text}, f"rows:{at}")
        for at, text in enumerate(("yes", "..."))
    )
    config = EvalConfig(metric="text", ignore_punctuation=True)
    with pytest.raises(DataError, match=r"rows:1: evaluation.metric=text"):
        metrics_by_set(HeldOut({"held": rows}), config, GREEDY)


RECIPES = (SlBasic, ChatSl, Dpo, Kto, Evaluate, Distillation, DistillationOffPolicy)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_with_an_evaluation_take_the_options(recipe: type[Recipe]) -> None:
    options = {"metric": "text", "extract": LETTER, **FOLDED}
    assert recipe(evaluation=options).evaluation == EvalConfig(**options)  # type: ignore[attr-defined]
    assert recipe(evaluation={"metric": "choice"}).evaluation.metric == "choice"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="extract="):
        recipe(evaluation={"metric": "text", "extract": "("})


@pytest.mark.parametrize("recipe", [Rl, Rlhf])
def test_recipes_with_a_reward_take_the_options(recipe: type[Recipe]) -> None:
    made: Any = recipe(reward="exact", grading={"extract": LETTER, **FOLDED})
    assert made.grading == GradingConfig(extract=LETTER, **FOLDED)
    with pytest.raises(ConfigError, match="extract="):
        recipe(grading={"extract": "[A-"})
    with pytest.raises(ConfigError, match=r"grading.ignore_case"):
        recipe(reward="math", grading={"ignore_case": True}).workflow()


@pytest.mark.parametrize(
    "gold", [r"\boxed{7", "a pinch", "", r"so \boxed{1} or \boxed{\frac{1}{2}"]
)
def test_gold_that_is_not_right_by_itself_is_named(gold: str) -> None:
    rows = [{"prompt": "?", "completion": text} for text in ("5", gold)]
    store = FakeDatasets({"sums": {"train": rows[:1], "held": rows}})
    with pytest.raises(DataError, match=r"^fake:sums:held:1: reward=math"):
        LoadTasks("sums", reward="math").run(store)
    parsed = tuple(parse_conversation(row, f"rows:{at}") for at, row in enumerate(rows))
    with pytest.raises(DataError, match=r"^rows:1: evaluation.metric=math"):
        metrics_by_set(HeldOut({"held": parsed}), EvalConfig(metric="math"), GREEDY)


@pytest.mark.parametrize("pattern", ["(", "[A-", "*", "(?P<x", r"\1"])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="extract="):
        GradingConfig(extract=pattern)


def test_patterns_that_yaml_reads_as_lists_or_numbers() -> None:
    assert (
        Evaluate.model_validate(
            {"evaluation": {"extract": ["A-D"], "metric": "text"}}
        ).evaluation.extract
        == "[A-D]"
    )
    assert Rl.model_validate({"grading": {"extract": 15}}).grading.extract == "15"


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        ("json", {"ignore_case": True}),
        ("math", {"ignore_punctuation": True}),
        ("auto", {"ignore_case": True}),
        ("loss", {"extract": "x"}),
    ],
)
def test_options_without_effect_are_refused(metric: Any, options: Any) -> None:
    with pytest.raises(ConfigError, match=f"evaluation.{next(iter(options))} has no effect"):
        EvalConfig(metric=metric, **options)


def test_extraction_has_no_effect_on_a_loss() -> None:
    row = parse_conversation({"prompt": "?", "completion": "words"}, "rows:0")
    with pytest.raises(ConfigError, match=r"evaluation.extract has no effect .*loss of held"):
        metrics_by_set(HeldOut({"held": (row,)}), EvalConfig(extract="x"), GREEDY)


@pytest.mark.parametrize(
    ("metric", "right", "text", "worth"),
    [
        ("text", ["Ann", "Ann Lee"], "Ann Lee", 1),
        ("text", ["Ann", "Ann Lee"], "Ann", 1),
        ("text", ("Ann", "Ann Lee"), "Lee", 0),
        ("text", ["Bo"], "Bo", 1),
        ("math", ["1/2", "2"], "so it is 2", 1),
        ("math", ["1/2", "2"], "3", 0),
        ("json", ['{"a": 1}', '{"a": 2, "b": 3}'], '{"a": 2}', 2 / 3),
    ],
)
def test_any_right_answer_counts(metric: str, right: Any, text: str, worth: float) -> None:
    answer = graded(metric, right, text)
    assert answer.f1 == pytest.approx(worth)
    assert answer.expected == " | ".join(right)


@pytest.mark.parametrize("column", ["completion", "output", "response"])
def test_lists_of_answers_in_every_format(column: str) -> None:
    prompt = {"completion": "prompt", "output": "input", "response": "instruction"}[column]
    row = parse_conversation({prompt: "Who?", column: ["Ann", "Ann Lee", "Ann"]}, "rows:0")
    assert row.messages[-1].content == "Ann"
    assert row.other_answers == ("Ann Lee",)


def test_list_that_is_not_all_text_is_refused() -> None:
    with pytest.raises(DataError, match=r"rows:0: completion"):
        parse_conversation({"prompt": "?", "completion": ["Ann", 5]}, "rows:0")


def test_rewards_take_the_same_options() -> None:
    rows = [{"prompt": "Who?", "completion": ["Ann Lee", "Ann"]}]
    store = FakeDatasets({"who": {"train": rows, "held": rows}})
    grading = GradingConfig(extract="It was (.+)", **FOLDED)
    question: Any = LoadTasks("who", reward="exact", grading=grading).run(store)[0].train[0]
    texts = ("It was ann lee.", "It was ANN", "It was Bo", "Ann")
    results = [asyncio.run(question.env().step(text)) for text in texts]
    assert [result.reward for result in results] == [1, 1, 0, 0]
    assert [result.parsed for result in results] == [True, True, True, False]
    with pytest.raises(ConfigError, match=r"grading.ignore_case=true .*reward=math"):
        LoadTasks("who", reward="math", grading=GradingConfig(ignore_case=True))


def test_default_reward_is_chosen_by_extracted_references() -> None:
    rows = [{"prompt": "?", "completion": 'It is {"qty": 2}'}]
    store = FakeDatasets({"sums": {"train": rows, "held": rows}})
    grading = GradingConfig(extract=r"\{.*\}")
    question: Any = LoadTasks("sums", grading=grading).run(store)[0].train[0]
    assert asyncio.run(question.env().step('So {"qty":2}')).reward == 1


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ('```json\n{"qty": 2}\n```', 1),
        ('```\n{"qty": 2}\n```', 1),
        ('Here it is:\n\n```JSON\n{\n "qty": 2\n}\n```\nDone.', 1),
        ('  ```json\r\n{"qty": 2}\r\n```', 1),
        ('```json\n{"qty": 2}', 0),
        ('```json\n{"qty": 2}\n```\n```json\n{"qty": 2}\n```', 0),
        ('Here it is: {"qty": 2}', 0),
    ],
)
def test_json_in_a_code_fence(text: str, worth: float) -> None:
    assert graded("json", '{"qty": 2}', text).f1 == worth
