"""Arguments and options that commands share, and how a command runs and ends."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from kitchen.cli.completion import adapters, recipes, recipes_and_files, runs
from kitchen.cli.setting_completion import settings
from kitchen.cli.streams import READER_GONE, only_answers_on_stdout

if TYPE_CHECKING:
    from kitchen.config.adapter_choice import AdapterChoice
    from kitchen.config.request import RunRequest

Text = Optional[str]  # noqa: UP045 Typer evaluates it
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="Module or file that defines one recipe, such as recipes.dpo or recipes/my_dpo.py, or "
        "MODULE:CLASS.",
        autocompletion=recipes,
    ),
]
RecipeOrFile = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE|FILE",
        help="Module or file that defines one recipe, such as recipes.dpo or recipes/my_dpo.py, "
        "MODULE:CLASS, or a YAML file that names the recipe.",
        autocompletion=recipes_and_files,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Name of a run; `kitchen runs` lists them.", autocompletion=runs
    ),
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings of the recipe, such as learning_rate=1e-4 rendering.max_tokens=256; values "
        "are YAML.",
        autocompletion=settings,
    ),
]
Configs = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read settings and adapters from a YAML file; may be repeated, and later files "
        "override earlier ones.",
    ),
]
Training = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter that trains and samples.  [default: peft]",
        autocompletion=adapters("training"),
    ),
]
Sampling = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter that samples from models of other services, named as in openai:MODEL.  "
        "[default: openai]",
        autocompletion=adapters("sampling"),
    ),
]
Datasets = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter that reads data sets.  [default: local]",
        autocompletion=adapters("datasets"),
    ),
]
Hub = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter that fetches and publishes models.  [default: hf]",
        autocompletion=adapters("hub"),
    ),
]
Blobs = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter that stores runs.  [default: local; fsspec if --runs is a URL]",
        autocompletion=adapters("blobs"),
    ),
]
Set = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="PORT.KEY=VALUE",
        help="Setting of an adapter, such as training.device=cpu; may be repeated.",
    ),
]
Observe = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--observe",
        metavar="NAME[:KEY=VALUE,...]",
        help="Send the run to a tracker, such as trackio, tensorboard, mlflow or "
        "wandb:project=soup; may be repeated.",
        autocompletion=adapters("observers"),
    ),
]
Runs = Annotated[
    Text,
    typer.Option(
        metavar="DIR|URL", help="Folder or URL in which runs are stored.  [default: runs]"
    ),
]
NewName = Annotated[
    Text,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the new run.  [default: made of the recipe's name and the time]",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse settings that an adapter does not honour.")
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object to standard output, and everything else to standard error.",
    ),
]
Yaml = Annotated[
    bool,
    typer.Option(
        "--yaml",
        help="Print a YAML file for `kitchen run` instead, with every setting at its default and a "
        "comment.",
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show debug logs and the traceback of an error.")
]
Preview = Annotated[
    bool,
    typer.Option(
        "--preview", help="Load the tokenizer and the data, and show what the run would train on."
    ),
]
Online = Annotated[
    bool,
    typer.Option(
        "--online",
        help="Ask the server of the training adapter, or else the hub, whether it has the model, "
        "and try each feature of a server that trains.",
    ),
]
AskServer = Annotated[
    bool,
    typer.Option(
        "--online",
        help="Ask the hosted Tinker service, too, if TINKER_API_KEY is set. A server at "
        "TINKER_BASE_URL is always asked.",
    ),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="P",
        min=0,
        help="Price per million tokens; shows what the tokens cost, and implies --preview.",
    ),
]
AcceptLostMetrics = Annotated[
    bool,
    typer.Option(
        "--accept-lost-metrics",
        help="Resume although recorded metrics, tables or samples are lost or damaged.",
    ),
]
OtherCode = Annotated[
    bool,
    typer.Option(
        "--other-code",
        help="Resume although the code of the recipe, or code that it uses, has changed.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Load the recipe, the adapters and the functions (MODULE:function, such as a reward) "
        "that the record of the run names, even if they are not installed here. This runs their "
        "code: use it only for runs that you trust.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Continue even if a process on another host may still be running; use it only if that "
        "host is gone.",
    ),
]
OtherMachine = Annotated[
    bool,
    typer.Option(
        "--other-machine",
        help="Resume even if the processor, device, number of devices or threads, versions or the "
        "address of a server of models differ; results may then differ in the last bits.",
    ),
]


def examples(*commands: str) -> str:
    """Return the epilog of a command's help: its examples, one per line (\\b keeps the lines)."""
    lines = [f"  {command}" for command in commands]
    return "\n".join(["\b", "Examples:", *lines])


def adapter_choice(
    runs: str | None,
    blobs: str | None,
    training: str | None = None,
    datasets: str | None = None,
    hub: str | None = None,
    adapter_settings: list[str] | None = None,
    *,
    sampling: str | None = None,
    trust: bool = False,
) -> AdapterChoice:
    """Return the adapters chosen by the options of a command."""
    from kitchen.config.adapter_choice import AdapterChoice

    names = {
        "training": training,
        "sampling": sampling,
        "datasets": datasets,
        "hub": hub,
        "blobs": blobs,
    }
    return AdapterChoice(names, tuple(adapter_settings or ()), runs, trust)


def run_request(
    recipe: str,
    settings: list[str] | None,
    configs: list[Path] | None,
    adapters: AdapterChoice,
    strict: bool,
    observe: list[str] | None = None,
) -> RunRequest:
    """Return the request that the arguments of `kitchen run` or `kitchen check` make."""
    from kitchen.config.request import RunRequest

    return RunRequest(
        recipe,
        tuple(settings or ()),
        tuple(configs or ()),
        adapters,
        strict,
        observe=tuple(observe or ()),
    )


def exit_with(command: Callable[[], int], *, debug: bool, json: bool = False) -> None:
    """Run a command and exit with its code; report an error, without a traceback by default.

    `json`: a program reads standard output, so nothing but the answer goes there.
    """
    from kitchen.backend.logs import configure
    from kitchen.cli.commands.errors import exit_code, report_error

    configure(debug)
    try:
        with only_answers_on_stdout(json):
            code = command()
        sys.stdout.flush()
    except BrokenPipeError:  # `kitchen schema ... | head`: the reader has closed the pipe
        code = READER_GONE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 reported here, shown by --debug
        report_error(error, debug=debug)
        code = exit_code(error)
    raise typer.Exit(code)


class SettingsCommand(TyperCommand):
    """A command that takes settings of a recipe, and explains how they are written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; `--epochs 3` is an error that says to write `epochs=3`."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as caught:
            error: Any = caught
            # the error of an unknown option, whose class is in typer's own copy of click
            if hasattr(error, "possibilities"):
                option, known = error.option_name, error.possibilities or []
                if not get_close_matches(option, known, cutoff=0.85):
                    error.message = f"No such option: {option}. {_as_setting(option, given)}"
            raise


def _as_setting(option: str, args: Sequence[str]) -> str:
    """Return how to write an option as a setting, with the value that was given."""
    name = option.lstrip("-").replace("-", "_")
    value = "VALUE"
    for at, arg in enumerate(args):
        if arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
        elif arg == option and at + 1 < len(args) and not args[at + 1].startswith("--"):
            value = args[at + 1]
    return f"Settings of a recipe are written without dashes: {name}={shlex.quote(value)}"
