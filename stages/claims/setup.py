"""Conversion of a SciFact folder to prompts and completions, with the digest of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kitchen.backend.atomic_folder import atomic_folder, check_folder_unused
from kitchen.errors import ConfigError, DataError
from kitchen.types import Table
from stages.claims.rows import ClaimRow, scifact_row
from stages.claims.scifact import Document, read_claims, read_corpus

CORPUS_FILE = "corpus.jsonl"
DIGESTS_FILE = "data.json"
# split -> file of claims; only the first is required
SPLITS: Mapping[str, str] = {
    "train": "claims_train.jsonl",
    "dev": "claims_dev.jsonl",
    "test": "claims_test.jsonl",
}


def set_up_data(source: Path, out: Path) -> Table:
    """Write one JSONL file per split of a SciFact folder, and their digests, into a new folder.

    A row has a prompt, a completion and metadata. Claims without evidence, which test files have,
    get no completion. Nothing is downloaded. Raises ConfigError for a folder in use, DataError
    naming file, line and field, and leaves nothing behind then.
    """
    if not source.is_dir():
        raise ConfigError(f"there is no folder {source}; give one with {', '.join(_needed())}")
    missing = [name for name in _needed() if not (source / name).is_file()]
    if missing:
        raise DataError(f"{source}: there is no {' and no '.join(missing)}")
    check_folder_unused(out.expanduser())
    corpus = read_corpus(source / CORPUS_FILE)
    files = {split: name for split, name in SPLITS.items() if (source / name).is_file()}
    sources = {CORPUS_FILE: _described(source / CORPUS_FILE, len(corpus))}
    splits: dict[str, Any] = {}
    with atomic_folder(out) as part:
        for split, name in files.items():
            rows = _rows(source / name, corpus, split)
            sources[name] = _described(source / name, len(rows))
            splits[split] = _write(part / f"{split}.jsonl", rows)
        digests = {"source": str(source), "sources": sources, "splits": splits}
        (part / DIGESTS_FILE).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")
    return _table(out, splits)


def _needed() -> Sequence[str]:
    return (CORPUS_FILE, SPLITS["train"])


def _rows(path: Path, corpus: Mapping[str, Document], split: str) -> list[ClaimRow]:
    rows = [scifact_row(claim, corpus) for claim in read_claims(path, corpus)]
    for row in rows:
        if row.answer is None and split == "train":
            raise DataError(
                f"{row.where}: evidence is missing, so there is nothing to learn from; a claim "
                "without information has the evidence {}"
            )
    return rows


def _write(path: Path, rows: Sequence[ClaimRow]) -> dict[str, Any]:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_lines(rows))
    answers = sum(row.answer is not None for row in rows)
    return {"file": path.name, **_described(path, len(rows)), "completions": answers}


def _lines(rows: Sequence[ClaimRow]) -> Iterator[str]:
    for row in rows:
        entry: dict[str, Any] = {"id": row.id, "prompt": row.prompt}
        if row.answer is not None:
            entry["completion"] = row.answer.text()
        entry["metadata"] = {"documents": list(row.documents), "source": row.where}
        yield json.dumps(entry, ensure_ascii=False) + "\n"


def _described(path: Path, rows: int) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"rows": rows, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _table(out: Path, splits: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (split, f"{found['rows']:,}", f"{found['completions']:,}", found["sha256"][:12])
        for split, found in splits.items()
    ]
    rows += [(split, "no file", "", "") for split in SPLITS if split not in splits]
    columns = ("split", "rows", "completions", "SHA-256 begins")
    return Table(f"Data in {out}", columns, tuple(rows))
