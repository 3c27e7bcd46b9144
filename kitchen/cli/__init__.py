"""The command line; each command imports what it needs when called, so `kitchen --help` is fast."""

from __future__ import annotations

import atexit
import sys
from typing import Annotated

import typer

from kitchen.cli import (
    author_commands,
    compare_commands,
    model_commands,
    run_commands,
    serve_commands,
    sweep_commands,
    weights_commands,
)
from kitchen.cli.options import examples
from kitchen.cli.process_end import ProcessEnd
from kitchen.cli.streams import READER_GONE, prepare_streams
from kitchen.errors import KitchenError

app = typer.Typer(
    name="kitchen", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"crucible-kitchen {version('crucible-kitchen')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
]


@app.callback(
    epilog=examples(
        "kitchen list",
        "kitchen check recipes.sl_basic --training fake",
        "kitchen run recipes.sl_basic --training fake",
    )
)
def kitchen(version: Version = False) -> None:
    """Cook recipes for LLM post-training.

    A recipe is written once, checked before it runs, and cooked anywhere.
    """


for commands in (
    run_commands,
    sweep_commands,
    compare_commands,
    weights_commands,
    model_commands,
    author_commands,
    serve_commands,
):
    app.add_typer(commands.app)


def main() -> None:
    """Run the command line; the entry point of the console script."""
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run a command line, and end the process with its exit code."""
    prepare_streams()
    end = ProcessEnd()
    atexit.register(end.skip_finalisation)
    try:
        app()
    except SystemExit as exit_request:
        end.code = exit_request.code
        raise
    except BrokenPipeError:  # `kitchen --help | true`
        sys.exit(READER_GONE)
    except KitchenError as error:  # --help that cannot be printed
        sys.exit(f"error: {error}")
