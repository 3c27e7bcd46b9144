"""Memory does not follow the size of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READING = r"""
import random, re, sys
from adapters.local.datasets import LocalDatasets
data = LocalDatasets().load(sys.argv[1])
drawn = random.Random(0).sample(range(len(data)), 320)
assert all(data[index]["prompt"].startswith(f"Row {index}:") for index in drawn)
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""


def write_jsonl(path: Path, rows: int) -> None:
    with path.open("w") as file:
        for row in range(rows):
            file.write(
                f'{{"prompt": "Row {row}: what is {row} and {row % 97}?", '
                f'"completion": "It is {row + row % 97}, as anyone can tell."}}\n'
            )


def peak(path: Path) -> float:
    """Return the peak memory in MB of a process that reads 320 random rows."""
    done = subprocess.run(
        [sys.executable, "-c", READING, str(path)], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1000


@pytest.mark.slow
def test_million_jsonl_rows_need_little_memory(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "small.jsonl", 10_000)
    write_jsonl(tmp_path / "big.jsonl", 1_000_000)
    assert (tmp_path / "big.jsonl").stat().st_size > 90_000_000
    # 8 bytes a row, and room to grow
    assert peak(tmp_path / "big.jsonl") - peak(tmp_path / "small.jsonl") < 15


@pytest.mark.slow
def test_million_parquet_rows_need_little_memory(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, rows in {"small": 10_000, "big": 1_000_000}.items():
        text = [f"Row {row}: {row * 7919 % 1_000_003:0>80}" for row in range(rows)]
        parquet.write_table(
            arrow.table({"prompt": text}), tmp_path / f"{name}.parquet", row_group_size=100_000
        )
    assert peak(tmp_path / "big.parquet") - peak(tmp_path / "small.parquet") < 50
