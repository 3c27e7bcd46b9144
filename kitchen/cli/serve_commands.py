"""The commands that serve: models with `kitchen serve`, and pages over runs with `kitchen ui`."""

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
    examples,
    exit_with,
)

Host = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Address to listen on; if other machines can reach it, KITCHEN_SERVE_KEY must be set.",
    ),
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")
]
Models = Annotated[
    Optional[list[str]],  # noqa: UP045 Typer evaluates it
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model to serve; may be repeated.  [default: packaged:smollm2-135m-instruct]",
    ),
]
Aliases = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--alias",
        metavar="NAME=MODEL",
        help="Serve a model under another name that clients use; may be repeated.",
    ),
]

Cors = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--cors",
        metavar="ORIGIN",
        help="Origin of web pages that may use the OpenAI API, such as http://localhost:3000; "
        "may be repeated.  [default: none]",
    ),
]

Replica = Annotated[
    bool,
    typer.Option(
        "--replica",
        help="Only sample, also from the weights that another server saves in the same --runs; "
        "clients list both servers in training.base_url.",
    ),
]

app = typer.Typer()


@app.command(
    epilog=examples(
        "kitchen serve",
        "kitchen serve --model packaged:smollm2-135m-instruct --port 9000",
        "kitchen serve --alias Qwen/Qwen3-8B=packaged:smollm2-135m-instruct",
        "kitchen serve --replica --port 8001",
    )
)
def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    model: Models = None,
    alias: Aliases = None,
    cors: Cors = None,
    replica: Replica = False,
    training: Training = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    take_over: TakeOver = False,
    debug: Debug = False,
) -> None:
    """Serve models through the Tinker API and the OpenAI API.

    The Tinker SDK, and programs built on it, can then use this machine. Clients of the OpenAI API
    can sample from the models, from checkpoints, and from runs. If KITCHEN_SERVE_KEY is set,
    clients must send it as TINKER_API_KEY or OPENAI_API_KEY. Checkpoints are stored with the runs.
    """
    from kitchen.cli.commands.serve import ServeOptions, serve_models

    options = ServeOptions(
        tuple(model or ()), tuple(alias or ()), host, port, take_over, tuple(cors or ()), replica
    )
    adapters = adapter_choice(runs, blobs, training, None, hub, adapter)
    exit_with(lambda: serve_models(options, adapters), debug=debug)


ViewHost = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help="Address to listen on; if other machines can reach it, KITCHEN_UI_KEY must be set.",
    ),
]


@app.command(
    epilog=examples("kitchen ui", "kitchen ui --port 9000", "kitchen ui --runs s3://bucket/runs")
)
def ui(
    host: ViewHost = "127.0.0.1",
    port: Port = 8001,
    runs: Runs = None,
    blobs: Blobs = None,
    debug: Debug = False,
) -> None:
    """Serve read-only pages over the runs, for a browser.

    The pages list runs and sweeps, and show curves while a run is in progress, samples, reports and
    comparisons. If KITCHEN_UI_KEY is set, the browser asks for it as a password.
    """
    from kitchen.cli.commands.ui import serve_pages

    exit_with(lambda: serve_pages(host, port, adapter_choice(runs, blobs)), debug=debug)
