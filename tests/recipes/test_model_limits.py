"""Rows, prompts and answers that do not fit into the model's context, in every recipe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.datasets import LocalDatasets
from kitchen import Recipe
from kitchen.config.adapters import Kitchen
from kitchen.engine.preview import preview
from kitchen.errors import DataError
from recipes.chat_sl import ChatSl
from recipes.distillation import Distillation
from recipes.distillation_off_policy import DistillationOffPolicy
from recipes.dpo import Dpo
from recipes.evaluate import Evaluate
from recipes.kto import Kto
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from recipes.sl_basic import SlBasic
from tests.support.recording import RecordingObserver, observed_run
from tests.support.small_model import SMALL_CONTEXT, SmallTraining

FEW: Mapping[str, Any] = {"eval_every": 0, "batch_size": 4}
PROMPT = "x" * (SMALL_CONTEXT - 50)  # fits, but leaves no room for an answer of 64 tokens
LONG = "x" * SMALL_CONTEXT
BRIEF = {"instruction": "Be brief."}
Case = tuple[Callable[..., Recipe], Mapping[str, Any], Mapping[str, Any]]
# name, settings, and a row that does not fit
CASES: Mapping[str, Case] = {
    "sl_basic": (SlBasic, {"dataset": "d", **FEW}, {"prompt": "a", "completion": LONG}),
    "chat_sl": (
        ChatSl,
        {"mixture": {"d": 1}, "steps": 2, **FEW},
        {"messages": [{"role": "user", "content": LONG}, {"role": "assistant", "content": "b"}]},
    ),
    "off_policy": (
        DistillationOffPolicy,
        {"dataset": "d", **BRIEF, **FEW},
        {"prompt": PROMPT, "completion": "b"},
    ),
    "distillation": (
        Distillation,
        {"dataset": "d", **BRIEF, "steps": 1},
        {"prompt": PROMPT, "completion": "b"},
    ),
    "dpo": (Dpo, {"dataset": "d", **FEW}, {"prompt": "a", "chosen": LONG, "rejected": "n"}),
    "dpo, sampled": (Dpo, {"dataset": "d", **FEW}, {"prompt": PROMPT, "completion": "b"}),
    "kto": (Kto, {"dataset": "d", **FEW}, {"prompt": "a", "completion": LONG, "label": True}),
    "rl": (Rl, {"dataset": "d", "steps": 1}, {"prompt": PROMPT, "completion": "b"}),
    "rlhf": (
        Rlhf,
        {"preferences": "d", "steps": 1},
        {"prompt": PROMPT, "chosen": "b", "rejected": "n"},
    ),
}


def good(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return short rows of the same format; labels alternate."""
    rows = []
    for number in range(8):
        short = {key: f"{key} {number}" for key in row if key not in ("label", "messages")}
        if "messages" in row:
            short = {"prompt": f"{number}?", "completion": "y"}
        rows.append({**short, **({"label": number % 2 == 0} if "label" in row else {})})
    return rows


def write(folder: Path, train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]]):
    (folder / "d").mkdir()
    for name, rows in (("train", train), ("test", test)):
        (folder / "d" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def run(folder: Path, recipe: Recipe) -> RecordingObserver:
    return observed_run(recipe, LocalDatasets(str(folder)), SmallTraining)


def show(folder: Path, recipe: Recipe) -> None:
    blobs = FakeBlobs()
    ports = Kitchen(SmallTraining(blobs), LocalDatasets(str(folder)), None, blobs).ports()
    list(preview(recipe.workflow(), ports))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("look", [run, show])
def test_what_exceeds_the_context_names_its_row(
    tmp_path: Path, name: str, look: Callable[[Path, Recipe], object]
) -> None:
    recipe, settings, long = CASES[name]
    rows = good(long)
    write(tmp_path, [*rows[:3], long, *rows[3:]], rows)
    with pytest.raises(DataError, match=r"train\.jsonl:4.*context"):
        look(tmp_path, recipe(**settings))


@pytest.mark.parametrize("name", ["sl_basic", "chat_sl", "dpo", "kto"])
@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_rows_beyond_the_context_obey_overlong(tmp_path: Path, name: str, overlong: str) -> None:
    recipe, settings, long = CASES[name]
    rows = good(long)
    write(tmp_path, [*rows, long], rows)
    seen = run(tmp_path, recipe(**settings, rendering={"overlong": overlong}))
    assert seen.series("loss")
    if name == "sl_basic":
        assert seen.series("data/dropped") == [overlong == "drop"]
        assert seen.series("data/truncated") == [overlong == "truncate"]


LONG_PROMPTS: Mapping[str, Mapping[str, Any]] = {
    "sl_basic": {"prompt": LONG, "completion": "b"},
    "chat_sl": CASES["chat_sl"][2],
    "dpo": {"prompt": LONG, "chosen": "y", "rejected": "n"},
    "kto": {"prompt": LONG, "completion": "b", "label": True},
}


@pytest.mark.parametrize("name", LONG_PROMPTS)
@pytest.mark.parametrize("overlong", ["drop", "truncate"])
def test_the_limit_that_drops_all_rows_is_named(tmp_path: Path, name: str, overlong: str) -> None:
    recipe, settings, _ = CASES[name]
    row = LONG_PROMPTS[name]
    rows = [{**row, **({"label": at % 2 == 0} if "label" in row else {})} for at in range(4)]
    write(tmp_path, rows, good(row))
    limits = (
        (20, r"max_tokens=20\b.*raise rendering\.max_tokens"),
        (1024, rf"the model's context of {SMALL_CONTEXT} tokens.*shorten"),
    )
    for max_tokens, problem in limits:
        rendering = {"overlong": overlong, "max_tokens": max_tokens}
        with pytest.raises(DataError, match=problem) as caught:
            show(tmp_path, recipe(**settings, rendering=rendering))
        assert ("raise" in str(caught.value)) == (max_tokens == 20)


@pytest.mark.parametrize(("overlong", "answered"), [("drop", 8), ("truncate", 9)])
def test_questions_beyond_the_context_obey_overlong(
    tmp_path: Path, overlong: str, answered: int
) -> None:
    row = {"prompt": PROMPT, "completion": "b"}
    write(tmp_path, good(row), [*good(row), row])
    settings = {"dataset": "d", "evaluation": {"metric": "text"}}
    with pytest.raises(DataError, match=r"test\.jsonl:9.*evaluation\.max_tokens"):
        run(tmp_path, Evaluate(**settings))
    with pytest.raises(DataError, match=r"test\.jsonl:9.*evaluation\.max_tokens"):
        show(tmp_path, Evaluate(**settings))
    seen = run(tmp_path, Evaluate(**settings, rendering={"overlong": overlong}))
    assert {problems for table in seen.tables[1:] for _, problems, *_ in table.rows} == {
        str(answered)
    }


def test_a_prompt_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    row = {"prompt": LONG, "completion": "b"}
    write(tmp_path, good(row), [row, *good(row)])
    recipe = Evaluate(
        dataset="d", evaluation={"metric": "text"}, rendering={"overlong": "truncate"}
    )
    with pytest.raises(DataError, match=r"test\.jsonl:1.*leaves no room"):
        run(tmp_path, recipe)


@pytest.mark.parametrize("name", ["rl", "distillation", "rlhf"])
def test_bad_rows_are_dropped_without_room(tmp_path: Path, name: str) -> None:
    recipe, settings, long = CASES[name]
    rows = good(long)
    write(tmp_path, [*rows, long], rows)
    seen = run(tmp_path, recipe(**settings, reading={"bad_rows": "drop"}))
    assert seen.series("data/bad_rows") == [1]
