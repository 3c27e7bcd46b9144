"""The process of one point of a sweep: it starts the point's run, or resumes it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from kitchen.backend.logs import configure
from kitchen.config.adapter_choice import AdapterChoice, open_blobs
from kitchen.config.discovery import find_recipe
from kitchen.config.request import Problems, ResolvedRequest, resolve_adapters
from kitchen.config.trust import check_trusted_order
from kitchen.errors import Interrupted, KitchenError, describe_error
from kitchen.experiments.ledger import Ledger, Point
from kitchen.runs.execute import execute, recipe_from_order
from kitchen.runs.lock import InUse
from kitchen.runs.otlp import export_telemetry
from kitchen.runs.resumable import has_save_point
from kitchen.runs.store import run_exists, run_summary
from kitchen.secrets import printable

INTERRUPTED = 130  # exit code of a run that was asked to stop


@dataclass(frozen=True)
class WorkerOptions:
    """The differences to an earlier attempt that a resumed point accepts, and trust in its code."""

    take_over: bool = False
    other_machine: bool = False
    other_code: bool = False
    accept_lost_metrics: bool = False
    trust: bool = False

    def flags(self) -> Sequence[str]:
        return [f"--{name.replace('_', '-')}" for name, given in vars(self).items() if given]


def worker_command(
    sweep: str, point: Point, adapters: AdapterChoice, options: WorkerOptions
) -> Sequence[str]:
    """Return the command that runs a point, in the folder of the sweep."""
    store = {"--runs": adapters.runs, "--blobs": adapters.names.get("blobs")}
    given = chain.from_iterable((option, value) for option, value in store.items() if value)
    module = "kitchen.experiments.worker"
    return [sys.executable, "-m", module, sweep, point.digest, *given, *options.flags()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a point; return 0 if its run completed, 130 if it was stopped, else another code."""
    parser = argparse.ArgumentParser(prog="python -m kitchen.experiments.worker")
    parser.add_argument("sweep")
    parser.add_argument("digest")
    parser.add_argument("--runs")
    parser.add_argument("--blobs")
    for flag in vars(WorkerOptions()):
        parser.add_argument(f"--{flag.replace('_', '-')}", action="store_true")
    parsed = parser.parse_args(arguments)
    options = WorkerOptions(**{name: getattr(parsed, name) for name in vars(WorkerOptions())})
    adapters = AdapterChoice({"blobs": parsed.blobs}, (), parsed.runs, trust=options.trust)
    ledger = Ledger(open_blobs(adapters), parsed.sweep)
    return run_point(ledger, ledger.point(parsed.digest), adapters, options)


def run_point(ledger: Ledger, point: Point, adapters: AdapterChoice, options: WorkerOptions) -> int:
    """Start or resume the run of a point; a failure that has no run is recorded in the ledger."""
    try:
        _execute(ledger, point, adapters, options)
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    except InUse as error:  # another process is at it
        return error.exit_code
    except BaseException as error:  # noqa: BLE001 recorded, and reported by the driver
        if ledger.status(point).state != "failed":
            ledger.fail(point, printable(describe_error(error)))
        return error.exit_code if isinstance(error, KitchenError) else 1
    return 0


def _execute(ledger: Ledger, point: Point, adapters: AdapterChoice, options: WorkerOptions) -> None:
    check_trusted_order(point.run, point.order, trust=options.trust)
    resolved = ResolvedRequest(find_recipe(point.order.recipe))
    resolved.adapter_settings = point.order.recorded_settings()
    names = {**point.order.recorded_adapters(), "blobs": adapters.chosen()["blobs"]}
    resolve_adapters(replace(adapters, names=names), resolved)
    if resolved.problems or resolved.kitchen is None:
        raise Problems(resolved.problems)
    configure()
    export_telemetry()
    execute(
        point.order,
        recipe_from_order(resolved.cls, point.run, point.order),
        resolved.kitchen,
        point.run,
        new=_starts_anew(ledger, point),
        take_over=options.take_over,
        other_machine=options.other_machine,
        other_code=options.other_code,
        accept_lost_metrics=options.accept_lost_metrics,
    )


def _starts_anew(ledger: Ledger, point: Point) -> bool:
    """Return whether the point has no run yet, or one that failed before its first save point."""
    if not run_exists(ledger.blobs, point.run):
        return True
    failed = run_summary(ledger.blobs, point.run).status == "failed"
    return failed and not has_save_point(ledger.blobs, point.run)


if __name__ == "__main__":
    sys.exit(main())
