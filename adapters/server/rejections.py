"""Requests that are rejected before they are parsed."""

from __future__ import annotations


class RequestRejected(Exception):
    """A request that is rejected before it is parsed."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
