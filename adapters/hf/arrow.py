"""Rows of an Arrow file on disk."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from kitchen.errors import BackendError, DataError
from kitchen.ports.datasets import Row


class DamagedArrow(BackendError):
    """Prepared rows that are missing, incomplete, or not in the Arrow format."""


class ArrowRows:
    """Rows that `datasets` prepared, read on demand from a memory-mapped file."""

    def __init__(self, folder: Path, label: str, fingerprint: str) -> None:
        from datasets import DatasetInfo

        self._label = label
        self.fingerprint = fingerprint
        try:
            [path] = folder.glob("*.arrow")
            info = DatasetInfo.from_directory(str(folder))
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._table = self._read_table()
            expected = sum(split.num_examples for split in info.splits.values())
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise _damaged(folder, label, error) from error
        self._features: Any = info.features
        if len(self) != expected:
            raise _damaged(folder, label, f"{len(self)} rows of {expected}")
        if not expected:
            raise DataError(f"{label}: has no rows; use another split")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} in {self._label}")
        try:
            return dict(self._features.decode_example(self._table.slice(index, 1).to_pylist()[0]))
        except ImportError as error:
            raise BackendError(f"{self.where(index)}: {error}") from error
        except (ValueError, OSError) as error:
            raise DataError(f"{self.where(index)}: cannot be read: {error}") from error
        finally:
            self._release()

    def where(self, index: int) -> str:
        return f"{self._label} row {index + 1}"

    def _read_table(self) -> Any:
        import pyarrow

        reader: Any = pyarrow.ipc.open_stream(pyarrow.py_buffer(self._map))
        batches = []
        for batch in reader:
            batches.append(batch)
            self._release()
        return pyarrow.Table.from_batches(batches, reader.schema)

    def _release(self) -> None:
        """Release the mapped pages.

        They count as this process's memory, 64 kB around each row that was ever read.
        """
        self._map.madvise(mmap.MADV_DONTNEED)


def _damaged(folder: Path, label: str, reason: object) -> DamagedArrow:
    return DamagedArrow(
        f"{label}: its prepared rows in {folder} cannot be read ({reason}); delete the folder, "
        "check the disk and try again"
    )
