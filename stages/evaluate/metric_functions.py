"""Metrics by name: a user's function, MODULE:function, called with each answer and its row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from kitchen.backend.work import gather_counted
from kitchen.config.user_functions import is_function_name
from kitchen.errors import ConfigError, RunFailed, describe_error, exits_as_failures
from kitchen.ports.datasets import Row
from kitchen.ports.environments import StepResult
from stages.chat.conversations import Conversation
from stages.chat.plain_text import parse_row
from stages.chat.prompts import prefill_text, reference_answer
from stages.tasks.function_workers import FunctionPool
from stages.tasks.grading import GradingConfig
from stages.tasks.own_reward import RewardFunction, RowReward, find_reward, parse_question
from stages.tasks.rewards import grade
from stages.tasks.rubric import RUBRIC
from stages.tasks.step_results import WrongResult, check_no_messages
from stages.tasks.time_limit import TimeLimit

log = structlog.get_logger("stages.evaluate")

METRIC = "evaluation.metric"
TIMEOUT = 60.0  # seconds per answer
MAX_CONCURRENT = 8  # answers scored at the same time
MAX_FAILED = 0.2  # largest share of the answers to a set that may have no score
# measures of evaluations; those of several attempts are called pass_at_K
_TAKEN = (
    "truncated",
    "uncompared",
    "exact_match",
    "field_f1",
    "acc",
    "acc_norm",
    "loss",
    "bits_per_byte",
)


def find_metric(name: str) -> RewardFunction:
    """Import a metric, MODULE:function; raises ConfigError unless it can be called."""
    measure = measure_of(name)
    if measure in _TAKEN or measure.startswith("pass_at_"):
        raise ConfigError(
            f"{METRIC}={name}: evaluations already have a measure {measure!r}; rename the function"
        )
    return find_reward(name, METRIC)


def measure_of(metric: str) -> str:
    """Return the name under which the scores of a metric function are reported."""
    return metric.rpartition(":")[2]


def check_no_judge_needed(metric: str) -> None:
    """Raise ConfigError for a metric that needs a judge, where there is none."""
    if metric == RUBRIC:
        raise ConfigError(
            f"{METRIC}={RUBRIC} is a metric of recipes.evaluate alone: leave it out here, and "
            "evaluate the weights afterwards, with kitchen eval"
        )


def row_parser(metric: str) -> Callable[[Row, str], Conversation]:
    """Return the parser of rows: for a metric function or a judge, a row needs no answer."""
    if metric == RUBRIC:
        return parse_question
    return find_metric(metric).parse if is_function_name(metric) else parse_row


def check_columns_of(metric: str, rows: Sequence[Conversation]) -> None:
    """Raise DataError, which names the row, for a column that a metric function lacks."""
    function = find_metric(metric)
    for row in rows:
        function.arguments(row.row, row.where)


async def score_answers(
    metric: str,
    answers: Sequence[tuple[Conversation, str]],
    grading: GradingConfig,
    timeout: float = TIMEOUT,
) -> list[StepResult | str]:
    """Score answers by a metric function: each gets a result, or the reason why it has none.

    Raises RunFailed, with the first reason, if more than MAX_FAILED of them fail; the others are
    then left out, because a function that hangs takes its whole time for each.
    """
    function = find_metric(metric)
    slots = asyncio.Semaphore(MAX_CONCURRENT)
    errors: dict[int, Exception] = {}
    most_errors = MAX_FAILED * len(answers)

    async def score(index: int, workers: FunctionPool) -> StepResult | str:
        try:
            with exits_as_failures():
                async with slots, TimeLimit(timeout):
                    if len(errors) > most_errors:
                        return "too many others have no score"
                    return await _score(function, *answers[index], grading, workers)
        except Exception as error:  # noqa: BLE001 a failed answer is a value
            errors[index] = error
            return describe_error(error)

    with closing(FunctionPool()) as workers:
        scores = (score(at, workers) for at in range(len(answers)))
        results = await gather_counted(scores, "scored answers")
    if len(errors) > most_errors:
        first = min(errors)
        raise RunFailed(
            f"{answers[first][0].where}: {METRIC}={metric}: {len(errors)} of {len(answers)} "
            f"answers have no score, more than {MAX_FAILED:.0%}. The first error: {results[first]}"
        ) from errors[first]
    _warn_of_no_scores(metric, answers, results)
    return results


def _warn_of_no_scores(
    metric: str,
    answers: Sequence[tuple[Conversation, str]],
    results: Sequence[StepResult | str],
) -> None:
    if results and all(isinstance(each, StepResult) and each.reward is None for each in results):
        log.warning(
            f"{METRIC}={metric} returned None for all {len(results)} answers, which is also what "
            "a function without `return` returns",
            first=answers[0][0].where,
        )


async def _score(
    function: RewardFunction,
    row: Conversation,
    text: str,
    grading: GradingConfig,
    workers: FunctionPool,
) -> StepResult:
    reward = RowReward(function, function.arguments(row.row, row.where), row.where, workers)
    result = await grade(reward, prefill_text(row) + text, [reference_answer(row)], grading)
    low, high = function.bounds
    if result.reward is not None and not low <= result.reward <= high:
        raise WrongResult(
            f"{function.name} returned the score {result.reward:g}, outside of its bounds, "
            f"{low:g} to {high:g}"
        )
    return check_no_messages(result, f"{METRIC}={function.name}")
