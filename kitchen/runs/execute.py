"""Cook an order, with a record, a lease and a log of its own; or one that was written down."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from pydantic import ValidationError

from kitchen.config.adapters import Kitchen
from kitchen.config.order import Order
from kitchen.engine.observers import Observer, ObserverGroup
from kitchen.engine.plan import Plan, PlanError
from kitchen.engine.runner import run as walk
from kitchen.engine.scope import Context
from kitchen.engine.stop import StopSignal, refuse_loop
from kitchen.errors import ConfigError, ResumeError
from kitchen.recipe import Recipe
from kitchen.runs.lock import lease
from kitchen.runs.logs import configure, into
from kitchen.runs.record import RunRecord


def execute(
    order: Order,
    recipe: Recipe,
    kitchen: Kitchen,
    run: str,
    observers: Sequence[Observer] = (),
    *,
    other_machine: bool = False,
    take_over: bool = False,
    stop_signal: StopSignal | None = None,
    plan: Plan | None = None,
) -> Context:
    """Cook the recipe as the run of this name, or go on with that run; returns what it left on the
    counter.

    Raises PlanError before anything is written, ConfigError for a run in use, ResumeError for one
    that is another. Who has the `stop_signal` can stop it from another thread; who has asked for the
    `plan` already can give it.
    """
    if kitchen.blobs is None:
        raise ConfigError("a run needs a blob store for its record")
    plan = plan or kitchen.check(recipe)
    if plan.problems:
        raise PlanError("\n".join(plan.problems))
    if not structlog.is_configured():
        configure()
    with lease(kitchen.blobs, run, take_over=take_over):
        refuse_loop()
        record = RunRecord(kitchen.blobs, run, order, other_machine=other_machine)
        with into(record.log):
            audience = ObserverGroup((record, *observers))
            try:
                context = walk(
                    plan.step,
                    kitchen.ports(),
                    (audience,),
                    name=run,
                    outputs=recipe.outputs,
                    title=recipe.title(),
                    stop_signal=stop_signal,
                    plan=plan,
                )
                audience.ended(None)
            except BaseException as error:
                audience.ended(error)
                raise
            return context


def recipe_from_order(cls: type[Recipe], run: str, order: Order) -> Recipe:
    """The recipe as a run was ordered; raises ResumeError where its class no longer takes those
    settings.
    """
    try:
        return cls.model_validate(order.settings)
    except (ValidationError, ConfigError) as error:
        raise ResumeError(
            f"{order.recipe} no longer takes the settings of run {run!r}, so start a new one: "
            + " ".join(str(error).split())
        ) from error
