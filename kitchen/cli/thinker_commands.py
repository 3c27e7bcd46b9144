"""The command line `thinker`: validate, train and evaluate by a pipeline file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kitchen.cli import run_app
from kitchen.cli.options import Debug, Json, NewName, Runs, Strict, Text, examples
from kitchen.cli.streams import READER_GONE, only_answers_on_stdout

app = typer.Typer(
    name="thinker", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)
data_app = typer.Typer(
    help="Prepare data for a pipeline.",
    epilog=examples("thinker data setup scifact --out data"),
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")

ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="The pipeline file.")]
BackendName = Annotated[
    Text,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Backend to train on: hf_peft, tinker, or fake, which needs no model.  [default: that "
        "of the pipeline file]",
    ),
]
SkipValidation = Annotated[
    bool,
    typer.Option(
        "--skip-validation",
        help="Run no tests and validate no data; the record of the run says so.",
    ),
]


@app.callback(epilog=examples("thinker validate", "thinker --config scifact.yaml run"))
def thinker(context: typer.Context, config: ConfigFile = Path("pipeline.yaml")) -> None:
    """Validate data, train on it and evaluate the weights, by one pipeline file.

    Nothing is trained or evaluated unless the tests and the data pass. Exit codes are those of
    `kitchen`, and 6 for tests that failed.
    """
    context.obj = config


@app.command(epilog=examples("thinker validate", "thinker validate --json"))
def validate(
    context: typer.Context,
    runs: Runs = None,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run the test suite, and validate the data against its schema."""
    _run("validate", context, runs=runs, name=name, json=json, debug=debug)


@app.command(epilog=examples("thinker train", "thinker train --backend tinker"))
def train(
    context: typer.Context,
    backend: BackendName = None,
    skip_validation: SkipValidation = False,
    runs: Runs = None,
    strict: Strict = False,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Validate, train, and export the weights."""
    _run("train", context, backend, skip_validation, runs, name, strict, json, debug)


@app.command("eval", epilog=examples("thinker eval", "thinker eval --skip-validation"))
def evaluate(
    context: typer.Context,
    backend: BackendName = None,
    skip_validation: SkipValidation = False,
    runs: Runs = None,
    strict: Strict = False,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Validate, and evaluate the exported weights on claims."""
    _run("eval", context, backend, skip_validation, runs, name, strict, json, debug)


@app.command(epilog=examples("thinker run", "thinker run --backend fake --name trial"))
def run(
    context: typer.Context,
    backend: BackendName = None,
    skip_validation: SkipValidation = False,
    runs: Runs = None,
    strict: Strict = False,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Validate, train, export the weights and evaluate them, in one run."""
    _run("run", context, backend, skip_validation, runs, name, strict, json, debug)


@app.command(epilog=examples("thinker antagonist", "thinker antagonist --json"))
def antagonist(
    context: typer.Context,
    runs: Runs = None,
    name: NewName = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Search the answers of the last evaluation for invalid citations and contradictions.

    The answers are those in evaluation.output_path. antagonist_flags.jsonl in the run's folder has
    every flagged answer.
    """
    _run("antagonist", context, runs=runs, name=name, json=json, debug=debug)


@app.command(epilog=examples("thinker info", "thinker --config scifact.yaml info --json"))
def info(
    context: typer.Context, backend: BackendName = None, json: Json = False, debug: Debug = False
) -> None:
    """Show backend, model, paths and settings of the pipeline, without running anything."""
    from kitchen.cli.commands.thinker import ThinkerOptions, show_info
    from kitchen.config.pipeline import PipelineOptions

    options = ThinkerOptions(context.obj, json=json, debug=debug)
    _exit_with(lambda: show_info(options, PipelineOptions(backend)), debug=debug, json=json)


@app.command(epilog=examples("thinker manifest", "thinker manifest RUN"))
def manifest(
    context: typer.Context,
    run: Annotated[
        Text, typer.Argument(metavar="[RUN]", help="Name of a run.  [default: the newest]")
    ] = None,
    runs: Runs = None,
    debug: Debug = False,
) -> None:
    """Print the metadata of a run as JSON: files, digests, metrics and how it ended."""
    from kitchen.cli.commands.thinker import ThinkerOptions, show_manifest

    options = ThinkerOptions(context.obj, runs, debug=debug)
    _exit_with(lambda: show_manifest(run, options), debug=debug, json=True, part="manifest")


@data_app.command("setup", epilog=examples("thinker data setup scifact --out data"))
def data_setup(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Folder in SciFact's format: claims_train.jsonl, corpus.jsonl."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the rows.")],
    debug: Debug = False,
) -> None:
    """Convert a folder in SciFact's format to prompts and completions.

    claims_dev.jsonl and claims_test.jsonl are converted too, if they are there. data.json has the
    SHA-256 of every file. Nothing is downloaded.
    """
    from kitchen.cli.commands.thinker import set_up_data

    _exit_with(lambda: set_up_data(source, out), debug=debug, part="data setup")


def _run(
    command: str,
    context: typer.Context,
    backend: str | None = None,
    skip_validation: bool = False,
    runs: str | None = None,
    name: str | None = None,
    strict: bool = False,
    json: bool = False,
    debug: bool = False,
) -> None:
    from kitchen.cli.commands.thinker import ThinkerOptions, run_pipeline
    from kitchen.config.pipeline import PipelineOptions

    options = ThinkerOptions(context.obj, runs, name, strict, json, debug)
    pipeline = PipelineOptions(backend, skip_validation)
    _exit_with(lambda: run_pipeline(command, options, pipeline), debug=debug, json=json)  # type: ignore[arg-type]


def _exit_with(
    command: Callable[[], int], *, debug: bool, json: bool = False, part: str = "config"
) -> None:
    """Run a command and exit with its code; report an error as `thinker` does."""
    from kitchen.backend.logs import configure
    from kitchen.cli.commands.thinker import report

    configure(debug)
    try:
        with only_answers_on_stdout(json):
            code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        code = READER_GONE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 reported here
        code = report(error, debug=debug, part=part)
    raise typer.Exit(code)


def main() -> None:
    """Run `thinker`; the entry point of the console script."""
    run_app(app)


if __name__ == "__main__":
    main()
