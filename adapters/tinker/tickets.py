"""Futures of the SDK as ours, with its errors in our words."""

from __future__ import annotations

import concurrent.futures
import contextvars
import queue
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import tinker

from adapters.tinker.service import Service
from adapters.tinker.works import Work, fail, give
from kitchen import errors
from kitchen.errors import ApiError, BackendError, DataError, KitchenError, RunFailed, SessionLost
from kitchen.secrets import mask

T = TypeVar("T")
_FAILED = re.compile(r"Request failed: (.*?)(?: for self\.request_id=.*)?$", re.DOTALL)
_KIND = re.compile(r"(\w+): (.*)", re.DOTALL)
_STATUS = re.compile(r"with status (\d+)")
# what the SDK says of clients that are no more
DEAD = ("poisoned", "holder is closed", "ServiceClient is closed")
OVER = (404, 410)  # statuses of something that the server does not know any more


def explained(error: BaseException) -> BaseException:
    """What the SDK says, as one of the kitchen's errors; SessionLost where to open a session again
    may mend it.
    """
    if isinstance(error, KitchenError):
        return error
    if isinstance(error, concurrent.futures.CancelledError):
        return SessionLost("the session was let go before the answer came")
    text = mask(str(error) or type(error).__name__)
    if isinstance(error, tinker.RequestFailedError):
        return _refused(error, text)
    if isinstance(error, tinker.APIStatusError):
        return _of_status(error.status_code, text, error)
    if isinstance(error, tinker.APIConnectionError | TimeoutError | ConnectionError):
        return SessionLost(f"the server cannot be reached: {text}")
    if type(error).__name__ == "RetryableException" or any(word in text for word in DEAD):
        return SessionLost(f"the session is lost: {text}")
    if (match := _STATUS.search(text)) is not None:
        return _of_status(int(match[1]), text, error)
    return RunFailed(f"the SDK of Tinker failed: {type(error).__name__}: {text}")


def _refused(error: Any, text: str) -> KitchenError:
    """What went wrong on the server while it did what it was asked; a `kitchen serve` says of which
    kind it is.
    """
    said = match[1] if (match := _FAILED.match(text)) else text
    if (match := _KIND.match(said)) is not None:
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, KitchenError) and kind is not ApiError:
            return kind(match[2])
    return (
        DataError(said)
        if error.category == tinker.types.RequestErrorCategory.User
        else RunFailed(f"the server failed: {said}")
    )


def _of_status(status: int, text: str, error: Any) -> KitchenError:
    detail = getattr(error, "body", None)
    said = mask(str(detail.get("detail", text))) if isinstance(detail, dict) else text
    if status in OVER:
        return SessionLost(f"the session is lost: {said}")
    if status in (401, 403):
        return BackendError(f"the server refuses the API key: {said}")
    return ApiError(f"the server answered with status {status}: {said}", status=status, body=said)


def follow(asked: Any, told: Callable[[Any], T], answer: Work[T]) -> None:
    """Once the SDK's future is done, so is ours, with what `told` makes of it."""

    def done(found: Work[Any]) -> None:
        try:
            give(answer, told(found.result()))
        except BaseException as error:  # noqa: BLE001 it surfaces on the future
            fail(answer, explained(error))

    asked.future().add_done_callback(done)


class Line(threading.Thread):
    """Does one thing after the other, so that whoever asks need not wait; a daemon, for a server
    may not answer.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # again in the same thread, as that of Service
        self._lock, self._closed = threading.RLock(), False
        self.start()

    def put(self, job: Callable[[], None]) -> bool:
        """Whether it is taken: nothing is once the line is closed.

        The job is done in the context of whoever puts it here: logs and spans go to their run.
        """
        here = contextvars.copy_context()
        with self._lock:
            if not self._closed:
                self._jobs.put(lambda: here.run(job))
            return not self._closed

    def close(self) -> None:
        """What was taken before is still done."""
        with self._lock:
            self._closed = True
        self._jobs.put(None)

    def run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            # else the last job, and all that it holds, would live until the next one comes
            job = None


def settle(answer: Work[T], job: Callable[[], T]) -> None:
    """Do it now, and have its answer or its error surface on the future."""
    try:
        give(answer, job())
    except BaseException as error:  # noqa: BLE001 it surfaces on the future
        fail(answer, explained(error))


def using(service: Service, user: Any, line: Line) -> Callable[[], Any]:
    """Until this is called, or nobody has the user any more, the service is not over."""

    def end() -> None:
        line.close()
        service.leave()

    service.enter()
    ending = weakref.finalize(user, end)
    ending.atexit = False
    return ending
