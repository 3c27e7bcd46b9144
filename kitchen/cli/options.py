"""What may be typed after a command, and how a command is carried out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from kitchen.cli.completion import adapters, recipes, runs

if TYPE_CHECKING:
    from kitchen.config.request import AdapterChoice, RunRequest

_SEEN_ENOUGH = 141  # as a program ends whose reader has gone
Text = Optional[str]  # noqa: UP045 Typer evaluates it
RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A module with one recipe in it, or MODULE:CLASS.",
        autocompletion=recipes,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Its name, as `kitchen runs` lists it.", autocompletion=runs
    ),
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Settings in YAML: learning_rate=1e-4 rendering.max_tokens=256",
    ),
]
Config = Annotated[Optional[Path], typer.Option(metavar="FILE", help="A YAML file of settings.")]  # noqa: UP045
Training = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Training adapter.  [default: peft]",
        autocompletion=adapters("training"),
    ),
]
Datasets = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter for data sets.  [default: local]",
        autocompletion=adapters("datasets"),
    ),
]
Hub = Annotated[
    Text,
    typer.Option(
        metavar="NAME", help="Adapter for models.  [default: hf]", autocompletion=adapters("hub")
    ),
]
Blobs = Annotated[
    Text,
    typer.Option(
        metavar="NAME",
        help="Adapter for runs.  [default: local; fsspec if --runs is a URL]",
        autocompletion=adapters("blobs"),
    ),
]
Set = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="PORT.KEY=VALUE",
        help="A setting of an adapter, such as training.device=cpu.",
    ),
]
Runs = Annotated[
    Text, typer.Option(metavar="DIR|URL", help="Where runs are kept.  [default: runs]")
]
NewName = Annotated[
    Text,
    typer.Option(
        "--name", metavar="NAME", help="Of the run.  [default: made from recipe and time]"
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse settings that an adapter does not honour.")
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object on standard output, all else on standard error."),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Log everything, and show the frames of an error.")
]
Preview = Annotated[
    bool, typer.Option("--preview", help="Load tokenizer and data, and show what is trained on.")
]
Online = Annotated[
    bool,
    typer.Option(
        "--online",
        help="Ask the server of the training adapter whether it has the model; it has 3 seconds to answer.",
    ),
]
Cost = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="P",
        min=0,
        help="Of a million tokens: --preview, with what the tokens that it shows cost.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Go on although a process on another host may be at it: say so only if that host is gone.",
    ),
]
OtherMachine = Annotated[
    bool,
    typer.Option(
        "--other-machine",
        help="Go on although processor, device, threads or versions are others: last bits may differ.",
    ),
]


def adapter_choice(
    runs: str | None,
    blobs: str | None,
    training: str | None = None,
    datasets: str | None = None,
    hub: str | None = None,
    adapter: list[str] | None = None,
) -> AdapterChoice:
    from kitchen.config.request import AdapterChoice

    return AdapterChoice(
        {"training": training, "datasets": datasets, "hub": hub, "blobs": blobs},
        tuple(adapter or ()),
        runs,
    )


def request(
    recipe: str,
    settings: list[str] | None,
    config: Path | None,
    chosen: AdapterChoice,
    strict: bool,
) -> RunRequest:
    from kitchen.config.request import RunRequest

    return RunRequest(recipe, tuple(settings or ()), config, chosen, strict)


def carry_out(command: Callable[[], int], debug: bool) -> None:
    from kitchen.cli.commands.failure import exit_code, tell

    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:  # `kitchen schema ... | head`: who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _SEEN_ENOUGH
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 no traceback unless it is asked for
        tell(error, debug=debug)
        code = exit_code(error)
    raise typer.Exit(code)
