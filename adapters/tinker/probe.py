"""A probe of a server: one small request for each feature that recipes may need."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import tinker

from adapters.tinker.errors import says_unsupported, translate_error
from adapters.tinker.futures import new_future
from adapters.tinker.http_client import check_health
from adapters.tinker.job_queue import JobQueue, run_into
from adapters.tinker.probe_requests import Check, NotTried, ProbeRequests
from adapters.tinker.service import Service, wait_for_closing
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.errors import BackendError
from kitchen.secrets import mask

REQUEST_TIMEOUT = 60.0  # seconds
CLEANUP_TIMEOUT = 10.0  # seconds
REJECTED_KEY = 401
# in an answer about a loss whose inputs are not known here: the server does not have it
_NO_SUCH = re.compile(
    r"unknown|unsupported|not (supported|implemented|known|available)|invalid|no loss|should be",
    re.IGNORECASE,
)


class Probe:
    """Tries the features of a server in a separate session, which ends with the probe.

    All requests are small, and each has a time limit. Checkpoints that the probe saves are deleted
    at its end, whatever happens; should this fail, they expire.
    """

    def __init__(
        self,
        service: Service,
        model: str,
        rank: int,
        losses: Sequence[str],
        *,
        timeout: float = REQUEST_TIMEOUT,
    ) -> None:
        """Prepare the probe of a base model and `losses`; `rank` is that of its LoRA weights."""
        self._service = service
        self._model = model
        self._rank = rank
        self._losses = losses
        self._timeout = timeout

    def run(self, on_finding: Callable[[Finding], None]) -> ProbeReport:
        """Return the report; `on_finding` gets each finding as it arrives.

        Raises BackendError if the server is away, rejects the key or cannot open the model.
        """
        started = time.monotonic()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        findings = []
        self._service.enter()
        try:
            requests = ProbeRequests(
                self._service, self._connect(), self._model, self._rank, self._timeout
            )
            try:
                self._open(requests)
                for check in requests.checks(self._losses):
                    findings.append(self._find(requests, check))
                    on_finding(findings[-1])
            finally:
                requests.clean_up(CLEANUP_TIMEOUT)
        finally:
            self._service.leave()
            wait_for_closing(CLEANUP_TIMEOUT)
        seconds = time.monotonic() - started
        return ProbeReport(self._service.name, self._model, date, seconds, findings)

    def _connect(self) -> Any:
        """Return the SDK's ServiceClient, opened on a thread, so that Ctrl-C ends the wait."""
        jobs, opened = JobQueue("probe of a server"), new_future()
        jobs.put(lambda: run_into(opened, self._service.client, self._service.name))
        jobs.close()
        try:
            return opened.result(self._timeout)
        except TimeoutError as error:
            raise BackendError(
                f"{self._service.name}: {reason(error, self._service.name, self._timeout)}"
            ) from error

    def _open(self, requests: ProbeRequests) -> None:
        try:
            requests.training()
        except Exception as error:
            raise BackendError(
                f"{self._service.name} opens no session that trains {self._model}: "
                f"{reason(error, self._service.name, self._timeout)}"
            ) from error

    def _find(self, requests: ProbeRequests, check: Check) -> Finding:
        """Try a feature; raises BackendError for an error that is not about this feature."""
        started = time.monotonic()
        present: bool | None = True
        detail = ""
        try:
            check.run()
        except NotTried as error:
            present, detail = None, str(error)
        except Exception as error:
            requests.forget_clients()
            present = False if says_unsupported(error) else None
            if getattr(error, "status_code", 0) == REJECTED_KEY:
                raise translate_error(error, self._service.name) from error
            if present is None:
                check_health(self._service.address, self._service.read_key(), timeout=self._timeout)
            detail = reason(error, self._service.name, self._timeout)
            if present is False and may_be_about_inputs(check, error, detail):
                present = None
                detail = f"{detail} (the probe does not know which inputs this loss needs)"
        seconds = time.monotonic() - started
        return Finding(check.feature, present, check.needed_for, detail, seconds)


def may_be_about_inputs(check: Check, error: BaseException, detail: str) -> bool:
    """Return whether a server may have a loss that it refused, as it reads other inputs."""
    is_answer = isinstance(error, BackendError)  # it was accepted, and the answer is of no use
    return not (check.inputs_known or is_answer or _NO_SUCH.search(detail))


def reason(error: BaseException, server: str, timeout: float = 0.0) -> str:
    """Return an error as the reason why a feature of a server is absent or not known."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout:g} s, or only errors after which the SDK tries again"
    if isinstance(error, tinker.APIStatusError):
        return mask(f"status {error.status_code}: {_detail(error)}")
    return str(translate_error(error, server)).removeprefix(f"{server}: ")


def _detail(error: tinker.APIStatusError) -> str:
    return str(error.body.get("detail", error.body) if isinstance(error.body, dict) else error)
