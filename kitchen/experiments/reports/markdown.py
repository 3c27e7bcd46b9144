"""A report in Markdown, with its curves as SVG files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kitchen.experiments.reports.content import (
    Answers,
    Block,
    Curves,
    DataTable,
    Paragraph,
    Report,
)
from kitchen.experiments.reports.figures import draw
from kitchen.safe_text import escape_controls

_SYNTAX = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")


def files(report: Report, stem: str) -> Sequence[tuple[str, bytes]]:
    """Return the Markdown file and its pictures, by name."""
    pictures: list[tuple[str, bytes]] = []
    parts = [f"# {escaped(report.title)}", escaped(report.subtitle)]
    for section in report.sections:
        parts.append(f"## {escaped(section.title)}")
        for block in section.blocks:
            if isinstance(block, Curves):
                name = f"{stem}-{len(pictures) + 1}.svg"
                pictures.append((name, draw(block, "svg")))
                parts.append(f"![{escaped(block.caption)}]({name})")
            else:
                parts.append(block_text(block))
    return [(f"{stem}.md", ("\n\n".join(parts) + "\n").encode()), *pictures]


def block_text(block: Block) -> str:
    """Return a block other than curves in Markdown."""
    return "\n\n".join(_block(block))


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text, strong):
            yield f"**{escaped(text)}**" if strong else escaped(text)
        case DataTable():
            if block.caption:
                yield f"**{escaped(block.caption)}**"
            rule = "|" + " --- |" * len(block.columns)
            yield "\n".join([_row(block.columns), rule, *map(_row, block.rows)])
        case Answers():
            yield escaped(block.caption)
            for answer in block.answers:
                yield _fenced("prompt", answer.prompt)
                if answer.expected:
                    yield _fenced("expected", answer.expected)
                for name, text in answer.texts.items():
                    yield _fenced(name, text)


def _row(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {escaped(cell)} |" for cell in cells)


def _fenced(name: str, text: str) -> str:
    """Return a code block with a fence longer than any in the text."""
    shown = escape_controls(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{escaped(name)}:\n\n{fence}text\n{shown}\n{fence}"


def escaped(text: str) -> str:
    """Return text on one line, without a meaning in Markdown or HTML."""
    return _SYNTAX.sub(r"\\\1", " ".join(escape_controls(text).split()))
