"""A report as one HTML page that needs no script, no other file and no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from kitchen.experiments.reports.figures import inline_svg
from kitchen.runs.reports.content import (
    Answers,
    Block,
    Curves,
    DataTable,
    Paragraph,
    Report,
    Section,
)
from kitchen.safe_text import escape_controls

SUFFIX = ".html"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NUMBER = re.compile(r"[-+]?[\d,.]+( ?%)?")
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #2563eb; }
@media (prefers-color-scheme: dark) { :root { --accent: #93c5fd; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
.subtitle { opacity: .75; margin: .25rem 0 1rem; font-size: .9rem; }
nav a { margin-right: 1em; } a { color: var(--accent); }
.strong { font-size: 1.15rem; font-weight: 600; border-left: 4px solid var(--accent);
  padding-left: .75rem; margin: .75rem 0; }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: normal; min-width: 3rem; }
td.text { min-width: 9rem; overflow-wrap: anywhere; } td.number { text-align: right; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
figure { margin: .5rem 0; } figure svg { width: 100%; height: auto; }
figcaption, summary { font-size: .9rem; font-weight: 600; }
.answer { border: 1px solid var(--line); border-radius: 6px; margin: .75rem 0; padding: .5rem; }
.sides { display: grid; gap: .5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(16rem, 100%), 1fr)); }
.sides h4 { margin: 0; font-size: .8rem; opacity: .75; }
pre { white-space: pre-wrap; margin: 0; padding: .4rem; background: var(--soft);
  border-radius: 4px; font: .8rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
@media print { body { max-width: none; font-size: 11pt; } nav { display: none; }
  figure, .answer, tr { break-inside: avoid; } }
"""


def render(report: Report) -> str:
    """Return the page; all text is escaped, and the page may neither run nor load anything."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(report.title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body(report)}
</body>
</html>
"""


def body(report: Report) -> str:
    """Return the content of the page, which needs STYLE; all text is escaped."""
    links = "".join(
        f'<a href="#{_anchor(at)}">{_text(section.title)}</a>'
        for at, section in enumerate(report.sections)
    )
    sections = "\n".join(_section(at, section) for at, section in enumerate(report.sections))
    return f"""<h1>{_text(report.title)}</h1>
<p class="subtitle">{_text(report.subtitle)}</p>
<nav>{links}</nav>
{sections}"""


def _section(at: int, section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f'<section id="{_anchor(at)}">\n<h2>{_text(section.title)}</h2>\n{blocks}\n</section>'


def _anchor(at: int) -> str:
    return f"section-{at + 1}"


def _block(block: Block) -> str:
    match block:
        case Paragraph(text, strong):
            kind = ' class="strong"' if strong else ""
            return f"<p{kind}>{_text(text)}</p>"
        case DataTable():
            return _table(block)
        case Curves():
            caption = f"<figcaption>{_text(block.caption)}</figcaption>"
            return f"<figure>{caption}{inline_svg(block)}</figure>"
        case Answers():
            return f"<p>{_text(block.caption)}</p>" + "".join(_answers(block))


def _table(table: DataTable) -> str:
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    caption = (
        "" if table.folded or not table.caption else f"<caption>{_text(table.caption)}</caption>"
    )
    element = (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    if not table.folded:
        return element
    return f"<details><summary>{_text(table.caption)}</summary>{element}</details>"


def _cell(value: str) -> str:
    kind = ""
    if _NUMBER.fullmatch(value):
        kind = ' class="number"'
    elif len(value) > 30:
        kind = ' class="text"'
    return f"<td{kind}>{_text(value)}</td>"


def _answers(answers: Answers) -> Iterator[str]:
    for answer in answers.answers:
        sides = {"expected": answer.expected, **answer.texts} if answer.expected else answer.texts
        columns = "".join(_side(name, text) for name, text in sides.items())
        yield (
            f'<div class="answer"><pre>{_text(answer.prompt)}</pre>'
            f'<div class="sides">{columns}</div></div>'
        )


def _side(name: str, text: str) -> str:
    return f"<div><h4>{_text(name)}</h4><pre>{_text(text)}</pre></div>"


def _text(text: str) -> str:
    return escape(escape_controls(text), quote=True)


def files(report: Report, stem: str) -> Sequence[tuple[str, bytes]]:
    """Return the files of the report by name."""
    return [(f"{stem}{SUFFIX}", render(report).encode())]
