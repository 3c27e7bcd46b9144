"""The local adapters obey the laws of their ports."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from adapters.fake.hub import FakeHub
from adapters.local.blobs import LocalBlobs
from adapters.local.datasets import LocalDatasets
from adapters.local.fsspec import FsspecBlobs
from adapters.local.hub import LocalHub
from kitchen.testing.blobs import BlobLaws
from kitchen.testing.datasets import Data, DatasetLaws
from kitchen.testing.hub import HubLaws


class TestLocalBlobs(BlobLaws):
    def store(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(root=str(tmp_path / "blobs"))


class TestFsspecMemory(BlobLaws):
    def store(self, tmp_path: Path) -> FsspecBlobs:
        pytest.importorskip("fsspec")
        return FsspecBlobs(
            f"memory://{uuid4().hex}"
        )  # all memory:// paths of a process share a store


class TestFsspecFolder(BlobLaws):
    def store(self, tmp_path: Path) -> FsspecBlobs:
        pytest.importorskip("fsspec")
        return FsspecBlobs(f"file://{tmp_path}/blobs")


class TestJsonlFolders(DatasetLaws):
    def store(self, tmp_path: Path, data: Data) -> LocalDatasets:
        for name, splits in data.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for split, rows in splits.items():
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
                (tmp_path / name / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        return LocalDatasets(root=str(tmp_path))


class TestJsonFolders(DatasetLaws):
    def store(self, tmp_path: Path, data: Data) -> LocalDatasets:
        for name, splits in data.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for split, rows in splits.items():
                (tmp_path / name / f"{split}.json").write_text(
                    json.dumps(rows, indent=1), encoding="utf-8"
                )
        return LocalDatasets(root=str(tmp_path))


class TestParquetFolders(DatasetLaws):
    def store(self, tmp_path: Path, data: Data) -> LocalDatasets:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        for name, splits in data.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for split, rows in splits.items():
                parquet.write_table(
                    arrow.Table.from_pylist(list(rows)), tmp_path / name / f"{split}.parquet"
                )
        return LocalDatasets(root=str(tmp_path))


class TestLocalHub(HubLaws):
    unknown_model = "path:no-such-folder"
    publishes = False

    @pytest.fixture(autouse=True)
    def _folder(self) -> None:
        self._models = FakeHub()
        self.model = f"path:{self._models.fetch('fake/bigram')}"

    def hub(self, tmp_path: Path) -> LocalHub:
        return LocalHub(cache=str(tmp_path))
