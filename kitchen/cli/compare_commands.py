"""The commands that compare runs and report on them: `kitchen compare` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from kitchen.cli.completion import runs as run_names
from kitchen.cli.options import (
    Blobs,
    Debug,
    Json,
    NewName,
    Runs,
    adapter_choice,
    examples,
    exit_with,
)

app = typer.Typer()

Texts = Optional[list[str]]  # noqa: UP045 Typer evaluates it
Compared = Annotated[
    Texts,
    typer.Argument(
        metavar="RUN...",
        autocompletion=run_names,
        help="Two or more runs, the baseline first. NAME=RUN,RUN,RUN is a group of runs that "
        "differ in their seed, and RUN@before the weights that a run started from.",
    ),
]
Reported = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        autocompletion=run_names,
        help="Runs or sweeps, the baseline first. A sweep stands for its completed points, grouped "
        "by all axes except seed.",
    ),
]
Measures = Annotated[
    Texts,
    typer.Option(
        "--measure",
        metavar="NAME",
        help="Measure to compare, such as exact_match or loss; may be repeated.  [default: all]",
    ),
]
Sets = Annotated[
    Texts,
    typer.Option(
        "--set",
        metavar="NAME",
        help="Held-out set to compare, such as test; may be repeated.  [default: all]",
    ),
]
Margin = Annotated[
    float | None,
    typer.Option(
        metavar="D",
        help="Largest difference that does not matter to you, such as 0.02. Differences within it "
        "can be called the same.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of the data that names the document or conversation of a row, if rows of one "
        "are not independent.",
    ),
]
Correct = Annotated[
    str,
    typer.Option(
        metavar="holm|bh|bonferroni|none",
        help="Correction of the p-values for the number of comparisons shown.",
    ),
]
Alpha = Annotated[
    float, typer.Option(metavar="P", help="Significance level; intervals have 1 - P.")
]
Unpaired = Annotated[
    bool,
    typer.Option(
        "--unpaired",
        help="Compare as evaluations of different items, such as those of two data sets.",
    ),
]
OnlyBaseline = Annotated[
    bool,
    typer.Option(
        "--only-baseline",
        help="Compare each other run with the baseline only, and not all pairs.",
    ),
]
Power = Annotated[
    str | None,
    typer.Option(
        metavar="n=N,baseline=P,difference=D",
        help="Plan an evaluation of right and wrong answers, without runs: the one of the three "
        "that is left out is computed, or the power.",
    ),
]


@app.command(
    epilog=examples(
        "kitchen compare base tuned",
        "kitchen compare tuned@before tuned",
        "kitchen compare base tuned --measure exact_match --margin 0.02",
        "kitchen compare old=old-0,old-1,old-2 new=new-0,new-1,new-2",
        "kitchen compare --power baseline=0.6,difference=0.05",
    )
)
def compare(
    compared: Compared = None,
    measure: Measures = None,
    sets: Sets = None,
    margin: Margin = None,
    cluster: Cluster = None,
    correct: Correct = "holm",
    alpha: Alpha = 0.05,
    unpaired: Unpaired = False,
    only_baseline: OnlyBaseline = False,
    power: Power = None,
    runs: Runs = None,
    blobs: Blobs = None,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare the held-out scores of runs, and name the better one.

    The verdict is better, worse, the same within the margin, or cannot tell. Runs are compared
    item by item, and no model is loaded. The comparison is a new run of recipes.compare.
    """
    from kitchen.cli.commands.compare import CompareRequest
    from kitchen.cli.commands.compare import compare as compare_runs
    from kitchen.cli.commands.run import OutputOptions

    request = CompareRequest(
        tuple(compared or ()),
        tuple(sets or ()),
        tuple(measure or ()),
        margin,
        cluster,
        correct,
        alpha,
        unpaired,
        only_baseline,
    )
    output = OutputOptions(json, debug)
    adapters = adapter_choice(runs, blobs)
    exit_with(lambda: compare_runs(request, power, adapters, output, name), debug=debug, json=json)


Formats = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT,FORMAT",
        help="Formats of the report: html, md, latex, ipynb, or one of an installed package.",
    ),
]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of the report, which is created if needed.")
]


@app.command(
    epilog=examples(
        "kitchen report basil",
        "kitchen report base tuned --format html,md --out reports",
        "kitchen report my-sweep",
    )
)
def report(
    names: Reported,
    formats: Formats = "html",
    out: Out = Path("reports"),
    runs: Runs = None,
    blobs: Blobs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a report of runs or a sweep, as a file that can be sent.

    It begins with the verdict: is the run better than the one before it, by how much, and how sure
    is that? Curves, the evaluation, its statistical analysis, answers side by side, settings and
    provenance follow. A single run is compared with the weights that it started from.
    """
    from kitchen.cli.commands.report import report as write_report

    chosen = [name.strip() for name in formats.split(",")]
    adapters = adapter_choice(runs, blobs)
    exit_with(lambda: write_report(names, chosen, out, adapters, json=json), debug=debug, json=json)
