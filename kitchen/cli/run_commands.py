"""The commands around runs: `kitchen run`, `check`, `describe`, `resume`, `watch`, and others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kitchen.cli.completion import runs as run_names
from kitchen.cli.options import (
    AcceptLostMetrics,
    Blobs,
    Configs,
    Datasets,
    Debug,
    Hub,
    Json,
    NewName,
    Observe,
    Online,
    OtherCode,
    OtherMachine,
    Preview,
    Price,
    RecipeOrFile,
    RunName,
    Runs,
    Sampling,
    Set,
    Settings,
    SettingsCommand,
    Strict,
    TakeOver,
    Training,
    Trust,
    Yaml,
    adapter_choice,
    examples,
    exit_with,
    run_request,
)

Watched = Annotated[
    str,
    typer.Argument(metavar="RUN|SWEEP", help="Name of a run or a sweep.", autocompletion=run_names),
]

app = typer.Typer()
runs_app = typer.Typer(
    help="List the runs, show one of them, or export its rows.",
    epilog=examples("kitchen runs", "kitchen runs show RUN"),
    rich_markup_mode=None,
    invoke_without_command=True,
)
app.add_typer(runs_app, name="runs")


@app.command(
    cls=SettingsCommand,
    epilog=examples(
        "kitchen run recipes.sl_basic --training fake",
        "kitchen run recipes.sl_basic dataset=rows.jsonl epochs=3 --name first",
        "kitchen run recipes.dpo --config dpo.yaml --set training.device=cpu",
        "kitchen run my.yaml epochs=2",
        "kitchen run recipes.sl_basic --observe tensorboard --observe wandb:project=soup",
    ),
)
def run(
    recipe: RecipeOrFile,
    settings: Settings = None,
    config: Configs = None,
    training: Training = None,
    sampling: Sampling = None,
    datasets: Datasets = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    observe: Observe = None,
    strict: Strict = False,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a recipe and record the run.

    The exit code is 0 if the run completed, 1 if it failed, 2 for a mistake in the configuration, 3
    for bad data, 4 for a backend problem, 5 for a missed quality target and 130 if the run was
    interrupted.
    """
    from kitchen.cli.commands.run import OutputOptions
    from kitchen.cli.commands.run import run as run_recipe

    adapters = adapter_choice(runs, blobs, training, datasets, hub, adapter, sampling=sampling)
    request = run_request(recipe, settings, config, adapters, strict, observe)
    exit_with(lambda: run_recipe(request, OutputOptions(json, debug), name), debug=debug, json=json)


@app.command(
    cls=SettingsCommand,
    epilog=examples(
        "kitchen check recipes.sl_basic",
        "kitchen check recipes.sl_basic dataset=rows.jsonl --training fake --preview",
        "kitchen check recipes.sl_basic --training tinker --online --price 0.4",
    ),
)
def check(
    recipe: RecipeOrFile,
    settings: Settings = None,
    config: Configs = None,
    training: Training = None,
    sampling: Sampling = None,
    datasets: Datasets = None,
    hub: Hub = None,
    blobs: Blobs = None,
    adapter: Set = None,
    runs: Runs = None,
    observe: Observe = None,
    strict: Strict = False,
    json: Json = False,
    debug: Debug = False,
    preview: Preview = False,
    price: Price = None,
    online: Online = False,
) -> None:
    """Show the plan of a recipe and every problem, without running it.

    The exit code is the one that `kitchen run` would return.
    """
    from kitchen.cli.commands.check import CheckOptions
    from kitchen.cli.commands.check import check as check_recipe

    adapters = adapter_choice(runs, blobs, training, datasets, hub, adapter, sampling=sampling)
    request = run_request(recipe, settings, config, adapters, strict, observe)
    options = CheckOptions(json, debug, preview or price is not None, price, online)
    exit_with(lambda: check_recipe(request, options), debug=debug, json=json)


@app.command("list", epilog=examples("kitchen list", "kitchen list --json"))
def list_(json: Json = False, debug: Debug = False) -> None:
    """List the recipes and adapters that are available here."""
    from kitchen.cli.commands.list import list_recipes_and_adapters

    exit_with(lambda: list_recipes_and_adapters(json=json), debug=debug, json=json)


@app.command(
    epilog=examples(
        "kitchen describe recipes.sl_basic", "kitchen describe recipes.dpo --yaml > my.yaml"
    )
)
def describe(
    recipe: RecipeOrFile, yaml: Yaml = False, json: Json = False, debug: Debug = False
) -> None:
    """Describe the settings, stages and ports of a recipe.

    Each setting is shown with its default, type, meaning and unit.
    """
    from kitchen.cli.commands.describe import describe_recipe

    exit_with(lambda: describe_recipe(recipe, json=json, yaml=yaml), debug=debug, json=json or yaml)


@app.command(
    epilog=examples("kitchen resume RUN", "kitchen resume RUN --runs s3://bucket/runs --take-over")
)
def resume(
    run: RunName,
    runs: Runs = None,
    blobs: Blobs = None,
    observe: Observe = None,
    other_machine: OtherMachine = False,
    take_over: TakeOver = False,
    accept_lost_metrics: AcceptLostMetrics = False,
    other_code: OtherCode = False,
    trust: Trust = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Resume a run that stopped or failed.

    The run continues from its last save point. Its results are the same, to the last bit, as those
    of a run that never stopped.
    """
    from kitchen.cli.commands.run import OutputOptions
    from kitchen.cli.commands.run import resume as resume_run

    options = OutputOptions(json, debug, other_machine, take_over, accept_lost_metrics, other_code)
    adapters = adapter_choice(runs, blobs, trust=trust)
    exit_with(lambda: resume_run(run, adapters, options, observe or ()), debug=debug, json=json)


Interval = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two looks at the run.")
]


@app.command(
    epilog=examples("kitchen watch RUN", "kitchen watch SWEEP", "kitchen watch RUN --interval 10")
)
def watch(
    run: Watched,
    interval: Interval = 1.0,
    runs: Runs = None,
    blobs: Blobs = None,
    debug: Debug = False,
) -> None:
    """Watch a run or a sweep that another process executes.

    The view shows the progress, curves, log and samples, and ends with the run. Ctrl-C ends the
    view, not the run. Without a terminal, lines are printed. The exit code is the run's, 1 if its
    process was killed, or 130 after Ctrl-C.
    """
    from kitchen.cli.commands.watch import watch as watch_run

    exit_with(lambda: watch_run(run, adapter_choice(runs, blobs), interval), debug=debug)


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


@runs_app.command(
    "list", epilog=examples("kitchen runs list", "kitchen runs list --runs s3://bucket/runs")
)
def runs_list(
    runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False
) -> None:
    """List all runs, one per line."""
    from kitchen.cli.commands.runs import list_all_runs

    exit_with(lambda: list_all_runs(adapter_choice(runs, blobs), json=json), debug=debug, json=json)


@runs_app.command("show", epilog=examples("kitchen runs show RUN", "kitchen runs show RUN --json"))
def runs_show(
    run: RunName, runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False
) -> None:
    """Show the outcome of a run, and where each setting came from."""
    from kitchen.cli.commands.runs import show_run

    exit_with(lambda: show_run(run, adapter_choice(runs, blobs), json=json), debug=debug, json=json)


Parquet = Annotated[bool, typer.Option("--parquet", help="Write Parquet files.")]
ExportOut = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of the files, new or empty.", show_default="RUN-parquet"
    ),
]


@runs_app.command(
    "export",
    epilog=examples(
        "kitchen runs export RUN --parquet", "kitchen runs export RUN --parquet --out tables"
    ),
)
def runs_export(
    run: RunName,
    parquet: Parquet = False,
    out: ExportOut = None,
    runs: Runs = None,
    blobs: Blobs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Export metrics, port calls, samples and tables of a run.

    Each of them becomes one Parquet file, with a column for each key. pandas, Polars and DuckDB
    read these files.
    """
    from kitchen.cli.commands.runs import export_run

    adapters = adapter_choice(runs, blobs)
    exit_with(
        lambda: export_run(run, adapters, out, parquet=parquet, json=json), debug=debug, json=json
    )
