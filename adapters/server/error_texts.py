"""Texts of errors as clients see them: without secrets and without the server's folders."""

from __future__ import annotations

import re

import structlog

from adapters.server.records import ROOT
from kitchen.artifacts.public_texts import without_folders
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.serve")
_STORE = rf"[^\s'\"`]*\b{ROOT}/"  # the blob store's place, which may be a URL, and our folder there
_CHECKPOINT = re.compile(rf"{_STORE}(?:kept|encrypted)/([^\s/]+/[^\s/]+/[^\s/]+)/[0-9a-f]{{8}}")
_SNAPSHOT = re.compile(rf"{_STORE}own/([^\s/'\"`:]+)")
_OTHER = re.compile(_STORE)
_API_PATH = re.compile(r"(?<=\s)/(?:api|oai|v1)/\S+")


def error_text(error: Exception) -> str:
    """Return the class and the message of an error for an answer."""
    return public_text(f"{type(error).__name__}: {error}")


def public_text(message: str) -> str:
    """Return a message without secrets and folders.

    Names in the blob store become those that clients use, and other paths lose their folders. The
    server's log then has the full text.
    """
    full = mask(message)
    text = _CHECKPOINT.sub(lambda match: f"tinker://{match[1].replace('~', ':')}", full)
    text = _SNAPSHOT.sub(lambda match: f"sampling session {match[1].replace('~', ':')}", text)
    text = _outside_api_paths(_OTHER.sub("", text))
    if text != full:
        log.warning("an answer leaves out folders of this server", error=full)
    return text


def _outside_api_paths(text: str) -> str:
    """Remove the folders of paths, except of the API's own."""
    kept = _API_PATH.findall(text)
    parts = [without_folders(part) for part in _API_PATH.split(text)]
    return "".join(part + path for part, path in zip(parts, [*kept, ""], strict=True))
