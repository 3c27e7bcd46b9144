"""Memoized results of expensive stages outside loops (ADR 5)."""

from __future__ import annotations

import json
from typing import Any

from kitchen.engine.codec import decode, encode, read_sealed
from kitchen.errors import ResumeError
from kitchen.ports.blobs import BlobStore, seal
from kitchen.stage import Stage


class MemoStore:
    """The memoized results of one run, in a BlobStore under `RUN/memo/`."""

    def __init__(self, blobs: BlobStore, run: str) -> None:
        self._blobs = blobs
        self._run = run

    def read(self, stage: Stage, address: str) -> Any:
        """Return what an earlier process stored for the stage at this address, or None.

        The plan checks that the stage's options are the same. Raises ResumeError where its result
        has another form now, CorruptCheckpoint where the file is damaged.
        """
        if self._blobs.read(name := self._name(address)) is None:
            return None
        content = f"the memoized result of {stage.title()}"
        remedy = "delete it, and the resumed run computes it again"
        record = read_sealed(self._blobs, name, content, remedy)
        try:
            pairs = zip(stage.contract().returns, json.loads(record)[name], strict=True)
            values = tuple(decode(kind, text) for kind, text in pairs)
        except (KeyError, TypeError, ValueError) as error:  # ValueError by pydantic too
            raise ResumeError(
                f"{name} is no result of this version of {stage.title()} in this run: start a new "
                "run, resume with the version that wrote it, or delete it to compute it again"
            ) from error
        return values if len(values) > 1 else values[0]

    async def write(self, stage: Stage, address: str, result: Any) -> None:
        contract = stage.contract()
        pairs = zip(contract.returns, contract.values_of(result), strict=True)
        texts = [await encode(kind, value) for kind, value in pairs]
        self._blobs.write(name := self._name(address), seal(json.dumps({name: texts})))

    def _name(self, address: str) -> str:
        return f"{self._run}/memo/{address}.json"
