"""A token bucket that bounds the extra requests to a share of all requests."""

from __future__ import annotations

BURST = 10  # extra requests that may be saved up


class Budget:
    """Earns `extra` tokens with each request, and pays one for each extra request.

    It starts empty, so that the extra requests never exceed this share of the requests so far. At
    most BURST tokens are kept: if all requests become late at once, few are sent again.
    """

    def __init__(self, extra: float, burst: int = BURST) -> None:
        self.extra = extra
        self._burst = burst
        self._tokens = 0.0

    def earn(self) -> None:
        self._tokens = min(self._tokens + self.extra, max(self._burst, 1.0))

    def pay(self) -> bool:
        """Take a token; return whether there was one."""
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True

    def refund(self) -> None:
        self._tokens += 1
