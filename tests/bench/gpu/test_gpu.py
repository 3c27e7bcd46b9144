"""GPU benchmarks: rows are skipped, stopped and recorded, and a dry run measures all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from zipfile import ZipFile

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")

from tests.bench.gpu.__main__ import finished_rows, models_of, run_row
from tests.bench.gpu.checks import SELECTED
from tests.bench.gpu.decoding import bytes_read
from tests.bench.gpu.packages import FASTER, LIST, NEEDED, ON_CUDA, ROOT, needed_packages
from tests.bench.gpu.rows import ROWS
from tests.bench.sft import Packs
from tests.bench.turns import Setup
from tests.support.tiny_model import tiny_model

FACTS = {"commit": "abc", "device": "H100"}


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("gpu")
    return Setup(folder, steps=2, model=f"path:{tiny_model(folder / 'tiny', context=1024)}")


def write(path: Path, *records: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class Collected:
    """A pytest plugin that keeps the collected tests."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def test_checks_are_few_and_on_the_device() -> None:
    collected = Collected()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    selected = [str(ROOT / word) if "/" in word else word for word in SELECTED]
    assert pytest.main([*options, *selected], plugins=[collected]) == 0
    laws = [item for item in collected.items if item.path.name == "test_peft.py"]
    assert {item.cls.device for item in laws if isinstance(item, pytest.Function)} == {"cuda"}
    assert len(laws) > 300
    assert 500 < len(collected.items) < 700  # more on CUDA: 53 s for 825 on an H200


def test_rows_of_this_commit_and_device_are_finished(tmp_path: Path) -> None:
    done = {"row": "dpo_1b", **FACTS}
    file = write(
        tmp_path / "gpu.jsonl",
        done,
        {"row": "rl_1b", **FACTS, "error": "out of memory"},
        {"row": "sft_1b", **FACTS, "commit": "def"},
        {"row": "sft_8b", **FACTS, "device": "H200"},
    )
    assert finished_rows([file, tmp_path / "none"], FACTS) == {"dpo_1b": done}


@pytest.mark.parametrize("commit", ["abc+", "none"])
def test_rows_of_uncommitted_code_run_again(tmp_path: Path, commit: str) -> None:
    facts = {**FACTS, "commit": commit}
    file = write(tmp_path / "gpu.jsonl", {"row": "dpo_1b", **facts})
    assert finished_rows([file], facts) == {}


def test_a_row_without_time_is_not_started(tmp_path: Path) -> None:
    record = run_row("sft_8b", tmp_path, tmp_path, monotonic() + ROWS["sft_8b"].needed - 1)
    assert record["error"].startswith("not started: ")
    assert list(tmp_path.iterdir()) == []


def test_only_the_models_of_the_rows_are_written() -> None:
    assert models_of(list(ROWS)) == "models-8b-1b"
    assert models_of(["checks", "sampling_1b", "profile_sampling_1b"]) == "models-1b"
    assert models_of(["sft_8b_4bit"]) == "models-8b"


@pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_a_row_that_is_not_supported_says_why(tmp_path: Path) -> None:
    record = run_row("sft_8b_4bit", tmp_path, tmp_path, monotonic() + 600)
    assert record["not_measured"].endswith("not installed: bitsandbytes")
    assert "error" not in record


def test_packs_are_full_and_trl_gets_the_same_rows(setup: Setup) -> None:
    packs = Packs(count=2, size=256, shortest=16, longest=256)
    batches, trl_rows = packs.batches(setup), packs.trl_rows(setup)
    lengths = [len(datum.tokens) + 1 for batch in batches for datum in batch]
    assert min(lengths) >= 16
    assert [sum(row["seq_lengths"]) for row in trl_rows] == [256] * 4
    assert [length for row in trl_rows for length in row["seq_lengths"]] == lengths
    first = batches[0][0]
    trained = sum(label != -100 for label in trl_rows[0]["labels"][: lengths[0]])
    assert trl_rows[0]["input_ids"][: lengths[0] - 1] == first.tokens.tolist()
    assert trained == int(first.loss_inputs["weights"].sum())


def test_weights_and_active_keys_are_read_once_a_token(setup: Setup) -> None:
    # layers: 2 · (64 · 64 · 2 + 64 · 32 · 2 + 3 · 64 · 128); output layer: 64 · 320
    weights = (2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 64 * 320) * 4
    keys = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, head_dim, float32
    assert bytes_read(setup, 10, [1]) == 0
    assert bytes_read(setup, 10, [2, 3]) == 2 * weights + (2 * 11 + 12) * keys


def test_all_packages_are_listed() -> None:
    pytest.importorskip("trl")
    lines = [line for line in (ROOT / LIST).read_text().splitlines() if not line.startswith("#")]
    listed = {line.partition("==")[0] for line in lines}
    assert listed == needed_packages((*NEEDED, *ON_CUDA, *FASTER)) - {"torch", "triton"}
    constraints = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    elsewhere = {line for line in lines if line not in constraints}
    assert {line.partition("==")[0] for line in elsewhere} <= {"liger-kernel", "ruamel-yaml"}


def link_packages(folder: Path, names: Iterable[str]) -> Path:
    """Link the files of installed packages in a folder."""
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            (folder / top).symlink_to(str(found.locate_file(top)))
    return folder


@pytest.mark.slow
def test_no_other_packages_are_imported(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    of_torch = ("networkx", "setuptools", "sympy")
    path = link_packages(tmp_path, needed_packages((*NEEDED, *of_torch)))
    program = """import sys, pytest
from tests.bench.gpu import __main__, rows
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
sys.exit(pytest.main(sys.argv[1:]))"""
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, *options, *SELECTED],
        env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_missing_packages_are_named(tmp_path: Path) -> None:
    wheel = tmp_path / "given-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        metadata = "Metadata-Version: 2.1\nName: given\nVersion: 1.0\n"
        needs = "Requires-Dist: lacking>=2\nRequires-Dist: other; extra == 'more'\n"
        archive.writestr("given-1.0.dist-info/METADATA", metadata + needs)
    program = "from tests.bench.gpu.packages import *; print(missing_packages(['given', 'numpy']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{wheel}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['lacking']\n"


def planned_calls(seconds: float) -> list[list[str]]:
    """Return the rows of each call if every row takes the time that it needs."""
    calls, due = list[list[str]](), dict(ROWS)
    while due:
        left, call = seconds, list[str]()
        for name, row in due.items():
            if row.needed <= left:
                call.append(name)
                left -= row.needed
        calls.append(call)
        due = {name: row for name, row in due.items() if name not in call}
    return calls


def test_the_calls_of_the_docs_are_those_of_the_rows() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    for number, call in enumerate(planned_calls(510), 1):
        names = ", ".join(f"`{name}`" for name in call)
        seconds = sum(ROWS[name].needed for name in call)
        assert f"| {number} | {names} | {seconds:.0f} |" in page
    assert f"| {number + 1} | " not in page.partition("### All GPU benchmarks")[2]


@pytest.mark.slow
def test_a_dry_run_measures_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    rows = ["dpo_1b", "decoding_1b", "full_1b"]
    environ = {
        **os.environ,
        "PYTHON": sys.executable,
        "KITCHEN_GPU_DRY": "1",
        "KITCHEN_GPU_SECONDS": "1700",
        "KITCHEN_GPU_WHEELS": str(tmp_path),
        "OUT": str(tmp_path / "out"),  # created by the script
    }
    done = subprocess.run(
        [ROOT / "tests/bench/gpu.sh", *rows],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "out/gpu.jsonl").read_text().splitlines()]
    assert [record["row"] for record in records] == rows
    dpo, decoding, full = records
    assert dpo["sound"]
    assert decoding["sides"]["kitchen"]["tokens_per_second"]["median"] > 0
    assert full["sound"]
