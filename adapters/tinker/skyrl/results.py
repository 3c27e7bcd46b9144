"""Results of requests, and what the bridge remembers of requests until their results are read."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, TypeVar

from adapters.tinker.skyrl.messages import ApiReply, Send, post
from kitchen.errors import BackendError

T = TypeVar("T")
MAX_REMEMBERED = 10_000  # requests
TRY_AGAIN = 408  # status of a result that is not there yet
AWAY = 503  # status if the server does not answer


def wait_for(answer: ApiReply, send: Send) -> dict[str, Any]:
    """Return the result of a request that SkyRL accepted; raises BackendError if it failed."""
    check(answer)
    result = await_end(answer.json()["request_id"], send)
    check(result)
    return result.json()


def await_end(request_id: str, send: Send) -> ApiReply:
    """Return the reply to a request that SkyRL accepted, which may be an error."""
    request = post("retrieve_future", {"request_id": request_id})
    while (answer := send(request)).status == TRY_AGAIN:
        pass
    return answer


def check(answer: ApiReply) -> None:
    """Raise BackendError with SkyRL's message if it refused a request."""
    if answer.is_error:
        raise BackendError(f"SkyRL: {answer.detail} (status {answer.status})")


class Remembered(Generic[T]):
    """Facts on the latest requests, by their ids; a result may be read more than once."""

    def __init__(self) -> None:
        self._facts = OrderedDict[str, T]()

    def add(self, request: str, fact: T) -> None:
        self._facts[request] = fact
        if len(self._facts) > MAX_REMEMBERED:
            self._facts.popitem(last=False)

    def get(self, request: str) -> T | None:
        return self._facts.get(request)
