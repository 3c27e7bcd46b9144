"""Calls of users' reward functions and environments, and checks of what they return."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from kitchen.errors import RunFailed, exit_as_failure
from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult, Task
from stages.chat.prefill import with_open_end

MAX_REWARD = 1e30  # advantages are float32, and the rewards of several turns are added


class WrongResult(RunFailed):
    """A reward function or an environment returned a value of the wrong type."""


def function_name(function: Any) -> str:
    """Return the dotted name of a function or method, or of the class of another callable."""
    function = getattr(function, "func", function)  # of a functools.partial
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


async def call_function(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a user's function: a coroutine function in the event loop, others in a thread.

    A caller that stops waiting leaves the thread behind, because a thread cannot be killed.
    """
    if iscoroutinefunction(function):
        return await function(*arguments, **named)
    outcome: concurrent.futures.Future[tuple[Any, BaseException | None]] = (
        concurrent.futures.Future()
    )
    outcome.set_running_or_notify_cancel()
    context = copy_context()

    def call() -> None:
        # the error is a value, because a future of asyncio takes no StopIteration and raises others
        # without their traceback
        try:
            outcome.set_result((context.run(function, *arguments, **named), None))
        except BaseException as error:  # noqa: BLE001 it is raised where the result is awaited
            outcome.set_result((None, error))

    # a daemon, so that the process can end while it hangs
    threading.Thread(target=call, daemon=True, name=function_name(function)).start()
    result, error = await asyncio.wrap_future(outcome)
    if isinstance(error, KeyboardInterrupt | GeneratorExit):  # Ctrl-C is not raised in a thread
        raise exit_as_failure(error) from error
    if error is not None:
        raise error
    return await result if isawaitable(result) else result


async def open_env(task: Task) -> Env:
    """Return a new environment of a task; raises WrongResult for anything else."""
    env = task.env()
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        raise WrongResult(
            f"{function_name(task.env)} returned {_shown(env)}, and must return an Env, which has "
            "reset and step"
        )
    return env


async def reset_env(env: Env) -> Sequence[Message]:
    """Return the first messages of an environment, checked; there is at least one.

    A last one by the assistant is a prefill, which the answer continues.
    """
    messages = check_messages(await _await_result(env.reset), function_name(env.reset))
    if not messages:
        raise WrongResult(f"{function_name(env.reset)} returned no message")
    return with_open_end(messages)


async def step_env(env: Env, answer: str) -> StepResult:
    """Return the response of an environment to an answer, checked."""
    return check_step_result(await _await_result(env.step, answer), function_name(env.step))


async def _await_result(method: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    result = method(*arguments)
    if not isawaitable(result):
        name = function_name(method)
        raise WrongResult(
            f"{name} is not a coroutine function: define it by `async def {name.split('.')[-1]}`"
        )
    return await result


def check_step_result(result: Any, source: str) -> StepResult:
    """Return a StepResult whose reward, if any, is a number; raises WrongResult for others."""
    if not isinstance(result, StepResult):
        raise WrongResult(f"{source} returned {_shown(result)}, and must return a StepResult")
    reward = None if result.reward is None else check_reward(result.reward, source)
    parts = _checked_parts(result.parts, source)
    messages = with_open_end(check_messages(result.messages, source))
    return replace(result, reward=reward, messages=messages, parts=parts)


def _checked_parts(parts: Any, source: str) -> dict[str, float]:
    if not isinstance(parts, Mapping) or not all(map(_is_name, parts)):
        raise WrongResult(
            f"{source} returned {_shown(parts)} as parts, and must return numbers by name, each "
            "name a text of one line"
        )
    return {name: check_reward(part, source) for name, part in parts.items()}


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and len(name.splitlines()) == 1


def check_no_messages(result: StepResult, name: str) -> StepResult:
    """Return a result; raises WrongResult if it continues the conversation."""
    if result.messages:
        raise WrongResult(f"{name} returned messages, but cannot continue the conversation here")
    return result


def check_reward(value: Any, source: str, kind: str = "reward") -> float:
    """Return a reward as a float; raises WrongResult unless it is one to train on."""
    try:
        reward = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the latter by torch
        reward = math.nan
    if not math.isfinite(reward):
        raise WrongResult(f"{source} returned the {kind} {_shown(value)}, not a finite number")
    if abs(reward) > MAX_REWARD:
        raise WrongResult(
            f"{source} returned the {kind} {reward:g}, which is too large: {kind}s are numbers "
            f"from {-MAX_REWARD:g} to {MAX_REWARD:g}"
        )
    return reward


def check_messages(messages: Any, source: str) -> tuple[Message, ...]:
    """Return messages as a tuple; raises WrongResult unless each is a mapping with its role."""
    items = messages if isinstance(messages, Sequence) and not isinstance(messages, str) else None
    if items is None or not all(isinstance(item, Mapping) and "role" in item for item in items):
        raise WrongResult(
            f"{source} returned {_shown(messages)} as its messages, and must return a list or "
            'tuple of messages such as {"role": "user", "content": "..."}'
        )
    return tuple(items)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
