"""A report as a Jupyter notebook: Markdown cells, and cells that draw the curves again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kitchen.errors import BackendError
from kitchen.experiments.reports.figures import thinned
from kitchen.runs.reports.content import Curves, Report
from kitchen.runs.reports.markdown import block_text, escaped

_IMPORTS = "import json\n\nimport matplotlib.pyplot as plt"
_DRAW = """curves = json.loads({data})
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
for name, points in curves["series"].items():
    axes.plot(*zip(*points), label=name)
axes.set_xlabel("step")
axes.set_ylabel(curves["unit"], parse_math=False)
axes.set_title(curves["caption"], parse_math=False)
legend = axes.legend()
for text in legend.get_texts():
    text.set_parse_math(False)"""


def files(report: Report, stem: str) -> Sequence[tuple[str, bytes]]:
    """Return the notebook; raises BackendError without nbformat."""
    try:
        import nbformat
    except ImportError as error:
        raise BackendError(
            f"a report as a notebook needs nbformat, which cannot be imported ({error}): "
            "pip install nbformat"
        ) from error
    library: Any = nbformat
    v4 = library.v4
    cells: list[Any] = [
        v4.new_markdown_cell(f"# {escaped(report.title)}\n\n{escaped(report.subtitle)}"),
        v4.new_code_cell(_IMPORTS),
    ]
    for section in report.sections:
        cells.append(v4.new_markdown_cell(f"## {escaped(section.title)}"))
        for block in section.blocks:
            if isinstance(block, Curves):
                cells.append(v4.new_code_cell(_drawing(block)))
            else:
                cells.append(v4.new_markdown_cell(block_text(block)))
    for number, cell in enumerate(cells, 1):
        cell["id"] = f"cell-{number}"  # random ids would change with every report
    notebook = v4.new_notebook(cells=cells)
    return [(f"{stem}.ipynb", library.writes(notebook).encode())]


def _drawing(curves: Curves) -> str:
    """Return code that draws a panel from data in the cell itself."""
    data = {
        "caption": curves.caption,
        "unit": curves.unit,
        "series": {name: thinned(points) for name, points in curves.series.items()},
    }
    return _DRAW.replace("{data}", repr(json.dumps(data)))
