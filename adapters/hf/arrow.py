"""Rows of an Arrow file on disk."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from kitchen.errors import BackendError, DataError
from kitchen.ports.datasets import Row


class ArrowRows:
    """What `datasets` prepared: read from a memory-mapped file as rows are asked for, nothing of it stays."""

    def __init__(self, folder: Path, shown: str, fingerprint: str) -> None:
        import pyarrow
        from datasets import DatasetInfo

        self._shown, self.fingerprint = shown, fingerprint
        self._features: Any = DatasetInfo.from_directory(str(folder)).features
        [path] = folder.glob("*.arrow")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader: Any = pyarrow.ipc.open_stream(pyarrow.py_buffer(self._map))
        batches = []
        for batch in reader:
            batches.append(batch)
            self._release()
        self._table: Any = pyarrow.Table.from_batches(batches, reader.schema)
        if not len(self):
            raise DataError(f"{shown}: has no rows; take another split")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._shown}")
        try:
            return dict(self._features.decode_example(self._table.slice(index, 1).to_pylist()[0]))
        except ImportError as error:
            raise BackendError(f"{self.where(index)}: {error}") from error
        except (ValueError, OSError) as error:
            raise DataError(f"{self.where(index)}: cannot be read: {error}") from error
        finally:
            self._release()

    def where(self, index: int) -> str:
        return f"{self._shown} row {index + 1}"

    def _release(self) -> None:
        """Give the pages back: a map counts as this process's memory, 64 kB around each row that was ever read."""
        self._map.madvise(mmap.MADV_DONTNEED)
