"""Refused forward-backward passes, whose data an optimiser step would lack."""

from __future__ import annotations

from kitchen.errors import DataError


class RefusedPasses:
    """Decides which optimiser steps of a session have to be refused with a pass of their batch.

    A pass that is refused changes nothing. The gradient that was accumulated before it, and that of
    the passes submitted before its caller could know of the refusal, belong to the same batch: the
    next step is refused and this gradient discarded. A pass that was submitted later
    starts a new batch.
    """

    def __init__(self) -> None:
        self.count = 0  # refused passes so far; callers read it when they submit a pass
        self.is_incomplete = False  # the gradient lacks the data of a refused pass
        self._since_step = False  # a pass was refused since the last step

    def refuse(self, *, has_gradient: bool) -> None:
        """Note a pass that was refused; the caller discards the gradient that it has."""
        self.count += 1
        self._since_step = True
        self.is_incomplete = self.is_incomplete or has_gradient

    def accept(self, count: int) -> None:
        """Note a pass that was accepted, and submitted when `count` refusals were known."""
        if self._since_step and count < self.count:
            self.is_incomplete = True

    def check_step(self, *, has_gradient: bool) -> None:
        """Raise DataError for a step without a gradient, or with one that lacks a refused pass.

        The caller discards the gradient then. Whether or not it raises, the next pass begins a new
        batch.
        """
        is_incomplete, was_refused = self.is_incomplete, self._since_step
        self.clear()
        if is_incomplete:
            raise DataError(
                "optim_step is refused, because a forward_backward of its batch was refused: the "
                "gradient of the others is discarded, and the weights are unchanged; submit the "
                "whole batch again"
            )
        if not has_gradient:
            which = "the one before it was refused" if was_refused else "call it first"
            raise DataError(f"optim_step has no gradient to apply from forward_backward: {which}")

    def clear(self) -> None:
        """Begin a new batch, after a step or a load."""
        self.is_incomplete = self._since_step = False
