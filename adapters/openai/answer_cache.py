"""Answers on disk by the content of their requests, so that none is paid for twice."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from kitchen.backend.atomic_folder import write_atomically

log = structlog.get_logger("kitchen.openai")
_WEIGHTS = "weights"  # folder of digests, and in their keys the endpoint
_FORMAT = 2  # of requests and entries; another number leaves older entries unread


def request_key(address: str, endpoint: str, body: Mapping[str, Any], weights: str = "") -> str:
    """Return the SHA-256 of a request, its seed included, in hex; the API key is no part of it.

    `weights` is the digest of those that answer, where the server tells it.
    """
    return _sha256(json.dumps([_FORMAT, address, endpoint, body, weights], sort_keys=True))


class AnswerCache:
    """A folder of answers that several processes may use at once; without one, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.lock = threading.Lock()  # for a read and a write that belong together
        self._folder = folder
        self._warned = False

    @property
    def keeps(self) -> bool:
        return self._folder is not None

    def read(self, key: str) -> Any:
        """Return an answer, or None; a damaged one is ignored with a warning."""
        if self._folder is None:
            return None
        path = self._path(self._folder, key)
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            return _ignored(path, error)
        try:
            entry = json.loads(text)
            if entry["sha256"] != _sha256(entry["answer"]):
                raise ValueError("its SHA-256 is another one")
            return json.loads(entry["answer"])
        except (ValueError, KeyError, TypeError) as error:
            return _ignored(path, error)

    def write(self, key: str, answer: Any) -> None:
        """Keep an answer; a folder that cannot be written costs only the next run its money."""
        if self._folder is None:
            return
        text = json.dumps(answer)
        entry = json.dumps({"sha256": _sha256(text), "answer": text})
        try:
            write_atomically(self._path(self._folder, key), entry.encode())
        except OSError as error:
            if not self._warned:
                log.warning(
                    "answers cannot be cached, so a resumed run asks for them again",
                    folder=str(self._folder),
                    reason=str(error),
                )
            self._warned = True

    def last_weights(self, address: str, model: str) -> str | None:
        """Return the last known digest of the weights of a server; None without one."""
        last = self._weights.read(request_key(address, _WEIGHTS, {"model": model}))
        return last if isinstance(last, str) else None

    def note_weights(self, address: str, model: str, sha256: str) -> None:
        """Keep the digest of a server's weights, "" where it tells none."""
        if self.last_weights(address, model) != sha256:
            self._weights.write(request_key(address, _WEIGHTS, {"model": model}), sha256)

    @property
    def _weights(self) -> AnswerCache:
        return AnswerCache(None if self._folder is None else self._folder / _WEIGHTS)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.json"


def _ignored(path: Path, error: Exception) -> None:
    log.warning(
        "a cached answer is damaged and is asked for again", file=str(path), reason=str(error)
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
