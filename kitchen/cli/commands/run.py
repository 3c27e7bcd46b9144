"""`kitchen run` and `kitchen resume`."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

from kitchen.artifacts.publish import NotPublished
from kitchen.cli.commands.failure import as_json, exit_code, place, reasons, tell
from kitchen.cli.console import ConsoleObserver, clock, console
from kitchen.config.adapters import Kitchen
from kitchen.config.discovery import build_workflow, find_recipe
from kitchen.config.order import Order
from kitchen.config.request import (
    AdapterChoice,
    Problems,
    ResolvedRequest,
    RunRequest,
    check_run_name,
    open_blobs,
    resolve_adapters,
    resolve_request,
)
from kitchen.engine.plan import Plan
from kitchen.errors import ConfigError, KitchenError
from kitchen.recipe import Recipe
from kitchen.runs.execute import execute, recipe_from_order
from kitchen.runs.lock import InUse
from kitchen.runs.logs import configure
from kitchen.runs.record import OtherMachine
from kitchen.runs.store import (
    check_new_run_name,
    discard_failed_run,
    new_run_id,
    read_order,
    run_summary,
)


@dataclass(frozen=True)
class OutputOptions:
    """How to tell what happens."""

    json: bool = False  # one object at the end on standard output, all else on standard error
    debug: bool = False
    other_machine: bool = False
    take_over: bool = False


def run(request: RunRequest, output: OutputOptions, name: str | None = None) -> int:
    """Cook it as a new run, of this name if there is one; returns the exit code."""
    with redirect_stdout(sys.stderr) if output.json else nullcontext():
        try:
            made = resolve_request(request)
            order, recipe, kitchen = made.require()
            if name is not None and kitchen.blobs is not None:
                check_new_run_name(kitchen.blobs, name)
                discard_failed_run(kitchen.blobs, name)
        except KitchenError as error:
            tell(error, debug=output.debug)
            outcome = _refused(error, request.recipe)
        else:
            name = name or new_run_id(order.recipe)
            outcome = _cook(order, recipe, kitchen, name, request.adapter_choice, output, made.plan)
    return _say_json(outcome, output)


def resume(name: str, adapter_choice: AdapterChoice, output: OutputOptions) -> int:
    """Go on with a run where it stopped; returns the exit code."""
    with redirect_stdout(sys.stderr) if output.json else nullcontext():
        try:
            store = open_blobs(adapter_choice)
            order = read_order(store, check_run_name(name))
            if run_summary(store, name).status == "completed":
                console().print(
                    f"run {name} is completed: there is nothing left to do", soft_wrap=True
                )
                outcome = _outcome(None, Kitchen(blobs=store), name, 0.0)
            else:
                recipe, kitchen = _made_again(name, order, adapter_choice)
                outcome = _cook(order, recipe, kitchen, name, adapter_choice, output)
        except KitchenError as error:
            tell(error, debug=output.debug)
            outcome = _refused(error, name)
    return _say_json(outcome, output)


def _made_again(name: str, order: Order, adapter_choice: AdapterChoice) -> tuple[Recipe, Kitchen]:
    if lost := order.missing_objects(["blobs"]):
        again = ", ".join(f"{port}=..." for port in lost)
        raise ConfigError(
            f"run {name!r}: {'; '.join(lost.values())}; go on with it in Python, "
            f"kitchen.resume({name!r}, {again})"
        )
    made = ResolvedRequest(find_recipe(order.recipe))
    made.adapter_settings = {
        port: dict(each) for port, each in order.adapter_settings.items() if port != "blobs"
    }
    resolve_adapters(
        replace(
            adapter_choice, names={**order.adapters, "blobs": adapter_choice.chosen()["blobs"]}
        ),
        made,
    )
    recipe = recipe_from_order(made.cls, name, order)
    if made.problems or made.kitchen is None:
        raise Problems(made.problems)
    build_workflow(recipe)
    return recipe, made.kitchen


def _cook(
    order: Order,
    recipe: Recipe,
    kitchen: Kitchen,
    name: str,
    adapter_choice: AdapterChoice,
    output: OutputOptions,
    plan: Plan | None = None,
) -> dict[str, Any]:
    configure(output.debug)
    out, started = console(to_stderr=output.json), time.perf_counter()
    observer = ConsoleObserver(out)
    failed: BaseException | None = None
    try:
        execute(
            order,
            recipe,
            kitchen,
            name,
            (observer,),
            other_machine=output.other_machine,
            take_over=output.take_over,
            plan=plan,
        )
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 it is told, and is the exit code
        failed = error
    finally:
        observer.close()
    if failed is not None:
        tell(failed, debug=output.debug, hints=_hints(failed, kitchen, name, adapter_choice))
    outcome = _outcome(failed, kitchen, name, time.perf_counter() - started)
    if failed is None:
        out.print(f"\ncompleted in {clock(outcome['seconds'])}", style="bold", soft_wrap=True)
        if observer.exported is not None:
            out.print(f"weights  {_where(kitchen, observer.exported.path)}", soft_wrap=True)
        out.print(f"record   {outcome['where']}", soft_wrap=True)
        if observer.exported is not None and not outcome["where"].startswith("memory://"):
            out.print(
                f"talk     kitchen chat {name}{adapter_choice.store_options()}", soft_wrap=True
            )
    return outcome


def _hints(
    failed: BaseException, kitchen: Kitchen, name: str, adapter_choice: AdapterChoice
) -> list[str]:
    """How to go on, where that makes sense."""
    blobs = kitchen.blobs
    if isinstance(failed, InUse | OtherMachine):
        return [
            f"to go on all the same: kitchen resume {name} "
            f"--{failed.option.replace('_', '-')}{adapter_choice.store_options()}"
        ]
    if blobs is None or isinstance(failed, ConfigError) or blobs.read(f"{name}/run.json") is None:
        return []
    if blobs.locate(name).startswith("memory://"):
        return ["the run was kept in memory, and is gone"]
    saved = any(blob.endswith(".json") for blob in blobs.list(f"{name}/save/"))
    kept = (
        "what it had reached is saved"
        if saved
        else "it had not come to a save point, and begins again"
    )
    push = (
        [
            f"to publish its weights alone: kitchen push {name} {failed.repo}{adapter_choice.store_options()}"
        ]
        if isinstance(failed, NotPublished)
        else []
    )
    return [*push, f"to go on ({kept}): kitchen resume {name}{adapter_choice.store_options()}"]


def _outcome(
    failed: BaseException | None, kitchen: Kitchen, name: str, seconds: float
) -> dict[str, Any]:
    code = 0 if failed is None else exit_code(failed)
    status = "completed" if failed is None else "interrupted" if code == 130 else "failed"
    outcome: dict[str, Any] = {
        "run": name,
        "status": status,
        "exit_code": code,
        "seconds": round(seconds, 3),
        "where": _where(kitchen, f"{name}/run.json").removesuffix("/run.json"),
        "metrics": {},
    }
    if failed is not None:
        outcome |= {"reasons": reasons(failed), "failed_in": place(failed)}
    try:
        outcome["metrics"] = (
            run_summary(kitchen.blobs, name).metrics if kitchen.blobs is not None else {}
        )
    # a disk that is full or away: the run is over all the same, and says why
    except KitchenError as error:
        outcome["metrics_missing"] = reasons(error)
    return outcome


def _where(kitchen: Kitchen, path: str) -> str:
    return path if kitchen.blobs is None or "://" in path else kitchen.blobs.locate(path)


def _refused(error: KitchenError, name: str) -> dict[str, Any]:
    return {
        "run": None,
        "asked": name,
        "status": "refused",
        "exit_code": error.exit_code,
        "reasons": reasons(error),
    }


def _say_json(outcome: dict[str, Any], output: OutputOptions) -> int:
    if output.json:
        print(as_json(outcome))
    return int(outcome["exit_code"])
