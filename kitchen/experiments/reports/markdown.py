"""A report in Markdown, with its curves as SVG files beside it."""

from __future__ import annotations

from collections.abc import Sequence

from kitchen.experiments.reports.figures import draw
from kitchen.runs.reports.content import Curves, Report
from kitchen.runs.reports.markdown import block_text, escaped, line


def files(report: Report, stem: str) -> Sequence[tuple[str, bytes]]:
    """Return the Markdown file and its pictures, by name."""
    pictures: list[tuple[str, bytes]] = []
    parts = [f"# {escaped(report.title)}", line(report.subtitle)]
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
