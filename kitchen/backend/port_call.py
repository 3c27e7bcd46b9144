"""One call of a port during a run, as it is recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class PortCall:
    """One call of a port; the fields from `duration_ms` on are complete when it has ended."""

    port: str  # such as "TrainingSession"
    verb: str  # such as "forward_backward"
    caller: Mapping[str, str | int]  # "kitchen.recipe", "kitchen.stage" and "kitchen.step"
    model: str | None = None  # the model or weights of a session or sampler, where known
    started: float = field(default_factory=time.time)  # Unix time, seconds
    duration_ms: float = 0.0  # until the result arrived
    input_tokens: int | None = None
    output_tokens: int | None = None
    retries: int = 0  # HTTP requests that were sent again
    hedge: str = ""  # an extra request was sent, as the first was late: "won" or "lost"
    http_status: int | None = None  # of the last response
    error_type: str = ""

    def add_response(self, status: int, *, retried: bool = False) -> None:
        """Add an HTTP response to a request of this call; `retried` if it was sent again."""
        self.http_status = status
        self.retries += retried


_CURRENT: ContextVar[PortCall | None] = ContextVar("call of a port", default=None)


def current_call() -> PortCall | None:
    """Return the call of a port that this code works for; None outside of a run's calls.

    An adapter that works on another thread copies the context of the call.
    """
    return _CURRENT.get()


@contextmanager
def working_for(call: PortCall) -> Iterator[None]:
    """Make a call the current one in this context during the block."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)
