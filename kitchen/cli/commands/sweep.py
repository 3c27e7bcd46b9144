"""`kitchen sweep`: many runs of one recipe, reported on the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from kitchen.cli.commands.json_output import print_json
from kitchen.cli.console import console, print_wrapped, table
from kitchen.config.adapter_choice import AdapterChoice, check_run_name, open_blobs
from kitchen.config.trust import needs_trust
from kitchen.config.yaml import yaml_value
from kitchen.engine.stop import handling_signals
from kitchen.experiments.driver import driver_of, request_stop
from kitchen.experiments.experiment import experiment_request, find_experiment
from kitchen.experiments.ledger import Ledger, Point, PointStatus, Sweep
from kitchen.experiments.points import points_table
from kitchen.experiments.search import Objective, best, change_objective, metric_name
from kitchen.experiments.sweep import SweepRequest, check_folder, create_sweep, plan_sweep, store_of
from kitchen.experiments.worker import INTERRUPTED, WorkerOptions
from kitchen.runs.lock import lease
from kitchen.runs.store import new_run_id
from kitchen.runs.wording import clock


def start(request: SweepRequest, name: str | None, *, dry_run: bool, json: bool) -> int:
    """Check every point, write the ledger and run the points; return the exit code."""
    out = console(to_stderr=json)
    named = request.run.recipe
    if experiment := find_experiment(named):
        named = experiment.__name__.lower()
        request = experiment_request(experiment, request)
    planned = plan_sweep(request, name or new_run_id(named))
    sweep = planned.sweep
    if dry_run:
        Ledger(planned.blobs, sweep.name).check_new(sweep, planned.points)
        statuses = [PointStatus(point, "waiting") for point in planned.points]
        _print_points(out, sweep, statuses, json=json)
        print_wrapped(out, f"no problems in {_checked(sweep)}; nothing was run")
        return 0
    ledger = create_sweep(planned)
    adapters = store_of(planned.points[0].order)
    # the user has named this code on the command line
    options = WorkerOptions(trust=True)
    typed = request.run.adapter_choice.store_options()
    return _drive(ledger, adapters, options, typed, json=json)


def resume(
    name: str,
    adapters: AdapterChoice,
    options: WorkerOptions,
    *,
    retry_failed: bool,
    objective: Objective | None = None,
    json: bool,
) -> int:
    """Continue a sweep from its ledger, perhaps with another objective; return the exit code."""
    ledger = Ledger(open_blobs(adapters), check_run_name(name))
    check_folder(ledger.sweep())
    if objective is not None:
        with lease(ledger.blobs, name, take_over=options.take_over):
            change_objective(ledger, objective)
    typed = adapters.store_options()
    return _drive(ledger, adapters, options, typed, retry_failed=retry_failed, json=json)


def show(name: str, adapters: AdapterChoice, *, json: bool) -> int:
    """Print the points of a sweep with their states and metrics."""
    ledger = Ledger(open_blobs(adapters), check_run_name(name))
    _print_points(console(), ledger.sweep(), ledger.statuses(), json=json)
    return 0


def stop(name: str, adapters: AdapterChoice) -> int:
    """Ask a sweep to stop."""
    ledger = Ledger(open_blobs(adapters), check_run_name(name))
    ledger.sweep()
    has_driver = request_stop(ledger)
    running = sum(status.state == "running" for status in ledger.statuses())
    if not has_driver and not running:
        text = f"sweep {name} is not running"
    else:
        text = f"sweep {name} saves the progress of its running points and stops"
    print_wrapped(console(), text)
    return 0


def _drive(
    ledger: Ledger,
    adapters: AdapterChoice,
    options: WorkerOptions,
    typed: str,
    *,
    retry_failed: bool = False,
    json: bool,
) -> int:
    """Run what is left of a sweep, and print what becomes of each point.

    `typed` are the options by which the user finds the store, for hints.
    """
    sweep = ledger.sweep()
    out = console(to_stderr=json)
    threads = "1 thread" if sweep.threads == 1 else f"{sweep.threads} threads"
    print_wrapped(
        out, f"sweep {sweep.name}: {sweep.count()} points, {sweep.jobs} at a time, {threads} each"
    )
    report = _Report(out, sweep, sweep.count())
    driver = driver_of(ledger, adapters, options, report.changed, report.stopping)
    with handling_signals(driver.stop):  # the second Ctrl-C ends the points without saving
        statuses = driver.run(retry_failed=retry_failed)
    out.print()
    _print_points(out, sweep, statuses, json=json)
    return _finish(out, sweep, statuses, typed, stopped=driver.stopping)


def _checked(sweep: Sweep) -> str:
    if sweep.search is None:
        return f"{sweep.count():,} points"
    return f"the first of {sweep.count():,} points, and for all values and bounds of the axes"


class _Report:
    """Prints a line for each point that starts or ends."""

    def __init__(self, out: Console, sweep: Sweep, count: int) -> None:
        self._out = out
        self._headline = sweep.measures or sweep.headline
        if sweep.search:
            self._headline = (sweep.search.metric, f"{sweep.search.metric}_after")
        self._count = count
        self._started: set[str] = set()
        self._stopping = False  # whether the sweep was asked to stop

    def stopping(self) -> None:
        self._stopping = True
        text = "stopping after running points have saved their progress; Ctrl-C again stops at once"
        print_wrapped(self._out, text)

    def changed(self, status: PointStatus) -> None:
        point = status.point
        head = f"point {point.number}/{self._count}, {point.run} ({_values(point)}):"
        if status.state == "running" and status.reason:
            text = f"{head} waiting for {status.reason}, which uses its run"
            print_wrapped(self._out, f"{text}; if that host is gone, resume with --take-over")
        elif status.state == "running":
            verb = "restarted" if point.digest in self._started else "started"
            self._started.add(point.digest)
            print_wrapped(self._out, f"{head} {verb}")
        elif status.state == "completed":
            metrics = "  ".join(_metrics(status.metrics, self._headline))
            print_wrapped(self._out, f"{head} completed in {clock(status.seconds)}  {metrics}")
        elif status.state == "failed":
            print_wrapped(self._out, f"{head} failed: {status.reason}", style="red")
        elif status.state == "waiting" and status.reason:
            print_wrapped(self._out, f"{head} {status.reason}")
        elif self._stopping:
            print_wrapped(self._out, f"{head} stopped")
        else:
            print_wrapped(self._out, f"{head} its process ended before the run was complete")


def _finish(
    out: Console,
    sweep: Sweep,
    statuses: Sequence[PointStatus],
    typed: str,
    *,
    stopped: bool,
) -> int:
    """Print how to go on, and return the exit code."""
    states = Counter(status.state for status in statuses)
    resume = f"kitchen sweep resume {sweep.name}{typed}"
    if needs_trust(statuses[0].point.order, same_process=False):
        resume += " --trust"
    out.print()
    print_wrapped(out, f"{states['completed']} of {sweep.count()} points completed", style="bold")
    left = sweep.count() - states["completed"] - states["failed"]
    if left:
        print_wrapped(out, f"  to run the other {left}: {resume}")
    if states["failed"]:
        print_wrapped(out, f"  to run the {states['failed']} failed again: {resume} --retry-failed")
    if stopped and left:
        return INTERRUPTED
    return 1 if states["failed"] or left else 0


def _print_points(
    out: Console, sweep: Sweep, statuses: Sequence[PointStatus], *, json: bool
) -> None:
    if json:
        points = [_point_json(status) for status in statuses]
        content: dict[str, Any] = {"sweep": sweep.name, "recipe": sweep.recipe, "points": points}
        if sweep.search:
            found = best(sweep.search, statuses)
            content |= {"search": vars(sweep.search), "best": found and found[0].point.run}
        print_json(content)
        return
    out.print(table(points_table(sweep, statuses)))
    if sweep.search and (found := best(sweep.search, statuses)):
        point = found[0].point
        name = metric_name(sweep.search, found[0].metrics)
        text = f"best: {point.run} with {name} {_number(found[1])} ({_values(point)})"
        print_wrapped(out, text, style="bold")
    for status in statuses:
        if status.reason:
            print_wrapped(out, f"{status.point.run} failed: {status.reason}", style="red")


def _point_json(status: PointStatus) -> Mapping[str, Any]:
    point = status.point
    return {
        "number": point.number,
        "run": point.run,
        "values": point.values,
        "status": status.state,
        "reason": status.reason,
        "seconds": status.seconds,
        "metrics": status.metrics,
    }


def _metrics(metrics: Mapping[str, float], names: Sequence[str]) -> Sequence[str]:
    return [
        f"{name.replace('_', ' ')} {_number(metrics[name])}" for name in names if name in metrics
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _values(point: Point) -> str:
    return ", ".join(f"{key}={yaml_value(value)}" for key, value in point.values.items())
