"""Rewards and metrics by name: a user's MODULE:function, called with an answer and its row."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Any

from kitchen.config.user_functions import import_function
from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports import Dataset
from kitchen.ports.datasets import Row
from kitchen.ports.environments import StepResult
from kitchen.statistics.samples import UNBOUNDED, Bounds
from stages.chat.conversations import Conversation, Message, parse_conversation
from stages.chat.items import recorded_columns
from stages.chat.row_fields import REASONING, REFUSED_IN_ROWS, ROW_WEIGHTS
from stages.tasks.function_workers import FunctionPool, folder_of
from stages.tasks.step_results import (
    call_function,
    check_reward,
    check_step_result,
    function_name,
)
from stages.tasks.time_limit import name_callee

_ROW, _REFERENCE = "row", "reference"  # parameters that are not columns
# columns that a reward function may read, although they are refused or mean something else in
# training: those that it names, and without a name, those that only matter in training
_READ_BY_NAME = frozenset({*REFUSED_IN_ROWS, *REASONING, "label"})
_READ_FROM_ROW = frozenset({*ROW_WEIGHTS, "loss_mask", "mask", *REASONING})
_NO_ANSWER = "-"  # stands for the answer of a row that has none, while it is parsed
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class RewardFunction:
    """A user's reward function or metric, and what its parameters after the first one read."""

    name: str  # MODULE:function
    call: Callable[..., Any]
    answer: str  # the first parameter
    required: tuple[str, ...]  # parameters without a default
    optional: tuple[str, ...]
    takes_all: bool  # it has **columns
    setting: str = "reward"  # the setting that names it
    bounds: Bounds = UNBOUNDED  # range of its results, if it states one

    @property
    def in_process(self) -> bool:
        """True if calls belong in worker processes: it blocks, and its module can be imported."""
        module = self.name.partition(":")[0]
        return not iscoroutinefunction(self.call) and folder_of(module) is not None

    def arguments(self, row: Row, where: str) -> Mapping[str, Any]:
        """Return the arguments that a row has; raises DataError if one is missing."""
        known = {_ROW: dict(row), **row}
        missing = [name for name in self.required if name not in known and name != _REFERENCE]
        if missing:
            raise DataError(
                f"{where}: {self.setting}={self.name} reads {missing[0]!r}, which is not a column "
                f"of the row, {_ROW!r} or {_REFERENCE!r}; {did_you_mean(missing[0], known)}"
            )
        names = [*self.required, *self.optional]
        read = {name: known[name] for name in names if name in known}
        columns = {**row, **read} if self.takes_all else read
        return {name: value for name, value in columns.items() if name != self.answer}

    def parse(self, row: Row, where: str) -> Conversation:
        """Parse a row as `parse_question` does; raises DataError if it lacks a column, too."""
        return parse_for_functions([self], row, where)

    def read_columns(self) -> frozenset[str]:
        """Return the columns that are the function's, and are refused without it."""
        parameters = {*self.required, *self.optional}
        takes_row = self.takes_all or _ROW in parameters
        return (_READ_BY_NAME & parameters) | (_READ_FROM_ROW if takes_row else frozenset())


@dataclass(frozen=True, eq=False)
class RowReward:
    """A user's reward function for the answers to one row."""

    function: RewardFunction
    arguments: Mapping[str, Any]
    where: str = ""  # the row's place in the data
    workers: FunctionPool | None = None  # processes for a function that blocks; None for threads

    async def score(self, answer: str, reference: str) -> StepResult:
        """Return the reward of an answer; a number or None stands for a StepResult with it."""
        arguments = dict(self.arguments)
        if _REFERENCE in (*self.function.required, *self.function.optional):
            arguments.setdefault(_REFERENCE, reference)
        name_callee(f"{self.where}: {self.function.setting}={self.function.name}".lstrip(": "))
        result = await self._call(answer, arguments)
        source = function_name(self.function.call)
        if isinstance(result, StepResult):
            return check_step_result(result, source)
        kind = "reward" if self.function.setting == "reward" else "score"
        return StepResult(None if result is None else check_reward(result, source, kind))

    async def _call(self, answer: str, arguments: Mapping[str, Any]) -> Any:
        """Call the function; one that blocks in a process, if that can import it by its name."""
        function = self.function
        if self.workers is None or not function.in_process:
            return await call_function(function.call, answer, **arguments)
        module, _, attribute = function.name.partition(":")
        return await self.workers.call((module, attribute), answer, **arguments)


def find_reward(name: str, setting: str = "reward") -> RewardFunction:
    """Import a reward function, MODULE:function; raises ConfigError unless it can be called."""
    return _with_parameters(name, import_function(setting, name), setting)


def _with_parameters(name: str, call: Callable[..., Any], setting: str) -> RewardFunction:
    """Read the parameters of a reward function; raises ConfigError if it cannot take an answer."""
    parameters = list(inspect.signature(call).parameters.values())
    others = parameters[1:]
    takes_answer = bool(parameters) and parameters[0].kind not in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
    only_positional = [each for each in others if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    if not takes_answer or only_positional:
        raise ConfigError(
            f"{setting}={name} is called with the answer, and by name with columns of its row, as "
            f"in `def score(answer, {_ROW})`; its signature is {inspect.signature(call)}"
        )
    named = [each for each in others if each.kind in _BY_NAME]
    return RewardFunction(
        name,
        call,
        parameters[0].name,
        tuple(each.name for each in named if each.default is each.empty),
        tuple(each.name for each in named if each.default is not each.empty),
        any(each.kind is inspect.Parameter.VAR_KEYWORD for each in others),
        setting,
        _stated_bounds(f"{setting}={name}", call),
    )


def _stated_bounds(source: str, call: Callable[..., Any]) -> Bounds:
    """Return the range that a function states as its attribute `bounds`; else no limits."""
    bounds = getattr(call, "bounds", UNBOUNDED)
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not low < high:
        raise ConfigError(
            f"{source} has the bounds {bounds!r:.80}; they are the lowest and the highest score, "
            "such as (0, 1)"
        )
    return low, high


def row_rewards(
    function: RewardFunction, data: Dataset, workers: FunctionPool
) -> Sequence[RowReward]:
    """Return the reward of each row; raises DataError for a row without a column that it reads."""
    places = [data.where(at) for at in range(len(data))]
    return [
        RowReward(function, function.arguments(data[at], where), where, workers)
        for at, where in enumerate(places)
    ]


def parse_for_functions(
    functions: Iterable[RewardFunction],
    row: Row,
    where: str,
    parse: Callable[[Row, str], Conversation] | None = None,
) -> Conversation:
    """Parse a row, by default as `parse_question` does; raises DataError if it lacks a column, too.

    A column that only the functions read, such as `weight`, is not refused.
    """
    read: set[str] = set()
    for function in functions:
        function.arguments(row, where)
        read |= function.read_columns()
    asked = {name: value for name, value in row.items() if name not in read}
    conversation = (parse or parse_question)(asked, where)
    return replace(conversation, columns=recorded_columns(row), row=row)


def parse_question(row: Row, where: str) -> Conversation:
    """Parse a row as `parse_conversation` does; an answer may be missing, and is then empty."""
    messages = row.get("messages")
    placeholder = {"role": "assistant", "content": _NO_ANSWER}
    if row.get("prompt") is not None and not {"completion", "choices"} & _present(row):
        conversation = parse_conversation({**row, "completion": _NO_ANSWER}, where)
    elif isinstance(messages, list) and messages and _is_unanswered(messages[-1]):
        conversation = parse_conversation({**row, "messages": [*messages, placeholder]}, where)
    else:
        return parse_conversation(row, where)
    *prompt, answer = conversation.messages
    empty: Message = replace(answer, content="")
    columns = recorded_columns(row)
    return replace(conversation, messages=(*prompt, empty), columns=columns)


def _present(row: Row) -> set[str]:
    return {name for name, value in row.items() if value is not None}


def _is_unanswered(message: Any) -> bool:
    """Return whether a last message is to be answered: a user's, or a prefill."""
    if not isinstance(message, Mapping):
        return False
    return message.get("role") == "user" or message.get("prefix") is True
