"""The commands for authors of recipes: `kitchen new`, `copy`, `doctor`, `schema` and `data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from kitchen.cli.completion import ports
from kitchen.cli.options import (
    AskServer,
    Datasets,
    Debug,
    Json,
    RecipeName,
    RecipeOrFile,
    Runs,
    Text,
    adapter_choice,
    examples,
    exit_with,
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of the new module: a letter, then letters, digits and underscores.",
    ),
]
Folder = Annotated[
    Path,
    typer.Argument(
        metavar="[DIR]",
        help="Folder to write into.  [default: the current folder]",
        show_default=False,
    ),
]
To = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--to",
        metavar="FILE",
        help="File to write.  [default: recipes/my_NAME.py]",
        show_default=False,
    ),
]
Port = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Port of the adapter: training, datasets, hub or blobs.",
        autocompletion=ports,
    ),
]
Servers = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--server",
        metavar="URL",
        help="Tinker server to ask; may be repeated, as for replicas.  [default: TINKER_BASE_URL]",
        show_default=False,
    ),
]
DatasetName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Data set, written like the `dataset` setting of a recipe."
    ),
]
Split = Annotated[
    Text, typer.Option(metavar="NAME", help="Split whose rows are shown.  [default: the first]")
]
Rows = Annotated[int, typer.Option(min=1, help="Number of rows to show.")]

app = typer.Typer()
new_app = typer.Typer(
    help="Write a new recipe, stage or adapter, and a test for it.",
    epilog=examples("kitchen new recipe soup", "kitchen new adapter cloud --port blobs"),
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(new_app, name="new")


@new_app.command(
    "recipe", epilog=examples("kitchen new recipe soup", "kitchen new recipe soup my_project")
)
def new_recipe(name: Name, folder: Folder = Path(), debug: Debug = False) -> None:
    """Write a recipe that is ready to train, and a test for it.

    The files are DIR/recipes/NAME.py and DIR/tests/test_NAME.py.
    """
    from kitchen.cli.commands.new import new

    exit_with(lambda: new("recipe", name, folder), debug=debug)


@new_app.command("stage", epilog=examples("kitchen new stage count_words"))
def new_stage(name: Name, folder: Folder = Path(), debug: Debug = False) -> None:
    """Write a stage, and a test that calls it.

    The files are DIR/stages/NAME.py and DIR/tests/test_NAME.py.
    """
    from kitchen.cli.commands.new import new

    exit_with(lambda: new("stage", name, folder), debug=debug)


@new_app.command(
    "adapter",
    epilog=examples("kitchen new adapter cluster", "kitchen new adapter cloud --port blobs"),
)
def new_adapter(
    name: Name, folder: Folder = Path(), port: Port = "training", debug: Debug = False
) -> None:
    """Write the skeleton of an adapter, and tests for it.

    The files are DIR/adapters/NAME.py and DIR/tests/test_NAME.py. The tests are the laws of the
    port: the first one that fails tells you what to write next.
    """
    from kitchen.cli.commands.new import new

    exit_with(lambda: new("adapter", name, folder, port), debug=debug)


@app.command(
    epilog=examples("kitchen copy recipes.dpo", "kitchen copy recipes.dpo --to recipes/pairs.py")
)
def copy(recipe: RecipeName, to: To = None, debug: Debug = False) -> None:
    """Copy the source of a recipe into your folder, to change it.

    The copy is a separate recipe. It still imports the stages that are installed. No file is
    overwritten.
    """
    from kitchen.cli.commands.copy import copy as copy_recipe

    exit_with(lambda: copy_recipe(recipe, to), debug=debug)


@app.command(epilog=examples("kitchen doctor", "kitchen doctor --json"))
def doctor(
    runs: Runs = None,
    json: Json = False,
    debug: Debug = False,
    online: AskServer = False,
    server: Servers = None,
) -> None:
    """Show what is installed, what is missing, and how to install it.

    The exit code is 4 if anything that recipes.sl_basic needs is missing. The Tinker server at
    TINKER_BASE_URL, or each --server, is asked whether it answers, accepts the key, and which
    models it serves.
    """
    from kitchen.cli.commands.doctor import doctor as examine

    adapters = adapter_choice(runs, None)
    exit_with(
        lambda: examine(adapters, json=json, online=online, servers=server or ()),
        debug=debug,
        json=json,
    )


@app.command(
    epilog=examples(
        "kitchen schema recipes.sl_basic > sl_basic.schema.json",
        "kitchen schema thinker > thinker.schema.json",
    )
)
def schema(recipe: RecipeOrFile, debug: Debug = False) -> None:
    """Print the settings of a recipe as a JSON schema.

    Editors can use it to check and complete the YAML files of a run. For `thinker`, it is the
    schema of the files of a pipeline.
    """
    from kitchen.cli.commands.schema import print_schema

    exit_with(lambda: print_schema(recipe), debug=debug, json=True)


@app.command(
    epilog=examples(
        "kitchen data ingredients",
        "kitchen data rows.jsonl --rows 10",
        "kitchen data OWNER/NAME --datasets hf --split test",
    )
)
def data(
    name: DatasetName,
    datasets: Datasets = None,
    split: Split = None,
    rows: Rows = 3,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the splits, columns and first rows of a data set."""
    from kitchen.cli.commands.data import DataQuery, show_data

    query = DataQuery(name, split, rows)
    adapters = adapter_choice(None, None, datasets=datasets)
    exit_with(lambda: show_data(query, adapters, json=json), debug=debug, json=json)
