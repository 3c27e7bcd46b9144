"""Rows of an Arrow file on disk."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from kitchen.errors import BackendError, DataError
from kitchen.ports.datasets import Row


class Damaged(BackendError):
    """What was prepared is not there, not whole, or no Arrow."""


class ArrowRows:
    """What `datasets` prepared: read from a memory-mapped file as rows are asked for, nothing of it
    stays.
    """

    def __init__(self, folder: Path, shown: str, fingerprint: str) -> None:
        from datasets import DatasetInfo

        self._shown, self.fingerprint = shown, fingerprint
        try:
            [path] = folder.glob("*.arrow")
            info = DatasetInfo.from_directory(str(folder))
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._table = self._opened()
            told = sum(each.num_examples for each in info.splits.values())
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise _damaged(folder, shown, error) from error
        self._features: Any = info.features
        if len(self) != told:
            raise _damaged(folder, shown, f"{len(self)} rows of {told}")
        if not told:
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

    def _opened(self) -> Any:
        import pyarrow

        reader: Any = pyarrow.ipc.open_stream(pyarrow.py_buffer(self._map))
        batches = []
        for batch in reader:
            batches.append(batch)
            self._release()
        return pyarrow.Table.from_batches(batches, reader.schema)

    def _release(self) -> None:
        """Give the pages back: a map counts as this process's memory, 64 kB around each row that
        was ever read.
        """
        self._map.madvise(mmap.MADV_DONTNEED)


def _damaged(folder: Path, shown: str, why: object) -> Damaged:
    return Damaged(
        f"{shown}: what was prepared of it in {folder} cannot be read ({why}); delete the folder, "
        "see to "
        "the disk and try again"
    )
