"""The benchmarks of the catalogue on a Llama with two layers: data, and equal values."""

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
from tests.bench.__main__ import (
    default_benchmarks,
    drop_partial_line,
    load_finished,
    run_helper,
    to_record,
)
from tests.bench.catalogue import BENCHMARKS, DEFAULT_BENCHMARKS
from tests.bench.dpo import dpo
from tests.bench.kitchen_side import StartWeights
from tests.bench.random_model import SIZES, RandomModel
from tests.bench.results import Options, Result
from tests.bench.turns import Setup
from tests.bench.worker import Worker
from tests.support.tiny_model import tiny_model


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A setup with a tiny model."""
    folder = tmp_path_factory.mktemp("bench")
    return Options(
        folder, pairs=1, model=f"path:{tiny_model(folder / 'tiny', context=1024)}"
    ).setup(1)


@pytest.fixture(scope="module")
def options(setup: Setup) -> Options:
    """Options whose folder has the start weights."""
    (setup.folder / "trl").mkdir()
    with Worker(StartWeights(setup), setup.folder) as worker:
        worker.ready()
    return Options(setup.folder, pairs=1, model=setup.model)


def test_the_lengths_of_data_b_are_log_uniform(setup: Setup) -> None:
    data = rows.log_uniform(setup, 400)
    lengths = np.array([len(datum.tokens) for datum in data])
    assert lengths.min() >= 64
    assert lengths.max() <= 512
    assert np.mean(lengths < 181) == pytest.approx(0.5, abs=0.07)  # the middle, √(64 · 512)
    trained = sum(int(datum.loss_inputs["weights"].sum()) for datum in data)
    assert trained / lengths.sum() == pytest.approx(0.25, abs=0.01)


def test_rows_depend_on_the_seed_only(setup: Setup) -> None:
    [first], [again] = (rows.groups(setup, 1) for _ in range(2))
    [other] = rows.groups(Setup(setup.folder, seed=1, model=setup.model), 1)
    assert first.prompt.tolist() == again.prompt.tolist() != other.prompt.tolist()
    assert [len(completion) for completion in first.completions] == [64] * 8


def test_questions_have_a_fixed_length_and_no_end_token(setup: Setup) -> None:
    original = rows.tokenizer(setup.model)
    endless = rows.tokenizer(kitchen_side.without_end_tokens(setup).model)
    assert endless.stop_ids == ()
    assert original.stop_ids != ()
    for text in rows.questions(setup, 3):
        messages = rows.chat_messages(text)
        tokens = original.render(messages, answer=True)
        assert len(tokens) == 256
        assert endless.render(messages, answer=True).tolist() == tokens.tolist()


@pytest.mark.slow
def test_sampling_agrees_with_generate(options: Options) -> None:
    result = BENCHMARKS["sampling_1_float32"](options)
    assert result.sound, result.notes
    assert [step["tokens"] for step in result.records[1]["steps"]] == [64] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
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
def test_both_sides_compute_the_same_values(options: Options, name: str) -> None:
    pytest.importorskip("trl")
    result = BENCHMARKS[name](options)
    assert result.sound, result.notes
    differences = result.records[-1]["differences"]
    assert all(
        difference < 1 for by_side in differences.values() for difference in by_side.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize(("min_gflops", "count"), [(0.0, 0), (1e9, 4)])
def test_benchmarks_in_slow_data_types_are_skipped(
    options: Options, min_gflops: float, count: int
) -> None:
    console = Console(width=150, record=True)
    names = default_benchmarks(options, console, min_gflops)
    skipped = [name for name in DEFAULT_BENCHMARKS["cpu"] if name not in names]
    assert len(skipped) == count
    assert all(name.endswith("bfloat16") for name in skipped)
    reported = console.export_text()
    assert reported.endswith(f" GFLOP/s: {', '.join(skipped)}\n") if skipped else reported == ""


@pytest.mark.slow
def test_a_random_model_can_use_another_models_tokenizer(options: Options, tmp_path: Path) -> None:
    sizes = {
        **SIZES["1b"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 400,
    }
    run_helper(RandomModel(sizes, tmp_path / "model", options.model, "cpu"), tmp_path)
    random_options = Options(tmp_path, pairs=1, model=f"path:{tmp_path / 'model'}")
    run_helper(StartWeights(random_options.setup(1)), tmp_path)
    result = BENCHMARKS["sampling_1_float32"](random_options)
    assert result.sound, result.notes
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert (config["vocab_size"], config["dtype"]) == (400, "bfloat16")
    ours, theirs = (
        rows.tokenizer(model).encode("two cups").tolist()
        for model in (random_options.model, options.model)
    )
    assert ours == theirs


@pytest.mark.slow
def test_the_hinge_loss_agrees_with_trl(options: Options) -> None:
    """TRL's ipo is per token, and its sigmoid loss has no label smoothing."""
    pytest.importorskip("trl")
    result = dpo(options, loss=PairLoss("hinge", beta=0.1))
    assert result.sound, result.notes


def test_finished_benchmarks_are_reused_within_one_commit(tmp_path: Path) -> None:
    facts = {"date": "today", "commit": "abc"}
    first = Result(
        "dpo",
        "DPO",
        ("side", "s"),
        (("kitchen", "1.0"), ("TRL", "2.0")),
        ("speed: 2.0",),
        sound=False,
    )
    second = Result("rl", "RL", ("side",), (("kitchen",),))
    runs = [
        ({"date": "yesterday", "commit": "abc"}, first),
        ({"date": "today", "commit": "def"}, second),
    ]
    lines = [
        json.dumps(record)
        for run, result in runs
        for record in (
            {"run": run},
            {"work": result.work},
            {"finished": result.work, **to_record(result)},
        )
    ]
    (tmp_path / "bench.jsonl").write_text("\n".join(lines) + "\n")
    assert load_finished(tmp_path / "bench.jsonl", facts) == {"dpo": first}


@pytest.mark.parametrize("commit", ["abc+", "none"])
def test_uncommitted_code_is_always_measured_again(tmp_path: Path, commit: str) -> None:
    facts = {"date": "today", "commit": commit}
    result = Result("dpo", "DPO", ("side",), (("kitchen",),))
    lines = ({"run": facts}, {"finished": "dpo", **to_record(result)})
    (tmp_path / "bench.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert load_finished(tmp_path / "bench.jsonl", facts) == {}


def test_an_incomplete_line_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    file.write_text('{"run": {}}\n{"work": "d')
    drop_partial_line(file)
    assert file.read_text() == '{"run": {}}\n'
    drop_partial_line(file)
    assert file.read_text() == '{"run": {}}\n'
