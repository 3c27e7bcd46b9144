"""The commands around sweeps: `kitchen sweep`, and its `resume`, `show` and `stop`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from kitchen.cli.options import (
    AcceptLostMetrics,
    Blobs,
    Configs,
    Datasets,
    Debug,
    Hub,
    Json,
    Observe,
    OtherCode,
    OtherMachine,
    RecipeOrFile,
    Runs,
    Sampling,
    Set,
    Settings,
    SettingsCommand,
    Strict,
    TakeOver,
    Training,
    Trust,
    adapter_choice,
    examples,
    exit_with,
    run_request,
)

if TYPE_CHECKING:
    from kitchen.config.request import RunRequest
    from kitchen.experiments.sweep import SweepRequest

START = "start"  # the command that `kitchen sweep RECIPE` stands for


class _SweepGroup(TyperGroup):
    """A group whose first argument is a recipe, unless it is the name of a command."""

    default_command = START

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = not args or args[0] in (*self.commands, "--help")
        if not is_command and "--over" not in args and (near := _nearest(args[0], self.commands)):
            ctx.fail(f"there is no command {args[0]!r}; did you mean {near!r}?")
        return super().parse_args(ctx, args if is_command else [START, *args])


def _nearest(word: str, commands: Iterable[str]) -> str:
    """Return the command that a word is a misspelling of, or ""."""
    return next(iter(get_close_matches(word, commands, n=1)), "")


app = typer.Typer()
sweep_app = typer.Typer(
    cls=_SweepGroup,
    help="Run a recipe with every combination of some settings.\n\n"
    "An interrupted sweep resumes what is left. `kitchen sweep RECIPE` is short for `kitchen sweep "
    "start RECIPE`.",
    epilog=examples(
        "kitchen sweep recipes.sl_basic --over learning_rate=1e-4,2e-4 --over seed=0..4",
        "kitchen sweep show SWEEP",
        "kitchen sweep resume SWEEP --retry-failed",
    ),
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(sweep_app, name="sweep")

SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a sweep.")]
Over = Annotated[
    Optional[list[str]],  # noqa: UP045 Typer evaluates it
    typer.Option(
        "--over",
        metavar="KEY=VALUE,VALUE",
        help="A setting and its values, such as learning_rate=1e-4,2e-4, or seed=0..4 for whole "
        "numbers; may be repeated, and every combination is run. A range such as "
        "learning_rate=1e-5..1e-3:log (or :uniform) is drawn from, with --random or --optuna.",
    ),
]
Random = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Run N combinations, drawn at random, in place of all."),
]
Optuna = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Search with Optuna: run N points, each proposed from the results of earlier ones. "
        "Needs --maximise or --minimise.",
    ),
]
Maximise = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="METRIC", help="Metric that a search makes as high as possible."),
]
Minimise = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(metavar="METRIC", help="Metric that a search makes as low as possible."),
]
DrawSeed = Annotated[
    int, typer.Option("--draw-seed", help="Seed of the draws of --random and --optuna.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Points that run at the same time. They share the cores, so that results differ in "
        "the last bits from those with another number.  [default: one per device of --devices, "
        "else 1]",
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        metavar="ID,ID",
        help="GPUs of this machine, such as 0,1: each point sees one of them, as "
        "CUDA_VISIBLE_DEVICES.  [default: every point sees all]",
    ),
]
MemoryPerPoint = Annotated[
    str,
    typer.Option(
        "--memory-per-point",
        metavar="SIZE",
        help="Memory of this machine that a point needs, such as 4GiB: a point waits until it fits "
        "beside the running ones.  [default: only --jobs limits points]",
    ),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="local|'command: ...'|ray",
        help="Where points run: in processes on this machine; through a command with {command} in "
        "it, such as 'command: srun {command}'; or on a Ray cluster, as 'ray: cpus=4 gpus=1'.",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run the points again that have failed.")
]
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the sweep; its runs are NAME-1, NAME-2, and so on.  [default: made of the "
        "recipe's name and the time]",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check every point and list them; run nothing.")
]


@sweep_app.command(
    START,
    cls=SettingsCommand,
    epilog=examples(
        "kitchen sweep recipes.sl_basic --training fake --over learning_rate=1e-3,1e-2 "
        "--over seed=0..2 --jobs 2",
        "kitchen sweep recipes.dpo dataset=pairs.jsonl --over beta=0.1,0.3 --name beta --dry-run",
        "kitchen sweep my.yaml --over lora_rank=8,16,32 --executor 'command: srun {command}'",
        "kitchen sweep recipes.sl_basic --training fake --over learning_rate=1e-4..1e-2:log "
        "--optuna 20 --minimise loss",
    ),
)
def start(
    recipe: RecipeOrFile,
    settings: Settings = None,
    over: Over = None,
    random: Random = None,
    optuna: Optuna = None,
    maximise: Maximise = None,
    minimise: Minimise = None,
    draw_seed: DrawSeed = 0,
    jobs: Jobs = None,
    devices: Devices = "",
    memory_per_point: MemoryPerPoint = "",
    executor: ExecutorName = "local",
    name: Name = None,
    dry_run: DryRun = False,
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
) -> None:
    """Run a recipe with every combination of the values of its axes.

    All are checked before one runs. Exit codes: 0: all completed, 1: one failed, 130: stopped.
    """
    points = _Points(over or (), random, optuna, maximise, minimise, draw_seed)
    adapters = adapter_choice(runs, blobs, training, datasets, hub, adapter, sampling=sampling)
    run = run_request(recipe, settings, config, adapters, strict, observe)
    sweep = _Sweep(points, _Places(jobs, devices, memory_per_point, executor), run, name)
    exit_with(lambda: _start(sweep, dry_run=dry_run, json=json), debug=debug, json=json)


def _start(sweep: _Sweep, **options: bool) -> int:
    from kitchen.cli.commands.sweep import start as start_sweep

    return start_sweep(sweep.points.request(sweep.run, sweep.places), sweep.name, **options)


@dataclass(frozen=True)
class _Sweep:
    """A sweep as typed, which may have mistakes."""

    points: _Points
    places: _Places
    run: RunRequest
    name: str | None


@dataclass(frozen=True)
class _Points:
    """The options that choose the points of a sweep."""

    over: Sequence[str]
    random: int | None
    optuna: int | None
    maximise: str | None
    minimise: str | None
    draw_seed: int

    def request(self, run: RunRequest, places: _Places) -> SweepRequest:
        from kitchen.experiments.axes import parse_axes
        from kitchen.experiments.search import find_objective, find_search
        from kitchen.experiments.sweep import SweepRequest, device_ids, memory_size

        axes = parse_axes(self.over)
        objective = find_objective(self.maximise, self.minimise)
        return SweepRequest(
            run,
            axes,
            random=self.random,
            seed=self.draw_seed,
            search=find_search(self.optuna, objective, self.draw_seed, axes),
            jobs=places.jobs,
            devices=device_ids(places.devices),
            executor=places.executor,
            memory_per_point=memory_size(places.memory_per_point),
        )


@dataclass(frozen=True)
class _Places:
    """The options that say where points run, and how many at a time."""

    jobs: int | None
    devices: str
    memory_per_point: str
    executor: str


@sweep_app.command(
    epilog=examples("kitchen sweep resume SWEEP", "kitchen sweep resume SWEEP --retry-failed")
)
def resume(
    sweep: SweepName,
    retry_failed: RetryFailed = False,
    maximise: Maximise = None,
    minimise: Minimise = None,
    runs: Runs = None,
    blobs: Blobs = None,
    other_machine: OtherMachine = False,
    take_over: TakeOver = False,
    accept_lost_metrics: AcceptLostMetrics = False,
    other_code: OtherCode = False,
    trust: Trust = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a sweep that was stopped.

    Points that were stopped or killed resume, and finished ones are kept. A search goes on, with
    another metric if --maximise or --minimise names one.
    """

    def command() -> int:
        from kitchen.cli.commands.sweep import resume as resume_sweep
        from kitchen.experiments.search import find_objective
        from kitchen.experiments.worker import WorkerOptions

        options = WorkerOptions(take_over, other_machine, other_code, accept_lost_metrics, trust)
        return resume_sweep(
            sweep,
            adapter_choice(runs, blobs),
            options,
            retry_failed=retry_failed,
            objective=find_objective(maximise, minimise),
            json=json,
        )

    exit_with(command, debug=debug, json=json)


@sweep_app.command(epilog=examples("kitchen sweep show SWEEP", "kitchen sweep show SWEEP --json"))
def show(
    sweep: SweepName,
    runs: Runs = None,
    blobs: Blobs = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the points of a sweep, their states and their metrics."""
    from kitchen.cli.commands.sweep import show as show_sweep

    exit_with(
        lambda: show_sweep(sweep, adapter_choice(runs, blobs), json=json), debug=debug, json=json
    )


@sweep_app.command(epilog=examples("kitchen sweep stop SWEEP"))
def stop(sweep: SweepName, runs: Runs = None, blobs: Blobs = None, debug: Debug = False) -> None:
    """Ask a sweep that is running to save its points and stop."""
    from kitchen.cli.commands.sweep import stop as stop_sweep

    exit_with(lambda: stop_sweep(sweep, adapter_choice(runs, blobs)), debug=debug)
