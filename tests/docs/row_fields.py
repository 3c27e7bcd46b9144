"""Writes the tables of docs/reference/data-formats.md: `python -m tests.docs.row_fields`."""

from __future__ import annotations

import re
from pathlib import Path

from stages.chat.row_fields import FIELDS, RowField

PAGE = Path(__file__).parents[2] / "docs/reference/data-formats.md"
COMMAND = "python -m tests.docs.row_fields"
_TABLE = re.compile(r"(<!-- fields of a ([a-z ]+) -->\n).*?(?=\n\n|\Z)", re.DOTALL)
_HEAD = "| field | used by | treatment | details |\n| --- | --- | --- | --- |"


def with_tables(text: str) -> str:
    """Return the text of the page with the table of each level after its comment."""
    return _TABLE.sub(lambda found: found[1] + table(found[2]), text)


def table(level: str) -> str:
    """Return the table of the fields of a level."""
    return "\n".join([_HEAD, *(_line(field) for field in FIELDS if field.level == level)])


def _line(field: RowField) -> str:
    details = field.note
    if field.fallback:
        details = f"unless the row has another format: {details}"
    return f"| `{field.name}` | {field.used_by} | {field.treatment} | {details} |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
