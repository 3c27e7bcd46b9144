"""`kitchen run`, `check`, `list`, `describe`, `resume` and `runs`."""

from __future__ import annotations

import typer

from kitchen.cli.options import (
    Blobs,
    Config,
    Cost,
    Datasets,
    Debug,
    Hub,
    Json,
    NewName,
    Online,
    OtherMachine,
    Preview,
    RecipeName,
    RunName,
    Runs,
    Set,
    Settings,
    Strict,
    TakeOver,
    Training,
    adapter_choice,
    carry_out,
    request,
)

app = typer.Typer()
runs_app = typer.Typer(
    help="The runs that there are.", rich_markup_mode=None, invoke_without_command=True
)
app.add_typer(runs_app, name="runs")


@app.command()
def run(
    recipe: RecipeName,
    settings: Settings = None,
    config: Config = None,
    training: Training = None,
    datasets: Datasets = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    strict: Strict = False,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Cook a recipe.

    Exit codes: 0 done, 1 the run failed, 2 configuration, 3 data, 4 backend, 5 quality gate, 130
    interrupted.
    """
    from kitchen.cli.commands.run import OutputOptions
    from kitchen.cli.commands.run import run as cook

    wished = request(
        recipe,
        settings,
        config,
        adapter_choice(runs, blobs, training, datasets, hub, adapter),
        strict,
    )
    carry_out(lambda: cook(wished, OutputOptions(json, debug), name), debug)


@app.command()
def check(
    recipe: RecipeName,
    settings: Settings = None,
    config: Config = None,
    training: Training = None,
    datasets: Datasets = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    strict: Strict = False,
    json: Json = False,
    debug: Debug = False,
    preview: Preview = False,
    price: Cost = None,
    online: Online = False,
) -> None:
    """Show what a recipe would do, and everything that is wrong with it; nothing runs."""
    from kitchen.cli.commands.check import check as show

    wished = request(
        recipe,
        settings,
        config,
        adapter_choice(runs, blobs, training, datasets, hub, adapter),
        strict,
    )
    carry_out(
        lambda: show(
            wished,
            json=json,
            debug=debug,
            with_preview=preview or price is not None,
            price=price,
            online=online,
        ),
        debug,
    )


@app.command("list")
def list_(json: Json = False, debug: Debug = False) -> None:
    """The recipes and adapters that there are."""
    from kitchen.cli.commands.catalogue import catalogue

    carry_out(lambda: catalogue(json=json), debug)


@app.command()
def describe(recipe: RecipeName, json: Json = False, debug: Debug = False) -> None:
    """A recipe's settings, with types, defaults and units; its stages and ports."""
    from kitchen.cli.commands.catalogue import describe as show

    carry_out(lambda: show(recipe, json=json), debug)


@app.command()
def resume(
    run: RunName,
    runs: Runs = None,
    blobs: Blobs = None,
    other_machine: OtherMachine = False,
    take_over: TakeOver = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Go on with a run where it stopped."""
    from kitchen.cli.commands.run import OutputOptions
    from kitchen.cli.commands.run import resume as go_on

    carry_out(
        lambda: go_on(
            run, adapter_choice(runs, blobs), OutputOptions(json, debug, other_machine, take_over)
        ),
        debug,
    )


@runs_app.callback()
def runs_(
    context: typer.Context,
    runs: Runs = None,
    blobs: Blobs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    if context.invoked_subcommand is None:
        runs_list(runs, blobs, json, debug)


@runs_app.command("list")
def runs_list(
    runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False
) -> None:
    """All runs, one a line."""
    from kitchen.cli.commands.runs import show_all

    carry_out(lambda: show_all(adapter_choice(runs, blobs), json=json), debug)


@runs_app.command("show")
def runs_show(
    run: RunName, runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False
) -> None:
    """One run: how it went, its settings and where each came from."""
    from kitchen.cli.commands.runs import show_one

    carry_out(lambda: show_one(run, adapter_choice(runs, blobs), json=json), debug)
