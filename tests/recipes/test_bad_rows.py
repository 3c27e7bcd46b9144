"""Rows that cannot be read or rendered, in every recipe that reads rows: errors, or left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.local.datasets import LocalDatasets
from kitchen import Recipe
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
from stages.chat import RenderDataset
from tests.support.recording import RecordingObserver, observed_run

ANSWERS = [json.dumps({"prompt": f"{n}?", "completion": f"{n}!"}) for n in range(8)]
PAIRS = [json.dumps({"prompt": f"{n}?", "chosen": "y", "rejected": "n"}) for n in range(8)]
LABELS = [json.dumps({"prompt": f"{n}?", "completion": "y", "label": n % 2 == 0}) for n in range(8)]
LONG = "x" * 3000
BROKEN = ['{"prompt": "half', "[1]", '{"prompt": "no answer"}', '{"prompt": 3, "completion": "a"}']
LONG_ANSWER = json.dumps({"prompt": "a", "completion": LONG})
LONG_PAIR = json.dumps({"prompt": "a", "chosen": LONG, "rejected": "n"})
LONG_LABEL = json.dumps({"prompt": "a", "completion": LONG, "label": True})
TIE = '{"prompt": "a", "chosen": "y", "rejected": "y"}'
NO_PAIR = '{"prompt": "a", "completion": "y"}'
NO_PROMPT = '{"messages": [{"role": "assistant", "content": "a"}]}'
DROP: Mapping[str, Any] = {"bad_rows": "drop"}
FEW: Mapping[str, Any] = {"eval_every": 0, "batch_size": 4}
Case = tuple[Callable[..., Recipe], Mapping[str, Any], Sequence[str], Sequence[str]]
CASES: Mapping[str, Case] = {
    "sl_basic": (SlBasic, {"dataset": "d", **FEW}, ANSWERS, [*BROKEN, NO_PROMPT, LONG_ANSWER]),
    "chat_sl": (ChatSl, {"mixture": {"d": 1}, "steps": 2, **FEW}, ANSWERS, [*BROKEN, LONG_ANSWER]),
    "off_policy": (
        DistillationOffPolicy,
        {"dataset": "d", "instruction": "Be brief.", **FEW},
        ANSWERS,
        [*BROKEN, LONG_ANSWER],
    ),
    "distillation": (
        Distillation,
        {"dataset": "d", "instruction": "Be brief.", "steps": 1},
        ANSWERS,
        [*BROKEN, NO_PROMPT],
    ),
    "dpo": (Dpo, {"dataset": "d", **FEW}, PAIRS, [*BROKEN, NO_PROMPT, TIE, LONG_PAIR]),
    "kto": (Kto, {"dataset": "d", **FEW}, LABELS, [*BROKEN[:3], NO_PAIR, LONG_LABEL]),
    "rl": (Rl, {"dataset": "d", "steps": 1}, ANSWERS, [*BROKEN, NO_PROMPT]),
    "rlhf": (Rlhf, {"preferences": "d", "steps": 1}, PAIRS, [*BROKEN, TIE, NO_PAIR]),
}


def run(folder: Path, recipe: Recipe) -> RecordingObserver:
    return observed_run(recipe, LocalDatasets(str(folder)))


def write(folder: Path, good: Sequence[str], bad: Sequence[str]) -> None:
    """Write bad rows among the training rows, and one of them among the held-out rows."""
    (folder / "d").mkdir()
    (folder / "d" / "train.jsonl").write_text("\n".join([*good[:3], *bad, *good[3:]]) + "\n")
    (folder / "d" / "test.jsonl").write_text("\n".join([bad[0], *good[:4], bad[-1]]) + "\n")


@pytest.mark.parametrize("name", CASES)
def test_bad_rows_are_left_out_and_listed(tmp_path: Path, name: str) -> None:
    recipe, settings, good, bad = CASES[name]
    write(tmp_path, good, bad)
    seen = run(tmp_path, recipe(**settings, reading=DROP))
    assert seen.series("data/bad_rows") == [len(bad) + 2]
    [table] = [table for table in seen.tables if table.title.startswith("Rows left out")]
    places = {place for _, place, _ in table.rows}
    lines = [f"d/train.jsonl:{line}" for line in range(4, 4 + len(bad))]
    lines += ["d/test.jsonl:1", "d/test.jsonl:6"]
    assert {":".join(place.split(":")[:2]) for place in places} == set(lines)
    assert all(reason for _, _, reason in table.rows)


@pytest.mark.parametrize("name", CASES)
def test_bad_rows_are_errors_by_default(tmp_path: Path, name: str) -> None:
    recipe, settings, good, bad = CASES[name]
    write(tmp_path, good, bad)
    with pytest.raises(DataError, match=r"d/train\.jsonl:4"):
        run(tmp_path, recipe(**settings))


@pytest.mark.parametrize(
    "recipe",
    [
        Evaluate(dataset="d", evaluation={"metric": "text"}),
        Evaluate(dataset="d", evaluation={"metric": "choice"}),
        Rl(dataset="d", steps=1),
        Distillation(dataset="d", instruction="Be brief.", steps=1),
        DistillationOffPolicy(dataset="d", instruction="Be brief.", **FEW),
    ],
)
def test_answer_without_a_prompt_is_an_error(tmp_path: Path, recipe: Recipe) -> None:
    row = {**json.loads(NO_PROMPT), "choices": ["a", "b"]}
    (tmp_path / "d").mkdir()
    for split in ("train", "test"):
        (tmp_path / "d" / f"{split}.jsonl").write_text(f"{json.dumps(row)}\n" * 8)
    with pytest.raises(DataError, match=r"d/t\w+\.jsonl:1: the first message is the assistant's"):
        run(tmp_path, recipe)


@pytest.mark.parametrize("name", CASES)
def test_nothing_but_bad_rows_is_an_error(tmp_path: Path, name: str) -> None:
    recipe, settings, _, bad = CASES[name]
    write(tmp_path, [], bad)
    with pytest.raises(DataError, match=r"no row of the split '(d/)?train' would"):
        run(tmp_path, recipe(**settings, reading=DROP))


@pytest.mark.parametrize("metric", ["text", "loss", "json"])
def test_evaluation_leaves_bad_rows_out(tmp_path: Path, metric: str) -> None:
    good = [row.replace("!", "") for row in ANSWERS] if metric != "json" else [
        json.dumps({"prompt": "a", "completion": '{"b": 1}'})
    ] * 4  # fmt: skip
    bad = [*BROKEN, NO_PROMPT, *([LONG_ANSWER] if metric == "loss" else [])]
    bad += ['{"prompt": "a", "completion": "no JSON"}'] if metric == "json" else []
    (tmp_path / "d.jsonl").write_text("\n".join([*good, *bad]) + "\n")
    settings = {"dataset": "d.jsonl", "evaluation": {"metric": metric}}
    with pytest.raises(DataError):
        run(tmp_path, Evaluate(**settings))
    seen = run(tmp_path, Evaluate(**settings, reading=DROP))
    assert seen.series("data/bad_rows") == [len(bad)]


def test_multiple_choice_leaves_bad_rows_out(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "a", "choices": ["b", "c"], "answer": 1})
    long = json.dumps({"prompt": "a", "choices": ["b", LONG], "answer": 0})
    (tmp_path / "d.jsonl").write_text("\n".join([good, ANSWERS[0], long, good]) + "\n")
    evaluation = {"metric": "choice"}
    seen = run(tmp_path, Evaluate(dataset="d.jsonl", evaluation=evaluation, reading=DROP))
    assert seen.series("data/bad_rows") == [2]


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_each_format_leaves_bad_rows_out(tmp_path: Path, suffix: str) -> None:
    rows = [f"{n}?,{n}!" for n in range(8)]
    content = {
        "csv": "\n".join(["prompt,completion", *rows, "a,b,c", "no answer,", "\xff,x"]),
        "json": f"[{', '.join([*ANSWERS, '7', *BROKEN[2:]])}]",
        "jsonl": "\n".join([*ANSWERS, "\xff", *BROKEN[2:]]),
    }  # fmt: skip
    encoding = "utf-8" if suffix == "json" else "latin1"
    (tmp_path / f"d.{suffix}").write_bytes(content[suffix].encode(encoding))
    seen = run(tmp_path, SlBasic(dataset=f"d.{suffix}", reading={**DROP, "held_out": 0.25}, **FEW))
    assert seen.series("data/bad_rows") == [3]


def test_a_limit_counts_good_rows(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("\n".join([*BROKEN, *ANSWERS]) + "\n")
    for stream in (False, True):
        reading = {**DROP, "limit": 5, "held_out": 0.25, "stream": stream}
        seen = run(tmp_path, SlBasic(dataset="d.jsonl", reading=reading, **FEW))
        assert seen.series("data/bad_rows") == [4]
        assert seen.series("data/rows") == [5]


def test_dropped_rows_do_not_shorten_a_run(tmp_path: Path) -> None:
    long = [LONG_ANSWER] * 8
    (tmp_path / "d.jsonl").write_text("\n".join([*long, *ANSWERS]) + "\n")
    settings = {"dataset": "d.jsonl", "max_steps": 2, "batch_size": 2, "eval_every": 0}
    reading = {**DROP, "held_out": 0.5}
    seen = run(tmp_path, SlBasic(**settings, reading=reading, rendering=RenderDataset()))
    assert len(seen.series("loss")) == 2


@pytest.mark.parametrize("recipe", [SlBasic, Dpo, Kto])
@pytest.mark.parametrize("stream", [False, True])
def test_too_few_rows_after_bad_ones_say_so(
    tmp_path: Path, recipe: type[Recipe], stream: bool
) -> None:
    rows = [{"prompt": "a?", "completion": "b"}, {"prompt": "a?", "completion": 3}, {"prompt": "c"}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    reading = {**DROP, "stream": stream, "limit": 9, "held_out": 0.5}
    with pytest.raises(DataError, match=r"2 of 3 rows were left out by .*drop.*d\.jsonl:2"):
        run(tmp_path, recipe(dataset="d.jsonl", reading=reading))
