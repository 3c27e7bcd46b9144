"""HTML built from elements, in which every text is escaped."""

from __future__ import annotations

from html import escape

from kitchen.secrets import printable

_VOID = ("input", "link", "meta")  # elements without content


class Html(str):
    """Markup that may go into a page as it is."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """Return an element; a child that is not Html is text, and an attribute that is False absent.

    `class_` is the attribute class, and underscores in other names are dashes.
    """
    opening = "".join([name, *(_attribute(key, value) for key, value in attributes.items())])
    if name in _VOID:
        return Html(f"<{opening}>")
    return Html(f"<{opening}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Return markup and texts one after the other; texts are escaped."""
    return Html(
        "".join(child if isinstance(child, Html) else _escaped(child) for child in children)
    )


def _attribute(key: str, value: str | bool) -> str:
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    return f' {name}="{_escaped(value)}"'


def _escaped(text: str) -> str:
    """Return a text without secrets, in which neither markup nor control characters act."""
    return escape(printable(text), quote=True)
