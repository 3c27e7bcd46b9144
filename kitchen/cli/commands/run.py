"""`kitchen run` and `kitchen resume`: a run in this process, reported on the console."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rich.console import Console

from kitchen.artifacts.publish import NotPublished
from kitchen.cli.commands.errors import INTERRUPTED, exit_code, failed_stage, reasons, report_error
from kitchen.cli.commands.json_output import print_json
from kitchen.cli.commands.manifest import manifest_of_resumed
from kitchen.cli.console import ConsoleObserver, console, print_wrapped
from kitchen.cli.curves import run_curves
from kitchen.cli.streams import drop_unread_output
from kitchen.config.adapter_choice import AdapterChoice, check_run_name, open_blobs
from kitchen.config.adapters import Kitchen
from kitchen.config.discovery import build_workflow, find_recipe
from kitchen.config.order import Order
from kitchen.config.request import (
    Problems,
    ResolvedRequest,
    RunRequest,
    resolve_adapters,
    resolve_request,
)
from kitchen.config.trackers import with_trackers
from kitchen.config.trust import check_trusted_order, needs_trust
from kitchen.engine.observers import Observer
from kitchen.engine.plan import Plan
from kitchen.errors import ConfigError, Diverged, KitchenError, user_frame
from kitchen.ports import BlobStore
from kitchen.recipe import Recipe
from kitchen.runs.code import OtherCode
from kitchen.runs.execute import execute, recipe_from_order
from kitchen.runs.lock import InUse
from kitchen.runs.otlp import export_telemetry
from kitchen.runs.record import LostRows, OtherMachine
from kitchen.runs.resumable import has_outside_cause, has_save_point, resuming_can_help
from kitchen.runs.store import (
    check_new_run_name,
    new_run_id,
    read_order,
    run_summary,
)
from kitchen.runs.tracking import send_missing
from kitchen.runs.wording import clock, tracker_text

Outcome = dict[str, Any]  # the JSON object that --json prints


@dataclass(frozen=True)
class OutputOptions:
    """The options for output and resumption that `run`, `resume` and `eval` share."""

    json: bool = False  # one object at the end on standard output, all else on standard error
    debug: bool = False
    other_machine: bool = False
    take_over: bool = False
    accept_lost_metrics: bool = False
    other_code: bool = False


class Reporter(Protocol):
    """Prints why a command failed, and hints on what to do next."""

    def __call__(self, error: BaseException, *, debug: bool, hints: Sequence[str] = ()) -> None: ...


@dataclass(frozen=True)
class _Run:
    """A run that is ready to start or to be resumed."""

    name: str
    order: Order
    recipe: Recipe
    kitchen: Kitchen
    adapters: AdapterChoice
    plan: Plan | None = None
    new: bool = False

    def command(self, command: str, *words: str) -> str:
        """Return a command on this run, with the options that find its store."""
        return " ".join(["kitchen", command, self.name, *words]) + self.adapters.store_options()


def run(
    request: RunRequest,
    output: OutputOptions,
    name: str | None = None,
    observers: Sequence[Observer] = (),
    details: Callable[[], Outcome] = dict,
    report: Reporter = report_error,
) -> int:
    """Run a recipe as a new run, with this name if there is one; return the exit code.

    `details` returns what --json prints besides the outcome. `report` prints an error.
    """
    drop_unread_output()
    try:
        export_telemetry()
        new_run = _new_run(request, name)
    except KitchenError as error:
        report(error, debug=output.debug)
        outcome = _refusal(error, request.recipe)
    else:
        outcome = _execute(new_run, output, observers, report) | details()
    return _finish(outcome, output)


def _new_run(request: RunRequest, name: str | None) -> _Run:
    resolved = resolve_request(request)
    order, recipe, kitchen = resolved.require()
    if name is not None and kitchen.blobs is not None:
        check_new_run_name(kitchen.blobs, name)
    name = name or new_run_id(order.recipe)
    adapters = resolved.adapter_choice or request.adapter_choice
    return _Run(name, order, recipe, kitchen, adapters, resolved.plan, new=True)


def resume(
    name: str, adapters: AdapterChoice, output: OutputOptions, observe: Sequence[str] = ()
) -> int:
    """Resume a run from its last save point, also with further trackers; return the exit code."""
    drop_unread_output()
    try:
        export_telemetry()
        blobs = open_blobs(adapters)
        order = with_trackers(read_order(blobs, check_run_name(name)), observe, "--observe")
        if run_summary(blobs, name).status == "completed":
            _send_missing(blobs, name, order)
            outcome = _outcome(None, Kitchen(blobs=blobs), name, 0.0)
        else:
            observers = manifest_of_resumed(blobs, name)
            outcome = _execute(_recorded_run(name, order, adapters), output, observers)
    except KitchenError as error:
        report_error(error, debug=output.debug)
        outcome = _refusal(error, name)
    return _finish(outcome, output)


def _send_missing(blobs: BlobStore, name: str, order: Order) -> None:
    """Send what trackers lack of a completed run, and report it; there is nothing else to do."""
    out = console()
    out.print(f"run {name} is completed: there is nothing to resume", soft_wrap=True)
    for tracker, outcome in send_missing(blobs, name, order).items():
        print_wrapped(out, f"{tracker}  {tracker_text(outcome)}")


def _recorded_run(name: str, order: Order, adapters: AdapterChoice) -> _Run:
    """Return a recorded run with its recipe and adapters; raises ConfigError or BackendError."""
    if lost := order.missing_objects(["blobs"]):
        arguments = ", ".join(f"{port}=..." for port in lost)
        raise ConfigError(
            f"run {name!r}: {'; '.join(lost.values())}; resume it in Python, "
            f"kitchen.resume({name!r}, {arguments})"
        )
    check_trusted_order(name, order, trust=adapters.trust)
    resolved = ResolvedRequest(find_recipe(order.recipe))
    resolved.adapter_settings = order.recorded_settings()
    names = {**order.recorded_adapters(), "blobs": adapters.chosen()["blobs"]}
    resolve_adapters(replace(adapters, names=names), resolved)
    recipe = recipe_from_order(resolved.cls, name, order)
    if resolved.problems or resolved.kitchen is None:
        raise Problems(resolved.problems)
    build_workflow(recipe)
    return _Run(name, order, recipe, resolved.kitchen, adapters)


def _execute(
    ready: _Run,
    output: OutputOptions,
    observers: Sequence[Observer] = (),
    report: Reporter = report_error,
) -> Outcome:
    out = console(to_stderr=output.json)
    observer = ConsoleObserver(out, ready.recipe.headline)
    started = time.perf_counter()
    failure: BaseException | None = None
    try:
        execute(
            ready.order,
            ready.recipe,
            ready.kitchen,
            ready.name,
            (observer, *observers),
            new=ready.new,
            other_machine=output.other_machine,
            accept_lost_metrics=output.accept_lost_metrics,
            other_code=output.other_code,
            take_over=output.take_over,
            plan=ready.plan,
        )
    except BaseException as error:  # noqa: BLE001 reported below
        failure = error
    finally:
        observer.close()
    seconds = time.perf_counter() - started
    if failure is not None:
        report(failure, debug=output.debug, hints=_resume_hints(failure, ready))
    outcome = _outcome(failure, ready.kitchen, ready.name, seconds)
    if failure is None:
        _print_completion(out, ready, observer, outcome)
    return outcome


def _print_completion(
    out: Console, completed: _Run, observer: ConsoleObserver, outcome: Outcome
) -> None:
    exported = observer.exported
    _print_curves(out, completed)
    out.print(f"\ncompleted in {clock(outcome['seconds'])}", style="bold", soft_wrap=True)
    if exported is not None:
        out.print(f"weights  {_location(completed.kitchen, exported.path)}", soft_wrap=True)
    out.print(f"record   {outcome['where']}", soft_wrap=True)
    if exported is not None and not outcome["where"].startswith("memory://"):
        out.print(f"chat     {completed.command('chat')}", soft_wrap=True)


def _print_curves(out: Console, completed: _Run) -> None:
    """Print the curves of the headline metrics, and a sentence if the weights got worse."""
    blobs = completed.kitchen.blobs
    if blobs is None:
        return
    try:
        lines = run_curves(blobs, completed.name, completed.recipe.headline, out.encoding)
    except KitchenError as error:  # the run is complete nevertheless
        lines = [f"its curves are not shown: {error}"]
    for line in ["", *lines] if lines else []:
        print_wrapped(out, line)


def _resume_hints(failure: BaseException, failed: _Run) -> list[str]:
    """Return the commands that continue after a failure; none where nothing can be resumed."""
    if isinstance(failure, InUse | LostRows | OtherCode | OtherMachine):
        option = f"--{failure.option.replace('_', '-')}"
        return [f"to resume nevertheless: {failed.command('resume', option)}"]
    blobs = failed.kitchen.blobs
    if blobs is not None and isinstance(failure, Diverged) and has_save_point(blobs, failed.name):
        start = f"model=run:{failed.name} and a lower learning_rate"
        return [f"to train on from its last save point: start a new run with {start}"]
    if blobs is None or not resuming_can_help(failure, blobs, failed.name):
        return []
    if blobs.locate(failed.name).startswith("memory://"):
        return ["the run was stored in memory and is gone"]
    hints = []
    if isinstance(failure, NotPublished):
        hints.append(f"to publish only its weights: {failed.command('push', failure.repo)}")
    options = ["--trust"] if needs_trust(failed.order, same_process=False) else []
    if not has_save_point(blobs, failed.name):
        state = "to resume (it had no save point and starts over)"
    elif user_frame(failure) and not has_outside_cause(failure):
        state = "to resume after correcting the code (its progress is saved)"
        options.append("--other-code")
    else:
        state = "to resume (its progress is saved)"
    return [*hints, f"{state}: {failed.command('resume', *options)}"]


def _outcome(failure: BaseException | None, kitchen: Kitchen, name: str, seconds: float) -> Outcome:
    code = 0 if failure is None else exit_code(failure)
    status = "completed" if failure is None else "failed"
    if code == INTERRUPTED:
        status = "interrupted"
    outcome: Outcome = {
        "run": name,
        "status": status,
        "exit_code": code,
        "seconds": round(seconds, 3),
        "where": _location(kitchen, f"{name}/run.json").removesuffix("/run.json"),
        "metrics": {},
    }
    if failure is not None:
        outcome["reasons"] = reasons(failure)
        outcome["failed_in"] = failed_stage(failure)
    try:
        if kitchen.blobs is not None:
            outcome["metrics"] = run_summary(kitchen.blobs, name).metrics
    except KitchenError as error:  # a disk is full or gone; the outcome of the run is unaffected
        outcome["metrics_missing"] = reasons(error)
    return outcome


def _location(kitchen: Kitchen, path: str) -> str:
    return path if kitchen.blobs is None or "://" in path else kitchen.blobs.locate(path)


def _refusal(error: KitchenError, name: str) -> Outcome:
    """Return the outcome of a request that did not become a run."""
    return {
        "run": None,
        "asked": name,
        "status": "refused",
        "exit_code": error.exit_code,
        "reasons": reasons(error),
    }


def _finish(outcome: Outcome, output: OutputOptions) -> int:
    if output.json:
        print_json(outcome)
    return int(outcome["exit_code"])
