"""The commands of the registry: `kitchen models`, and its `add`, `alias` and `show`."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from kitchen.cli.completion import models, runs
from kitchen.cli.options import (
    Blobs,
    Debug,
    Json,
    Runs,
    Training,
    Trust,
    adapter_choice,
    examples,
    exit_with,
)

app = typer.Typer()
models_app = typer.Typer(
    help="Give weights names and versions, and list or show them.",
    epilog=examples(
        "kitchen models",
        "kitchen models add soup run:basil@best --alias champion",
        "kitchen models show soup@champion",
        "kitchen chat model:soup@champion",
    ),
    rich_markup_mode=None,
    invoke_without_command=True,
)
app.add_typer(models_app, name="models")

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")]
VersionName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[@VERSION|ALIAS]",
        autocompletion=models,
        help="A model, and one of its versions by number or alias.  [default: the newest]",
    ),
]
OfRun = Annotated[
    str,
    typer.Argument(metavar="RUN[@STEP|final|best]", autocompletion=runs, help="Weights of a run."),
]
Alias = Annotated[
    Optional[str],  # noqa: UP045 Typer evaluates it
    typer.Option(metavar="NAME", help="Alias to give to this version, such as champion."),
]
NewAlias = Annotated[str, typer.Argument(metavar="ALIAS", help="The alias, such as champion.")]


@models_app.callback()
def models_(
    context: typer.Context,
    runs: Runs = None,
    blobs: Blobs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    if context.invoked_subcommand is None:
        models_list(runs, blobs, json, debug)


@models_app.command("list", epilog=examples("kitchen models list", "kitchen models list --json"))
def models_list(
    runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False
) -> None:
    """List all models with their versions and aliases."""
    from kitchen.cli.commands.models import list_models

    exit_with(lambda: list_models(adapter_choice(runs, blobs), json=json), debug=debug, json=json)


@models_app.command(
    epilog=examples(
        "kitchen models add soup basil", "kitchen models add soup run:basil@best --alias champion"
    )
)
def add(
    name: ModelName,
    weights: OfRun,
    alias: Alias = None,
    training: Training = None,
    runs: Runs = None,
    blobs: Blobs = None,
    trust: Trust = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Add weights of a run as the next version of a model.

    Commands and recipes accept the version as model:MODEL@VERSION, and model:MODEL for the newest.
    """
    from kitchen.cli.commands.models import add_model

    adapters = adapter_choice(runs, blobs, training, trust=trust)
    exit_with(
        lambda: add_model(name, weights, alias or "", adapters, json=json), debug=debug, json=json
    )


@models_app.command(epilog=examples("kitchen models alias soup@3 champion"))
def alias(
    version: VersionName,
    alias: NewAlias,
    runs: Runs = None,
    blobs: Blobs = None,
    debug: Debug = False,
) -> None:
    """Let an alias stand for a version, in place of any before."""
    from kitchen.cli.commands.models import alias_model

    exit_with(lambda: alias_model(version, alias, adapter_choice(runs, blobs)), debug=debug)


@models_app.command(
    epilog=examples("kitchen models show soup", "kitchen models show soup@champion --json")
)
def show(
    version: VersionName,
    runs: Runs = None,
    blobs: Blobs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a version of a model, its lineage and its evaluation."""
    from kitchen.cli.commands.models import show_model

    exit_with(
        lambda: show_model(version, adapter_choice(runs, blobs), json=json), debug=debug, json=json
    )
