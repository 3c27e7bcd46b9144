"""`kitchen new`, `doctor`, `schema` and `data`: to make recipes, and to see what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kitchen.cli.completion import ports
from kitchen.cli.options import (
    Datasets,
    Debug,
    Json,
    RecipeName,
    Runs,
    Text,
    adapter_choice,
    carry_out,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and _, first a letter.")]
Folder = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Where to.  [default: here]", show_default=False)
]
Port = Annotated[
    str,
    typer.Option(metavar="NAME", help="training, datasets, hub or blobs.", autocompletion=ports),
]
DatasetName = Annotated[str, typer.Argument(metavar="NAME", help="As a recipe's `dataset`.")]
Split = Annotated[
    Text, typer.Option(metavar="NAME", help="Show rows of this one.  [default: the first]")
]
Rows = Annotated[int, typer.Option(min=1, help="How many to show.")]

app = typer.Typer()
new_app = typer.Typer(
    help="Write a recipe, stage or adapter of your own, and its test.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(new_app, name="new")


@new_app.command("recipe")
def new_recipe(name: Name, folder: Folder = Path(), debug: Debug = False) -> None:
    """A recipe that trains as it is: DIR/recipes/NAME.py and DIR/tests/test_NAME.py."""
    from kitchen.cli.commands.new import new

    carry_out(lambda: new("recipe", name, folder), debug)


@new_app.command("stage")
def new_stage(name: Name, folder: Folder = Path(), debug: Debug = False) -> None:
    """A stage: DIR/stages/NAME.py and DIR/tests/test_NAME.py."""
    from kitchen.cli.commands.new import new

    carry_out(lambda: new("stage", name, folder), debug)


@new_app.command("adapter")
def new_adapter(
    name: Name, folder: Folder = Path(), port: Port = "training", debug: Debug = False
) -> None:
    """An adapter to be written: DIR/adapters/NAME.py, and the laws in DIR/tests/test_NAME.py that
    say what is next.
    """
    from kitchen.cli.commands.new import new

    carry_out(lambda: new("adapter", name, folder, port), debug)


@app.command()
def doctor(runs: Runs = None, json: Json = False, debug: Debug = False) -> None:
    """What is installed and reachable here, and what is missing, with the command that mends it.

    Exit code 4 if something is missing that recipes.sl_basic needs.
    """
    from kitchen.cli.commands.doctor import doctor as look

    carry_out(lambda: look(adapter_choice(runs, None), json=json), debug)


@app.command()
def schema(recipe: RecipeName, debug: Debug = False) -> None:
    """The settings of a recipe as JSON schema: editors check and complete a --config file with it."""
    from kitchen.cli.commands.schema import schema as show

    carry_out(lambda: show(recipe), debug)


@app.command()
def data(
    name: DatasetName,
    datasets: Datasets = None,
    split: Split = None,
    rows: Rows = 3,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What is in a data set: splits, columns and the first rows."""
    from kitchen.cli.commands.data import Look
    from kitchen.cli.commands.data import data as show

    carry_out(
        lambda: show(
            Look(name, split, rows), adapter_choice(None, None, datasets=datasets), json=json
        ),
        debug,
    )
