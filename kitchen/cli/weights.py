"""`kitchen sample`, `chat`, `eval`, `export` and `push`: to use what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kitchen.cli.completion import runs as run_names
from kitchen.cli.options import (
    Blobs,
    Datasets,
    Debug,
    Hub,
    Json,
    Runs,
    Set,
    Settings,
    Training,
    adapter_choice,
    carry_out,
)

if TYPE_CHECKING:
    from kitchen.artifacts.open import SamplingParams

app = typer.Typer()

Weights = Annotated[
    str,
    typer.Argument(
        metavar="WEIGHTS",
        autocompletion=run_names,
        help="RUN[@STEP|final|best], or NAME[@REVISION], packaged:NAME, path:FOLDER. A run brings its own adapters.",
    ),
]
Length = Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of an answer, at most.")]
Heat = Annotated[float, typer.Option(metavar="T", min=0, help="0 is greedy.")]
TopP = Annotated[
    float, typer.Option(metavar="P", help="Draw from the likeliest tokens of this share together.")
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Of what is drawn.")]
System = Annotated[
    str, typer.Option(metavar="TEXT", help="The system message.", show_default=False)
]


@app.command()
def sample(
    weights: Weights,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A text; - is standard input.")],
    n: Annotated[int, typer.Option("--n", metavar="N", min=1, help="How many completions.")] = 1,
    max_tokens: Length = 256,
    temperature: Heat = 0.7,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    system: System = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on with the text as it is, without chat template.")
    ] = False,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What weights make of a prompt."""
    from kitchen.cli.commands.sample import sample as draw

    chosen, how = (
        adapter_choice(runs, blobs, training, None, hub, adapter),
        drawing(max_tokens, temperature, top_p, seed),
    )
    carry_out(
        lambda: draw(weights, prompt, chosen, how, count=n, system=system, raw=raw, json=json),
        debug,
    )


@app.command()
def chat(
    weights: Weights,
    system: System = "",
    max_tokens: Length = 512,
    temperature: Heat = 0.7,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    debug: Debug = False,
) -> None:
    """Talk with weights; /help shows what can be typed."""
    from kitchen.cli.commands.chat import chat as talk

    chosen, how = (
        adapter_choice(runs, blobs, training, None, hub, adapter),
        drawing(max_tokens, temperature, top_p, seed),
    )
    carry_out(lambda: talk(weights, chosen, how, system), debug)


def drawing(max_tokens: int, temperature: float, top_p: float, seed: int) -> SamplingParams:
    from kitchen.artifacts.open import SamplingParams

    return SamplingParams(max_tokens, temperature, top_p, seed)


@app.command("eval")
def evaluate(
    weights: Weights,
    dataset: Annotated[
        str, typer.Option("--dataset", metavar="NAME", help="A data set, or a file.")
    ],
    settings: Settings = None,
    training: Training = None,
    datasets: Datasets = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate weights on held-out data, as a run of recipes.evaluate with these settings.

    Evaluated are all splits but "train", or, where there is no other, that one. Data is rendered as
    the run was trained, unless `rendering...` is given.
    """
    from kitchen.cli.commands.evaluate import evaluate as examine
    from kitchen.cli.commands.run import OutputOptions

    chosen = adapter_choice(runs, blobs, training, datasets, hub, adapter)
    carry_out(
        lambda: examine(weights, dataset, settings or (), chosen, OutputOptions(json, debug)), debug
    )


@app.command()
def export(
    weights: Weights,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.")],
    merged: Annotated[
        bool, typer.Option("--merged", help="A whole model, in float32, instead of an adapter.")
    ] = False,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    debug: Debug = False,
) -> None:
    """Write weights for other programs: an adapter that peft opens, or a model that transformers
    opens.
    """
    from kitchen.cli.commands.export import export as write

    carry_out(
        lambda: write(
            weights,
            folder,
            adapter_choice(runs, blobs, training, None, hub, adapter),
            merged=merged,
        ),
        debug,
    )


@app.command()
def push(
    weights: Weights,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Where to, at the hub.")],
    private: Annotated[
        Optional[bool],  # noqa: UP045 Typer evaluates it
        typer.Option(
            "--private/--public", help="Of a repository that is made.", show_default=False
        ),
    ] = None,
    message: Annotated[
        str, typer.Option(metavar="TEXT", help="Of the commit.", show_default=False)
    ] = "",
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    debug: Debug = False,
) -> None:
    """Publish weights as an adapter, with a model card."""
    from kitchen.cli.commands.push import push as send

    chosen = adapter_choice(runs, blobs, training, None, hub, adapter)
    carry_out(lambda: send(weights, repo, chosen, message=message, private=private), debug)
