"""`kitchen compare`: a run of the recipe that compares runs, and the planning of an evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kitchen.cli.commands.json_output import print_json
from kitchen.cli.commands.run import OutputOptions, run
from kitchen.cli.console import console
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.request import RunRequest
from kitchen.config.sources import COMMAND_LINE, from_mapping
from kitchen.errors import ConfigError, check_name
from kitchen.runs.comparison import RECIPE, ReportCollector
from kitchen.statistics.power import EvaluationPlan, plan_evaluation

_PLAN_NUMBERS = ("n", "baseline", "difference", "differ", "power")


@dataclass(frozen=True)
class CompareRequest:
    """The runs to compare and how, by the names of the settings of recipes.compare."""

    runs: tuple[str, ...]
    sets: tuple[str, ...]
    measures: tuple[str, ...]
    margin: float | None
    cluster: str | None
    correct: str
    alpha: float
    unpaired: bool
    only_baseline: bool


def compare(
    request: CompareRequest,
    power: str | None,
    adapters: AdapterChoice,
    output: OutputOptions,
    name: str | None,
) -> int:
    """Compare runs in a new run, or with `power` plan an evaluation; return the exit code."""
    if power is not None:
        return _plan([power, *request.runs], request, json=output.json)
    settings = list(from_mapping(asdict(request), COMMAND_LINE))
    collector = ReportCollector()

    def details() -> dict[str, Any]:
        return {"comparison": asdict(collector.report)} if collector.report else {}

    order = RunRequest(RECIPE, (), (), adapters, implied=settings)
    return run(order, output, name, (collector,), details)


def _plan(texts: Sequence[str], request: CompareRequest, *, json: bool) -> int:
    """Print the evaluation that numbers such as baseline=0.6 and difference=0.05 describe."""
    numbers = _plan_numbers(texts)
    items = numbers.pop("n", None)
    if items is not None and not items.is_integer():
        raise ConfigError(f"n={items:g} must be a whole number of items")
    found = plan_evaluation(
        n=None if items is None else int(items),
        paired=not request.unpaired,
        alpha=request.alpha,
        **numbers,
    )
    if json:
        print_json(asdict(found))
        return 0
    out = console()
    out.print(_plan_sentence(found), style="bold", soft_wrap=False)
    out.print(_assumptions(found), soft_wrap=False)
    return 0


def _plan_numbers(texts: Sequence[str]) -> dict[str, float]:
    """Return the numbers of `NAME=NUMBER` texts, which may be separated by commas."""
    numbers: dict[str, float] = {}
    for part in filter(None, re.split(r"[,\s]+", " ".join(texts))):
        name, _, text = part.partition("=")
        check_name("--power", name, _PLAN_NUMBERS)
        if name in numbers:
            raise ConfigError(f"--power: {name} is given twice")
        try:
            numbers[name] = float(text)
        except ValueError as error:
            raise ConfigError(f"--power: {part!r} must be NAME=NUMBER, such as n=200") from error
    return numbers


def _plan_sentence(plan: EvaluationPlan) -> str:
    percent = f"{100 * plan.power:.3g} %"
    each = "" if plan.paired else " in each of the two evaluations"
    if plan.computed == "power":
        return (
            f"{plan.n:,} items{each} show a difference of {plan.difference:+g} from a baseline of "
            f"{plan.baseline:g} with a power of {percent}."
        )
    if plan.difference is None:
        return f"{plan.n:,} items{each} show no gain over {plan.baseline:g} with {percent} power."
    if plan.baseline is None:
        return (
            f"{plan.n:,} items{each} show a difference of {plan.difference:+g} from no baseline "
            f"with {percent} power."
        )
    if plan.computed == "baseline":
        return _baseline_sentence(plan, plan.baseline, plan.difference)
    if plan.computed == "difference":
        return (
            f"{plan.n:,} items{each} show a difference of {plan.difference:+.3f} or more from a "
            f"baseline of {plan.baseline:g} with {percent} power."
        )
    return (
        f"{plan.n:,} items{each} are needed to show a difference of {plan.difference:+g} from a "
        f"baseline of {plan.baseline:g} with {percent} power."
    )


def _baseline_sentence(plan: EvaluationPlan, baseline: float, difference: float) -> str:
    """Return the sentence for a plan whose baseline was computed."""
    start = (
        f"{plan.n:,} items show a difference of {difference:+g} with {100 * plan.power:g} % power"
    )
    if baseline >= (1 - difference) / 2 - 1e-9:
        return f"{start} from any baseline."
    highest = 1 - difference - baseline
    return f"{start} from a baseline of at most {baseline:.3f}, or of at least {highest:.3f}."


def _assumptions(plan: EvaluationPlan) -> str:
    level = f"Significance level {plan.alpha:g}, two-sided."
    if not plan.paired:
        return f"{level} Fisher's exact test, because the two evaluations have different items."
    if plan.differ is not None:
        return (
            f"{level} McNemar's exact test on the same items, of which the two evaluations differ "
            f"on a share of {plan.differ:g}."
        )
    return (
        f"{level} McNemar's exact test on the same items. The two evaluations are taken to be "
        "right or wrong independently of each other, which is the cautious assumption: related "
        "models agree more often, and need fewer items. If you know the share of items on which "
        "they differ, add it, such as differ=0.2."
    )
