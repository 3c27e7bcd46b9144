"""The engine benchmarks on a Llama of two layers: data, preference losses, equal results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("peft")

from stages.preference.dpo_losses import PairLoss
from tests.bench import kitchen_side, rows
from tests.bench.__main__ import default_works, drop_unfinished, finished, kept, make
from tests.bench.catalogue import MEASURED, WORKS
from tests.bench.dpo import dpo
from tests.bench.kitchen_side import StartWeights
from tests.bench.random_model import SIZES, RandomModel
from tests.bench.results import Order, Result
from tests.bench.turns import Setup
from tests.bench.worker import Worker
from tests.support.tiny_model import tiny_model


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """Return the seed, and the tiny model in its folder."""
    folder = tmp_path_factory.mktemp("bench")
    return Order(folder, pairs=1, model=f"path:{tiny_model(folder / 'tiny', context=1024)}").setup(
        1
    )


@pytest.fixture(scope="module")
def order(setup: Setup) -> Order:
    """Return options with the start weights in their folder."""
    (setup.folder / "trl").mkdir()
    with Worker(StartWeights(setup), setup.folder) as worker:
        worker.ready()
    return Order(setup.folder, pairs=1, model=setup.model)


def test_the_lengths_of_b_spread_evenly_over_their_logarithms(setup: Setup) -> None:
    data = rows.log_uniform(setup, 400)
    lengths = np.array([len(datum.tokens) for datum in data])
    assert lengths.min() >= 64
    assert lengths.max() <= 512
    assert np.mean(lengths < 181) == pytest.approx(0.5, abs=0.07)  # the middle, √(64 · 512)
    trained = sum(int(datum.loss_inputs["weights"].sum()) for datum in data)
    assert trained / lengths.sum() == pytest.approx(0.25, abs=0.01)


def test_rows_are_the_same_for_the_same_seed_alone(setup: Setup) -> None:
    [first], [again] = (rows.groups(setup, 1) for _ in range(2))
    [other] = rows.groups(Setup(setup.folder, seed=1, model=setup.model), 1)
    assert first.prompt.tolist() == again.prompt.tolist() != other.prompt.tolist()
    assert [len(completion) for completion in first.completions] == [64] * 8


def test_questions_have_a_fixed_length_and_answers_never_end(setup: Setup) -> None:
    known, endless = (rows.tokenizer(each.model) for each in (setup, kitchen_side.endless(setup)))
    assert endless.stop_ids == () != known.stop_ids
    for text in rows.questions(setup, 3):
        asked = known.render(rows.asked(text), answer=True)
        assert len(asked) == 256
        assert endless.render(rows.asked(text), answer=True).tolist() == asked.tolist()


@pytest.mark.slow
def test_sampling_writes_what_generate_writes(order: Order) -> None:
    result = WORKS["sampling_1_float32"](order)
    assert result.sound, result.notes
    assert [step["tokens"] for step in result.records[1]["steps"]] == [64] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        "sft_a_float32",
        "sft_b_float32",
        "sft_b_bfloat16",
        "sft_memory",
        "dpo",
        "rl",
        "rl_step",
        "dpo_bfloat16",
    ],
)
def test_both_sides_compute_the_same(order: Order, work: str) -> None:
    pytest.importorskip("trl")
    result = WORKS[work](order)
    assert result.sound, result.notes
    differences = result.records[-1]["differences"]
    assert all(apart < 1 for found in differences.values() for apart in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "count"), [(0.0, 0), (1e9, 4)])  # GFLOP/s
def test_works_in_slow_number_formats_are_skipped(order: Order, slow: float, count: int) -> None:
    console = Console(width=150, record=True)
    works = default_works(order, console, slow)
    skipped = [name for name in MEASURED["cpu"] if name not in works]
    assert len(skipped) == count
    assert all(name.endswith("bfloat16") for name in skipped)
    reported = console.export_text()
    assert reported.endswith(f" GFLOP/s: {', '.join(skipped)}\n") if skipped else reported == ""


@pytest.mark.slow
def test_a_random_model_can_use_another_models_tokenizer(order: Order, tmp_path: Path) -> None:
    sizes = {
        **SIZES["1b"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 400,
    }
    make(RandomModel(sizes, tmp_path / "model", order.model, "cpu"), tmp_path)
    made = Order(tmp_path, pairs=1, model=f"path:{tmp_path / 'model'}")
    make(StartWeights(made.setup(1)), tmp_path)
    result = WORKS["sampling_1_float32"](made)
    assert result.sound, result.notes
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert (config["vocab_size"], config["dtype"]) == (400, "bfloat16")
    ours, theirs = (
        rows.tokenizer(model).encode("two cups").tolist() for model in (made.model, order.model)
    )
    assert ours == theirs


@pytest.mark.slow
def test_hinge_on_pairs_is_that_of_trl(order: Order) -> None:
    """TRL's ipo is per token, and its sigmoid has no label smoothing."""
    pytest.importorskip("trl")
    result = dpo(order, loss=PairLoss("hinge", beta=0.1))
    assert result.sound, result.notes


def test_finished_works_are_reused_within_one_commit(tmp_path: Path) -> None:
    facts = {"date": "today", "commit": "abc"}
    one = Result(
        "dpo",
        "DPO",
        ("side", "s"),
        (("kitchen", "1.0"), ("TRL", "2.0")),
        ("speed: 2.0",),
        sound=False,
    )
    other = Result("rl", "RL", ("side",), (("kitchen",),))
    runs = [
        ({"date": "yesterday", "commit": "abc"}, one),
        ({"date": "today", "commit": "def"}, other),
    ]
    lines = [
        json.dumps(each)
        for run, result in runs
        for each in ({"run": run}, {"work": result.work}, {"finished": result.work, **kept(result)})
    ]
    (tmp_path / "bench.jsonl").write_text("\n".join(lines) + "\n")
    assert finished(tmp_path / "bench.jsonl", facts) == {"dpo": one}


@pytest.mark.parametrize("commit", ["abc+", "none"])
def test_uncommitted_code_is_always_measured_again(tmp_path: Path, commit: str) -> None:
    facts, one = (
        {"date": "today", "commit": commit},
        Result("dpo", "DPO", ("side",), (("kitchen",),)),
    )
    lines = ({"run": facts}, {"finished": "dpo", **kept(one)})
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert finished(tmp_path / "bench.jsonl", facts) == {}


def test_a_line_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    file.write_text('{"run": {}}\n{"work": "d')
    drop_unfinished(file)
    assert file.read_text() == '{"run": {}}\n'
    drop_unfinished(file)
    assert file.read_text() == '{"run": {}}\n'
