"""`kitchen serve`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from kitchen.cli.options import (
    Blobs,
    Debug,
    Hub,
    Runs,
    Set,
    TakeOver,
    Training,
    adapter_choice,
    carry_out,
)

Host = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="Where to listen; others than this machine need a key."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")]
Models = Annotated[
    Optional[list[str]],  # noqa: UP045 Typer evaluates it
    typer.Option(
        "--model",
        metavar="NAME",
        help="A model to serve.  [default: packaged:smollm2-135m-instruct]",
    ),
]
Aliases = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--alias",
        metavar="NAME=MODEL",
        help="Serve a model under another name, for clients that know it.",
    ),
]

app = typer.Typer()


@app.command()
def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    model: Models = None,
    alias: Aliases = None,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    take_over: TakeOver = False,
    debug: Debug = False,
) -> None:
    """Serve models of this machine by the Tinker API: its SDK, and what is built on it, then work
    against them.

    With KITCHEN_SERVE_KEY set, clients must bring it as TINKER_API_KEY. Checkpoints are kept with
    the runs.
    """
    from kitchen.cli.commands.serve import serve as keep_serving

    chosen = adapter_choice(runs, blobs, training, None, hub, adapter)
    carry_out(
        lambda: keep_serving(
            model or [], alias or [], host, port, chosen, take_over=take_over, debug=debug
        ),
        debug,
    )
