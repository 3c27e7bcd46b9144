"""Twenty steps on a million rows need hardly more memory than on ten thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hub_server import HubServer
from tests.support.peak_memory import jsonl_rows, peak_memory

MAX_GROWTH = 50.0  # MB

pytestmark = pytest.mark.slow


def test_from_files(tmp_path: Path) -> None:
    peaks = {}
    for count in (10_000, 1_000_000):
        (tmp_path / "rows.jsonl").write_text(jsonl_rows(count))
        peaks[count] = peak_memory(tmp_path, "dataset=rows.jsonl")
    print("peak by rows, MB:", peaks)
    assert peaks[1_000_000] - peaks[10_000] < MAX_GROWTH


def test_from_the_hub(tmp_path: Path) -> None:
    server = HubServer()
    environment = {
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }
    try:
        peaks = {}
        for count in (10_000, 1_000_000):
            repository = server.repository(f"soup/rows-{count}", kind="dataset")
            repository.commit({"train.jsonl": jsonl_rows(count)})
            dataset = f"dataset=soup/rows-{count}"
            peaks[count] = peak_memory(tmp_path, "--datasets", "hf", dataset, **environment)
        print("peak by rows, MB:", peaks)
        assert peaks[1_000_000] - peaks[10_000] < MAX_GROWTH
    finally:
        server.unplug()
