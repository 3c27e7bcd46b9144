"""Cards and licences at a hub that somebody wrote or edited there, and that a push keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable

import structlog

from kitchen.ports.blobs import sha256

CARD = "README.md"
_LICENCE = re.compile(r"(licen[cs]e|copying|notice)([-_.][\w.-]*)?", re.ASCII | re.IGNORECASE)
_SIGNATURE = "<!-- written by crucible-kitchen, SHA-256 of the text above: {} -->"
_SIGNED = re.compile(re.escape(_SIGNATURE).replace(r"\{\}", "([0-9a-f]{64})"))


def sign_card(card: str) -> str:
    """Return a card that ends with its digest, by which a later push sees whether it was edited."""
    text = card.rstrip()
    return f"{text}\n\n{_SIGNATURE.format(sha256(text))}\n"


def is_protected(path: str) -> bool:
    """Return whether a push replaces a file only if nobody edited it."""
    return path == CARD or _LICENCE.fullmatch(path) is not None


def was_edited(path: str, published: bytes, new: bytes) -> bool:
    """Return whether a published card or licence is not ours, and differs from the new one."""
    if published == new or not published.strip():
        return False
    return path != CARD or not _has_signature(published)


def warn_of_kept(repo: str, paths: Iterable[str]) -> None:
    """Log which files of a repository a push has kept."""
    for path in paths:
        structlog.get_logger("kitchen.artifacts").warning(
            f"{path} of {repo} was written or edited there, and is kept; "
            "`kitchen push --replace-card` replaces it"
        )


def _has_signature(card: bytes) -> bool:
    text, _, signature = card.decode("utf-8", "replace").rstrip().rpartition("\n\n")
    signed = _SIGNED.fullmatch(signature)
    return signed is not None and signed[1] == sha256(text)
