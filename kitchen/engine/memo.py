"""Answers of expensive stages outside loops, kept in the run (ADR 5)."""

from __future__ import annotations

import json
from typing import Any

from kitchen.engine.codec import read_back, write_down
from kitchen.errors import ResumeError
from kitchen.ports.blobs import BlobStore
from kitchen.stage import Stage


def read_answer(blobs: BlobStore, run: str, stage: Stage, at: str) -> Any:
    """What an earlier process wrote down, or None.

    Raises ResumeError where its values have another form now; that its options are the same, the
    plan says.
    """
    written = blobs.read(_name(run, at))
    if written is None:
        return None
    kinds = stage.contract().returns
    try:
        values = tuple(
            read_back(kind, text) for kind, text in zip(kinds, json.loads(written), strict=True)
        )
    except ValueError as error:  # of pydantic too
        raise ResumeError(
            f"run {run!r} began with another version of {stage.title()}, whose answer has another "
            "form; "
            "start a new run, or go on with that version"
        ) from error
    return values if len(kinds) > 1 else values[0]


async def keep_answer(blobs: BlobStore, run: str, stage: Stage, at: str, result: Any) -> None:
    contract = stage.contract()
    texts = [
        await write_down(*each)
        for each in zip(contract.returns, contract.parts(result), strict=True)
    ]
    blobs.write(_name(run, at), json.dumps(texts).encode())


def _name(run: str, at: str) -> str:
    return f"{run}/kept/{at}.json"
