"""Functions as users write them, some of which never return, for tests of worker processes.

The module imports only the standard library at first, so that workers start quickly.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from typing import Any


def double(answer: str, count: int = 2) -> Any:
    from kitchen.ports.environments import StepResult

    print("scored", answer)
    return StepResult(float(count * len(answer)), parts={"length": len(answer)})


def process_id(answer: str) -> int:
    return os.getpid()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def gold(answer: str) -> float:
    return {"soup": 1.0}[answer]


def leaves(answer: str) -> float:
    raise SystemExit(3)


def dies(answer: str) -> float:
    os.write(2, b"no room for it\n")
    os._exit(3)


def makes_lambda(answer: str) -> Any:
    return lambda: answer


def draws(answer: str) -> list[float]:
    import numpy as np

    return [random.random(), float(np.random.rand()), *map(float, {"thyme": 1, "sage": 2}.values())]


def spins(answer: str) -> float:
    while True:
        pass


def backtracks(answer: str) -> float:
    return float(bool(re.match(r"(a+)+$", "a" * 60 + "b")))


def sleeps(answer: str) -> float:
    time.sleep(1e6)
    return 0.0


def starts_another(answer: str) -> float:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1e6)"], check=True)
    return 0.0


async def awaited(answer: str) -> str:
    await asyncio.sleep(0)
    return answer


def returns_coroutine(answer: str) -> Any:
    return awaited(answer)


def falls(step: int, steps: int) -> float:
    return 1.0 - step / steps


def rises_too_far(step: int, steps: int) -> float:
    return float("inf") if step == 2 else 1.0


def fails_at_2(step: int, steps: int) -> float:
    return [1.0, 0.5][step]


def one_parameter(step: int) -> float:
    return 1.0


def above_half(rewards: Any) -> Any:
    return rewards - 0.5


def as_list(rewards: Any) -> list[float]:
    return [1.0 if reward else -1.0 for reward in rewards]


def too_few(rewards: Any) -> Any:
    return rewards[1:]


def not_finite(rewards: Any) -> Any:
    return rewards * float("nan")


def nothing(rewards: Any) -> None:
    """Return nothing."""


def unknown_key(rewards: Any) -> float:
    return {0: 1.0}[len(rewards)]


def forks(answer: str) -> float:
    """Leave a child behind that returns, too."""
    return 1.0 if os.fork() else -1.0


def leaves_a_server(answer: str) -> float:
    """Leave a program behind that has standard error open, and is in another process group."""
    subprocess.Popen(["sleep", "20"], start_new_session=True)
    return 1.0


async def asynchronous(step: int, steps: int) -> float:
    return 1.0
