"""The command line; what a command needs is imported when it is called, so that `kitchen --help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from kitchen.commands.ordering import Larder, Wish

app = typer.Typer(
    name="kitchen", help="Cook recipes for LLM post-training: written once, checked before they run, cooked anywhere.",
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
)
runs_app = typer.Typer(help="The runs that there are.", rich_markup_mode=None, invoke_without_command=True)
app.add_typer(runs_app, name="runs")

Text = Optional[str]  # noqa: UP045 Typer evaluates it
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A module with one recipe in it, or MODULE:CLASS.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Its name, as `kitchen runs` lists it.")]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings in YAML: learning_rate=1e-4 rendering.max_tokens=256")]
Config = Annotated[Optional[Path], typer.Option(metavar="FILE", help="A YAML file of settings.")]  # noqa: UP045
Training = Annotated[Text, typer.Option(metavar="NAME", help="Training adapter.  [default: peft]")]
Datasets = Annotated[Text, typer.Option(metavar="NAME", help="Adapter for data sets.  [default: local]")]
Hub = Annotated[Text, typer.Option(metavar="NAME", help="Adapter for models.  [default: local]")]
Blobs = Annotated[
    Text, typer.Option(metavar="NAME", help="Adapter for runs.  [default: local; fsspec if --runs is a URL]")]
Set = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="PORT.KEY=VALUE", help="A setting of an adapter, such as training.device=cpu.")]
Runs = Annotated[Text, typer.Option(metavar="DIR|URL", help="Where runs are kept.  [default: runs]")]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse settings that an adapter does not honour.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, all else on standard error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log everything, and show the frames of an error.")]

Preview = Annotated[bool, typer.Option("--preview", help="Load tokenizer and data, and show what is trained on.")]
TakeOver = Annotated[bool, typer.Option(
    "--take-over", help="Go on although a process on another host may be at it: say so only if that host is gone.")]
OtherMachine = Annotated[bool, typer.Option(
    "--other-machine", help="Go on although device, threads or versions are others: last bits may differ.")]


def main() -> None:
    """What the console script calls."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has no ½ must not end a run
    app()


@app.command()
def run(
    recipe: RecipeName, settings: Settings = None, config: Config = None, training: Training = None,
    datasets: Datasets = None, hub: Hub = None, blobs: Blobs = None, adapter: Set = None, runs: Runs = None,
    strict: Strict = False, json: Json = False, debug: Debug = False,
) -> None:
    """Cook a recipe.

    Exit codes: 0 done, 1 the run failed, 2 configuration, 3 data, 4 backend, 5 quality gate, 130 interrupted.
    """
    from kitchen.commands.run import Manner
    from kitchen.commands.run import run as cook

    wish = _wish(recipe, settings, config, _larder(runs, blobs, training, datasets, hub, adapter), strict)
    _carry_out(lambda: cook(wish, Manner(json, debug)), debug)


@app.command()
def check(
    recipe: RecipeName, settings: Settings = None, config: Config = None, training: Training = None,
    datasets: Datasets = None, hub: Hub = None, blobs: Blobs = None, adapter: Set = None, runs: Runs = None,
    strict: Strict = False, json: Json = False, debug: Debug = False,
    preview: Preview = False,
) -> None:
    """Show what a recipe would do, and everything that is wrong with it; nothing runs."""
    from kitchen.commands.check import check as show

    wish = _wish(recipe, settings, config, _larder(runs, blobs, training, datasets, hub, adapter), strict)
    _carry_out(lambda: show(wish, json=json, debug=debug, with_preview=preview), debug)


@app.command("list")
def list_(json: Json = False, debug: Debug = False) -> None:
    """The recipes and adapters that there are."""
    from kitchen.commands.catalogue import catalogue

    _carry_out(lambda: catalogue(json=json), debug)


@app.command()
def describe(recipe: RecipeName, json: Json = False, debug: Debug = False) -> None:
    """A recipe's settings, with types, defaults and units; its stages and ports."""
    from kitchen.commands.catalogue import describe as show

    _carry_out(lambda: show(recipe, json=json), debug)


@app.command()
def resume(
    run: RunName, runs: Runs = None, blobs: Blobs = None, other_machine: OtherMachine = False,
    take_over: TakeOver = False, json: Json = False, debug: Debug = False,
) -> None:
    """Go on with a run where it stopped."""
    from kitchen.commands.run import Manner
    from kitchen.commands.run import resume as go_on

    _carry_out(lambda: go_on(run, _larder(runs, blobs), Manner(json, debug, other_machine, take_over)), debug)


@runs_app.callback()
def runs_(
    context: typer.Context, runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False,
) -> None:
    if context.invoked_subcommand is None:
        runs_list(runs, blobs, json, debug)


@runs_app.command("list")
def runs_list(runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False) -> None:
    """All runs, one a line."""
    from kitchen.commands.runs import show_all

    _carry_out(lambda: show_all(_larder(runs, blobs), json=json), debug)


@runs_app.command("show")
def runs_show(run: RunName, runs: Runs = None, blobs: Blobs = None, json: Json = False, debug: Debug = False) -> None:
    """One run: how it went, its settings and where each came from."""
    from kitchen.commands.runs import show_one

    _carry_out(lambda: show_one(run, _larder(runs, blobs), json=json), debug)


def _larder(
    runs: str | None, blobs: str | None, training: str | None = None, datasets: str | None = None,
    hub: str | None = None, adapter: list[str] | None = None,
) -> Larder:
    from kitchen.commands.ordering import Larder

    return Larder({"training": training, "datasets": datasets, "hub": hub, "blobs": blobs}, tuple(adapter or ()), runs)


def _wish(recipe: str, settings: list[str] | None, config: Path | None, larder: Larder, strict: bool) -> Wish:
    from kitchen.commands.ordering import Wish

    return Wish(recipe, tuple(settings or ()), config, larder, strict)


def _carry_out(command: Callable[[], int], debug: bool) -> None:
    from kitchen.commands.failure import exit_code, tell

    try:
        code = command()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 no traceback unless it is asked for
        tell(error, debug=debug)
        code = exit_code(error)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
