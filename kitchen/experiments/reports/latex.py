"""A report in LaTeX, with its curves as PDF files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kitchen.experiments.reports.figures import draw
from kitchen.runs.reports.content import (
    Answers,
    Block,
    Curves,
    DataTable,
    Paragraph,
    Report,
)
from kitchen.safe_text import escape_controls

_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "`": r"\textasciigrave{}",
        "'": r"\textquotesingle{}",
        "-": "{-}",  # no dashes of several hyphens
        "[": "{[}",  # after a line break, both belong to its command
        "*": "{*}",
    }
)
_BREAKABLE = re.compile(r"(?<=[/_.,:;=-])(?=\w)")
_PREAMBLE = r"""% compile with xelatex or lualatex
\documentclass[10pt,a4paper]{article}
\usepackage[margin=2cm]{geometry}
\usepackage{fontspec}
\usepackage{graphicx,longtable,array,textcomp}
% a font with more characters, for names and answers in other scripts, if it is installed
\IfFontExistsTF{Noto Sans CJK SC}{\setmainfont{Noto Sans CJK SC}}{%
  \IfFontExistsTF{DejaVu Sans}{\setmainfont{DejaVu Sans}}{}}
\setlength{\parindent}{0pt}\setlength{\parskip}{6pt}\sloppy
"""


def files(report: Report, stem: str) -> Sequence[tuple[str, bytes]]:
    """Return the LaTeX file and its pictures, by name."""
    pictures: list[tuple[str, bytes]] = []
    parts = [f"\\section*{{{_text(report.title)}}}", _text(report.subtitle)]
    for section in report.sections:
        parts.append(f"\\subsection*{{{_text(section.title)}}}")
        for block in section.blocks:
            if isinstance(block, Curves):
                name = f"{stem}-{len(pictures) + 1}.pdf"
                pictures.append((name, draw(block, "pdf")))
                parts.append(_figure(block, name))
            else:
                parts += _block(block)
    body = "\n\n".join(parts)
    text = f"{_PREAMBLE}\\begin{{document}}\n{body}\n\\end{{document}}\n"
    return [(f"{stem}.tex", text.encode()), *pictures]


def _figure(curves: Curves, name: str) -> str:
    return (
        f"\\textbf{{{_text(curves.caption)}}}\\\\\n\\includegraphics[width=\\linewidth]{{{name}}}"
    )


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text, strong):
            yield f"\\textbf{{\\large {_text(text)}}}" if strong else _text(text)
        case DataTable():
            yield _table(block)
        case Answers():
            yield _text(block.caption)
            for answer in block.answers:
                expected = {"expected": answer.expected} if answer.expected else {}
                for name, text in {"prompt": answer.prompt, **expected, **answer.texts}.items():
                    yield f"\\textbf{{{_text(name)}}}\\\\\n{_lines(text)}"
                yield "\\hrule"


def _table(table: DataTable) -> str:
    widths = _shares(table)
    columns = "".join(
        f">{{\\raggedright\\arraybackslash}}p{{{width:.3f}\\linewidth}}" for width in widths
    )
    caption = f"\\textbf{{{_text(table.caption)}}}\n" if table.caption else ""
    rows = " \\\\\n".join(_row(row) for row in table.rows)
    return (
        f"{caption}{{\\footnotesize\n\\begin{{longtable}}{{@{{}}{columns}@{{}}}}\n"
        f"{_row(table.columns)} \\\\\n\\hline\n\\endhead\n{rows}\n\\end{{longtable}}}}"
    )


def _shares(table: DataTable) -> Sequence[float]:
    """Return the share of the line of each column, by the length of its longest cells."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    lengths = [min(max(map(len, column)), 60) + 3 for column in columns]
    gaps = 0.03 * len(columns)
    return [max(0.03, (1 - gaps) * length / sum(lengths)) for length in lengths]


def _row(cells: Sequence[str]) -> str:
    return " & ".join(map(_text, cells))


def _lines(text: str) -> str:
    """Return text whose lines stay lines."""
    lines = [_text(line) for line in text.splitlines()]
    return " \\\\\n".join(line or "\\mbox{}" for line in lines) or "\\mbox{}"


def _text(text: str) -> str:
    """Return text without a meaning in LaTeX, which may break at punctuation within words."""
    pieces = _BREAKABLE.split(" ".join(escape_controls(text).split()))
    return "\\allowbreak{}".join(piece.translate(_SPECIAL) for piece in pieces)
