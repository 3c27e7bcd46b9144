"""A token bucket that bounds the extra requests to a share of all requests."""

from __future__ import annotations

BURST = 3.0  # extra requests that may be saved up while few requests are pending


class Budget:
    """Earns `extra` tokens with each request, and pays one for each extra request.

    It starts empty, so that the extra requests never exceed this share of the requests so far. It
    holds at most BURST tokens, or those of the largest number of requests that have been pending at
    a time, since none was. So a batch of requests sent at once can use the tokens that it has
    earned, but a server that becomes slow does not get many extra requests at once.
    """

    def __init__(self, extra: float) -> None:
        self.extra = extra
        self._tokens = 0.0
        self._pending = 0
        self._most_pending = 0

    def begin(self) -> float:
        """Note a request; return the tokens that it earned."""
        self._pending += 1
        self._most_pending = max(self._most_pending, self._pending)
        capacity = max(BURST, self.extra * self._most_pending)
        earned = max(min(self.extra, capacity - self._tokens), 0.0)
        self._tokens += earned
        return earned

    def end(self) -> None:
        """Note the answer of a request."""
        self._pending -= 1
        if not self._pending:
            self._most_pending = 0

    def forget(self, earned: float) -> None:
        """Note that a request was not sent, and take back the tokens that it earned."""
        self._tokens -= earned
        self.end()

    def pay(self) -> bool:
        """Take a token; return whether there was one."""
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True

    def refund(self) -> None:
        self._tokens += 1
