"""The training passes of a session by batch, and the answers of the server to them.

A batch is the passes between two optimiser steps. A pass that is refused, here or by the server,
changes nothing. A step must not apply a gradient that lacks the data of such a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from kitchen.errors import ConfigError, DataError, RunFailed

# called with the error of an answer, or None; returns the error that ends the session, or None
Outcome = Callable[[BaseException | None], BaseException | None]


def is_refusal(error: BaseException | None) -> bool:
    """Return whether an error means that the input was refused, and nothing was changed."""
    return isinstance(error, DataError | ConfigError)


class Batch:
    """The passes that one optimiser step applies."""

    def __init__(self) -> None:
        self.passes = 0  # sent to the server, and not refused so far
        self.is_refused = False  # a pass was refused
        self.unanswered = 0  # passes that the server has not answered
        self.step: tuple[BaseException | None] | None = None  # the error of its step, if answered

    @property
    def is_incomplete(self) -> bool:
        """True if the gradient on the server lacks the data of a refused pass."""
        return self.is_refused and self.passes > 0


class Batches:
    """The current batch of a session, and the earlier ones whose answers are pending.

    The requests are sent on one thread, and the answers arrive on others.
    """

    def __init__(self, server: str, *, discards: bool) -> None:
        """`discards`: the server discards the gradient of a batch with a refused pass."""
        self.refusals = 0  # so far; callers read it when they submit a pass
        self.steps = 0  # applied to the weights
        self._server = server
        self._discards = discards
        self._batch = Batch()
        self._unanswered_steps: list[Batch] = []
        self._lock = threading.RLock()

    def refuse(self) -> None:
        """Note a pass that was refused before it was sent."""
        with self._lock:
            self.refusals += 1
            self._batch.is_refused = True

    def send_pass(self, refusals: int, *, is_one_request: bool) -> Outcome:
        """Note a pass that was sent, and submitted when `refusals` were known.

        Unless its caller could know of the refusal that left the batch empty, it belongs to this
        batch. A refused part of several requests has not stopped the others.
        """
        with self._lock:
            if self._batch.is_refused and not self._batch.passes and refusals == self.refusals:
                self._batch = Batch()
            batch = self._batch
            batch.passes += 1
            batch.unanswered += 1

        def on_answer(error: BaseException | None) -> BaseException | None:
            with self._lock:
                batch.unanswered -= 1
                if is_refusal(error) and is_one_request:
                    self.refusals += 1
                    batch.passes -= 1
                    batch.is_refused = True
                elif error is not None:
                    return error
                return self._judge(batch)

        return on_answer

    def check_step(self) -> bool:
        """Return whether the server has to discard the gradient, since it lacks a refused pass.

        Raises DataError for a step without a gradient, and RunFailed if the server discards none.
        """
        with self._lock:
            batch = self._batch
            if batch.is_incomplete and not self._discards:
                raise RunFailed(
                    f"{self._server} has accumulated a gradient that lacks the data of a "
                    "forward_backward that was refused, and it cannot be discarded there; load the "
                    "last checkpoint"
                )
            if not batch.passes:
                self._batch = Batch()
                which = "the one before it was refused" if batch.is_refused else "call it first"
                raise DataError(
                    f"optim_step has no gradient to apply from forward_backward: {which}"
                )
            return batch.is_incomplete

    def send_step(self) -> Outcome:
        """Note a step that was sent; the next pass begins a new batch."""
        with self._lock:
            batch, self._batch = self._batch, Batch()
            self._unanswered_steps.append(batch)

        def on_answer(error: BaseException | None) -> BaseException | None:
            with self._lock:
                batch.step = (error,)
                if batch in self._unanswered_steps:  # no checkpoint was loaded since
                    self._unanswered_steps.remove(batch)
                    self.steps += error is None
                return self._judge(batch)

        return on_answer

    def count_steps(self) -> Callable[[], int]:
        """Return a function that counts the steps before now, once they are answered."""
        with self._lock:
            steps, unanswered = self.steps, tuple(self._unanswered_steps)
        return lambda: steps + sum(batch.step in (None, (None,)) for batch in unanswered)

    def clear(self, steps: int) -> None:
        """Begin a new batch after a load of weights that were trained for `steps`."""
        with self._lock:
            self.steps = steps
            self._batch = Batch()
            self._unanswered_steps = []

    def _judge(self, batch: Batch) -> BaseException | None:
        """Return the error that ends the session, once the step and all its passes are answered."""
        if batch.step is None or batch.unanswered:
            return None
        [error] = batch.step
        if error is None and batch.is_refused:
            return RunFailed(
                f"{self._server} has applied a gradient that lacks the data of a forward_backward "
                "that was refused; load the last checkpoint"
            )
        is_discarded = batch.is_refused and (self._discards or not batch.passes)
        return None if is_refusal(error) and is_discarded else error
