"""Texts of errors as clients see them: without secrets and without the server's folders."""

from __future__ import annotations

import re

import structlog

from adapters.server.records import ROOT
from kitchen.artifacts.public_texts import without_folders
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.serve")
LONGEST = 2000  # characters of a message; requests may have names of millions
_WORD = re.compile(r"[^\s'\"`]+")
_STORE = re.compile(rf"\b{ROOT}/")
# names within our folder of the blob store
_CHECKPOINT = re.compile(r"(?:kept|encrypted)/([^\s/]+/[^\s/]+/[^\s/]+)/[0-9a-f]{8}")
_SNAPSHOT = re.compile(r"own/([^\s/:]+)")
_API_PATH = re.compile(r"(?<=\s)/(?:api|oai|v1)/\S+")


def error_text(error: Exception) -> str:
    """Return the class and the message of an error for an answer."""
    return public_text(f"{type(error).__name__}: {error}")


def public_text(message: str, given: str = "") -> str:
    """Return a message without secrets and folders, cut to a length that is quick to search.

    Names in the blob store become those that clients use, and other paths lose their folders. The
    server's log then has the full text. `given` is a name from the request, which is repeated as
    it is where the message quotes it.
    """
    full = short_text(message)
    parts = full.split(repr(given)) if given else [full]
    text = repr(given).join(map(_without_places, parts))
    if text != full:
        log.warning("an answer leaves out folders of this server", error=full)
    return text


def short_text(message: str) -> str:
    """Return a message without secrets, cut to the length that answers may have."""
    full = mask(message)
    if len(full) <= LONGEST:
        return full
    return f"{full[:LONGEST]}... ({len(full) - LONGEST:,} more characters)"


def _without_places(text: str) -> str:
    text = _WORD.sub(lambda match: _without_store(match[0]), text)
    return _outside_api_paths(text)


def _without_store(word: str) -> str:
    """Return a word, such as a path or URL, without the blob store's place and our folder there."""
    places = list(_STORE.finditer(word))
    if not places:
        return word
    name = word[places[-1].end() :]
    if match := _CHECKPOINT.match(name):
        return f"tinker://{match[1].replace('~', ':')}{name[match.end() :]}"
    if match := _SNAPSHOT.match(name):
        return f"sampling session {match[1].replace('~', ':')}{name[match.end() :]}"
    return name


def _outside_api_paths(text: str) -> str:
    """Remove the folders of paths, except of the API's own."""
    kept = _API_PATH.findall(text)
    parts = [without_folders(part) for part in _API_PATH.split(text)]
    return "".join(part + path for part, path in zip(parts, [*kept, ""], strict=True))
