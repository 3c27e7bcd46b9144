"""Hugging Face data sets obey the laws of their port, with a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest

from adapters.hf.datasets import HfDatasets
from kitchen.ports.datasets import Row
from kitchen.testing.datasets import Data, DatasetLaws
from tests.support.hub_fixtures import hub_server  # noqa: F401
from tests.support.hub_server import HubServer


class TestJsonl(DatasetLaws):
    """Each data set is a repository whose card maps files to splits."""

    suffix = ".jsonl"

    @pytest.fixture(autouse=True)
    def _server(self, hub_server: HubServer) -> None:  # noqa: F811
        hub_server.lists_datasets = True
        self._hub = hub_server

    def named(self, tmp_path: Path, name: str) -> str:
        return f"laws/{name}"

    def written(self, rows: Sequence[Row]) -> bytes:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()

    def store(self, tmp_path: Path, data: Data) -> HfDatasets:
        for name, splits in data.items():
            listed = "".join(
                f"  - split: {split}\n    path: {split}{self.suffix}\n" for split in splits
            )
            card = f"---\nconfigs:\n- config_name: default\n  data_files:\n{listed}---\n"
            files = {f"{split}{self.suffix}": self.written(rows) for split, rows in splits.items()}
            self._hub.repository(f"laws/{name}", {"README.md": card, **files}, kind="dataset")
        return HfDatasets(endpoint=self._hub.url, cache=str(tmp_path / "cache"), timeout=5)


class TestJson(TestJsonl):
    suffix = ".json"

    def written(self, rows: Sequence[Row]) -> bytes:
        return json.dumps(rows, indent=1).encode()


class TestParquet(TestJsonl):
    suffix = ".parquet"

    def written(self, rows: Sequence[Row]) -> bytes:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(
            arrow.Table.from_pylist(list(rows)), file := BytesIO(), row_group_size=2
        )
        return file.getvalue()
