"""The command line; what a command needs is imported when it is called, so that `kitchen --help` is
quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kitchen.cli import cooking, serving, weights, workshop

app = typer.Typer(
    name="kitchen", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"crucible-kitchen {version('crucible-kitchen')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it, and exit.")
]


@app.callback()
def kitchen(version: Version = False) -> None:
    """Cook recipes for LLM post-training: written once, checked before they run, cooked anywhere."""


for commands in (cooking, weights, workshop, serving):
    app.add_typer(commands.app)


def main() -> None:
    """What the console script calls."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has no ½ must not end a run
    app()
