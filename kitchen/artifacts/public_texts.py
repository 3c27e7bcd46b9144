"""Texts of published weights, without the folders of this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kitchen.artifacts.weights import parse_weights_name

# a value that is a path on this or another machine
_PATH = re.compile(r"^(path:|file:|~|\.{0,2}/|[A-Za-z]:[\\/]|\\\\)")
# the folders of a path within a text, up to its last part
_FOLDERS = re.compile(
    r"(?<![\w.:/])(?:path:|file://)?~?/(?:[^\s/\"'`,;|]+/)+(?=[^\s/])"
    r"|\b[A-Za-z]:\\(?:[^\s\\\"'`,;|]+\\)+"
)


def without_folders(text: str) -> str:
    """Reduce a path to its last part, or remove the folders of paths within a text."""
    if _PATH.match(text):
        return re.split(r"[\\/]", text.rstrip("\\/"))[-1].removeprefix("path:")
    return _FOLDERS.sub("", text)


def public_value(value: Any) -> Any:
    """Return a value without folders in its strings, at any depth."""
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, Mapping):
        return {without_folders(key): public_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [public_value(inner) for inner in value]
    return value


def public_name(model: str) -> str:
    """Return the name of a model without the folders of this machine."""
    is_path = parse_weights_name(model).kind == "path"
    return f"path:{without_folders(model)}" if is_path else model
