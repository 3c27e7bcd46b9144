"""Memory does not follow the size of a data set of the hub."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.hub_server import HubServer

READING = r"""
import random, re, sys
from adapters.hf.datasets import HfDatasets
data = HfDatasets(endpoint=sys.argv[1], cache=sys.argv[2]).load(sys.argv[3])
drawn = random.Random(0).sample(range(len(data)), 320)
assert all(data[index]["prompt"].startswith(f"Row {index}:") for index in drawn)
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""


def jsonl(rows: int) -> bytes:
    lines = (
        f'{{"prompt": "Row {row}: what is {row} and {row % 97}?", '
        f'"completion": "It is {row + row % 97}, as anyone can tell."}}\n'
        for row in range(rows)
    )
    return "".join(lines).encode()


def parquet(rows: int) -> bytes:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table(
        {"prompt": [f"Row {row}: {row * 7919 % 1_000_003:0>80}" for row in range(rows)]}
    )
    pyarrow.parquet.write_table(table, file := BytesIO(), row_group_size=50_000)
    return file.getvalue()


def peak(hub: HubServer, cache: Path, name: str) -> float:
    """Return the peak memory in MB of a process that fetches and reads 320 random rows."""
    done = subprocess.run(
        [sys.executable, "-c", READING, hub.url, str(cache), name],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return int(done.stdout) / 1000


@pytest.mark.slow
# Arrow reads Parquet far ahead
@pytest.mark.parametrize("suffix, room", [("jsonl", 20), ("parquet", 150)])
def test_million_rows_need_little_memory(
    hub_server: HubServer, tmp_path: Path, suffix: str, room: float
) -> None:
    write = {"jsonl": jsonl, "parquet": parquet}[suffix]
    for name, rows in {"small": 10_000, "big": 1_000_000}.items():
        hub_server.repository(f"rows/{name}", {f"train.{suffix}": write(rows)}, kind="dataset")
    small, big, prepared = (
        peak(hub_server, tmp_path / "cache", f"rows/{name}") for name in ("small", "big", "big")
    )
    assert big - small < room
    assert prepared - small < 10  # once it is prepared
