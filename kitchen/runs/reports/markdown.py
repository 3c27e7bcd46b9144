"""Sections of reports and model cards in Markdown; curves are drawn elsewhere or summarised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kitchen.runs.reports.content import Answers, Block, Curves, DataTable, Paragraph, Section
from kitchen.safe_text import escape_controls

# what Markdown, or an extension of it such as formulas, would read as more than text
_SYNTAX = re.compile(r"[\\`|*~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|!(?=\[)")
_LINE_START = re.compile(r"^([#>+-]|\d+[.)])")  # of a heading, a quotation or a list
_SUMMARY = ("curve", "first", "last", "lowest", "at step", "highest", "at step")


def sections_text(sections: Sequence[Section]) -> str:
    """Return sections with their headings; curves are summarised in a table."""
    parts: list[str] = []
    for section in sections:
        parts += [f"## {escaped(section.title)}", *map(block_text, section.blocks)]
    return "\n\n".join(parts)


def block_text(block: Block) -> str:
    """Return a block in Markdown, curves as a table of their first, last and extreme values."""
    return "\n\n".join(_block(block))


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text, strong):
            yield f"**{escaped(text)}**" if strong else line(text)
        case DataTable():
            if block.caption:
                yield f"**{escaped(block.caption)}**"
            rule = "| " + " | ".join(["---"] * len(block.columns)) + " |"
            yield "\n".join([_row(block.columns), rule, *map(_row, block.rows)])
        case Curves():
            yield from _block(DataTable("", _SUMMARY, summaries([block])))
        case Answers():
            yield line(block.caption)
            for answer in block.answers:
                yield _fenced("prompt", answer.prompt)
                if answer.expected:
                    yield _fenced("expected", answer.expected)
                for name, text in answer.texts.items():
                    yield _fenced(name, text)


def summaries(panels: Sequence[Curves]) -> Sequence[tuple[str, ...]]:
    """Return a row for each curve: its first, last, lowest and highest values."""
    rows = []
    for panel in panels:
        for name, points in panel.series.items():
            low, high = (of(points, key=lambda point: point[1]) for of in (min, max))
            values = (points[0][1], points[-1][1])
            ends = [f"{value:.4g}" for value in values]
            extremes = [(f"{value:.4g}", str(step)) for step, value in (low, high)]
            rows.append((name, *ends, *extremes[0], *extremes[1]))
    return rows


def summary_table(panels: Sequence[Curves]) -> Sequence[DataTable]:
    """Return one table of all curves, or none if there are no curves."""
    rows = summaries(panels)
    return [DataTable("", _SUMMARY, rows)] if rows else []


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escaped, cells)) + " |"


def _fenced(name: str, text: str) -> str:
    """Return a code block with a fence longer than any in the text."""
    shown = escape_controls(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{line(name)}:\n\n{fence}text\n{shown}\n{fence}"


def line(text: str) -> str:
    """Return a paragraph of one line, which starts neither a heading nor a list."""
    return _LINE_START.sub(_escape_marker, escaped(text))


def _escape_marker(match: re.Match[str]) -> str:
    return f"{match[1][:-1]}\\{match[1][-1]}"


def escaped(text: str) -> str:
    """Return text on one line, without a meaning in Markdown or HTML."""
    plain = " ".join(escape_controls(text).split())
    return _SYNTAX.sub(r"\\\g<0>", plain.replace("&", "&amp;")).replace("<", "&lt;")
