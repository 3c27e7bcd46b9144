"""Execution of an order as a recorded run, new or resumed, under a lease and with a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from kitchen.backend.logs import copy_log_to, ensure_configured
from kitchen.backend.needs import needing
from kitchen.backend.observed_ports import ObservedPorts
from kitchen.backend.work import listening_to_work
from kitchen.config.adapters import Kitchen
from kitchen.config.needs import required_capabilities
from kitchen.config.order import Order
from kitchen.engine.observers import Observer, ObserverGroup
from kitchen.engine.plan import Plan, PlanError
from kitchen.engine.runner import run as run_plan
from kitchen.engine.scope import Scope
from kitchen.engine.stop import StopSignal, refuse_running_loop
from kitchen.errors import ConfigError, ResumeError, describe_error
from kitchen.ports.blobs import BlobStore
from kitchen.ports.training import TrainingClient
from kitchen.recipe import Recipe
from kitchen.runs.lock import lease
from kitchen.runs.record import RunRecord
from kitchen.runs.requests import RequestLog
from kitchen.runs.status import WorkObserver
from kitchen.runs.store import check_new_run_name, discard_failed_run
from kitchen.runs.tracking import Trackers, prepared_trackers
from kitchen.types import RenderingSettings


def execute(
    order: Order,
    recipe: Recipe,
    kitchen: Kitchen,
    run: str,
    observers: Sequence[Observer] = (),
    *,
    new: bool = False,
    take_over: bool = False,
    stop_signal: StopSignal | None = None,
    plan: Plan | None = None,
    **accepted: bool,
) -> Scope:
    """Execute the recipe as the run of this name, or resume that run; returns its final values.

    `new`: the run must be new, so a name that another run has taken meanwhile is an error.
    `stop_signal` lets another thread stop the run. `plan` is that of the recipe, if it has been
    computed already. `accepted` are the differences to an earlier attempt that `RunRecord` accepts:
    `other_machine`, `other_code` and `accept_lost_metrics`. Raises PlanError before anything is
    written, ConfigError for a run in use, ResumeError if the run of this name is of another order,
    BackendError for a tracker that cannot be used.
    """
    if kitchen.blobs is None:
        raise ConfigError("a run needs a blob store for its record")
    plan = _valid_plan(plan or kitchen.check(recipe))
    ensure_configured()
    with lease(kitchen.blobs, run, take_over=take_over):
        refuse_running_loop()
        if new:
            _claim_name(kitchen.blobs, run)
        trackers = prepared_trackers(kitchen.blobs, run, order)
        rendering = _rendering(recipe, order)
        record = RunRecord(kitchen.blobs, run, order, rendering=rendering, **accepted)
        requests = RequestLog(kitchen.blobs, run, record.attempt)
        tracked = Trackers(kitchen.blobs, run, order, trackers, record.trackers_ended)
        group = ObserverGroup((tracked, record, requests, *observers))  # record how trackers ended
        listeners = [each.work_reported for each in observers if isinstance(each, WorkObserver)]
        needs = required_capabilities(plan.step, TrainingClient)
        with copy_log_to(record.log), listening_to_work(*listeners), needing(needs):
            return _run_recorded(plan, recipe, kitchen, run, group, requests, stop_signal)


def _valid_plan(plan: Plan) -> Plan:
    if plan.problems:
        raise PlanError("\n".join(plan.problems))
    return plan


def _claim_name(blobs: BlobStore, run: str) -> None:
    """Check that no run has this name, except for one that failed early, which is deleted."""
    check_new_run_name(blobs, run, held=True)
    discard_failed_run(blobs, run)


def _run_recorded(
    plan: Plan,
    recipe: Recipe,
    kitchen: Kitchen,
    run: str,
    observers: ObserverGroup,
    requests: RequestLog,
    stop_signal: StopSignal | None,
) -> Scope:
    """Run the plan, and let the observers know how it ended."""
    try:
        scope = run_plan(
            plan.step,
            kitchen.ports(),
            (observers,),
            name=run,
            outputs=recipe.outputs,
            title=recipe.title(),
            stop_signal=stop_signal,
            plan=plan,
            port_wrapper=ObservedPorts(requests.add),
        )
        observers.run_ended(None)
    except BaseException as error:
        _end_failed(observers, error)
        raise
    return scope


def _end_failed(observers: ObserverGroup, error: BaseException) -> None:
    """Let the observers know of an error; one that they raise must not hide it."""
    try:
        observers.run_ended(error)
    except Exception as failure:  # noqa: BLE001 it becomes a note
        if failure is not error:
            error.add_note(f"not recorded: {describe_error(failure)}")


def _rendering(recipe: Recipe, order: Order) -> Mapping[str, Any] | None:
    """Return the settings, as JSON, of how the recipe renders conversations; else None."""
    for name in type(recipe).model_fields:
        if isinstance(getattr(recipe, name), RenderingSettings):
            return cast(Mapping[str, Any], order.settings.get(name))
    return None


def recipe_from_order(cls: type[Recipe], run: str, order: Order) -> Recipe:
    """Return the recipe of a recorded run.

    Raises ResumeError if its class does not take the recorded settings any more.
    """
    try:
        return cls.model_validate(order.settings)
    except (ValidationError, ConfigError) as error:
        raise ResumeError(
            f"{order.recipe} no longer takes the settings of run {run!r}, so start a new one: "
            + " ".join(str(error).split())
        ) from error
