"""Numbers for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from adapters.server.sessions import Sessions


@dataclass
class Status:
    """Of HTTP; 500 until something else was said."""

    code: int = 500


class Metrics:
    """Requests by path and status, their time, and what there is at the moment."""

    def __init__(self, sessions: Sessions) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "kitchen_requests", "Requests of HTTP.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "kitchen_request_seconds", "Time to answer one.", ["path"], registry=self._registry
        )
        for name, about, count in (
            ("kitchen_sessions", "Sessions that have not ended.", lambda: len(list(sessions))),
            (
                "kitchen_models",
                "Models under training.",
                lambda: sum(len(each.models) for each in sessions),
            ),
            (
                "kitchen_promises",
                "Requests whose answers are kept.",
                lambda: len(sessions.promises),
            ),
        ):
            Gauge(name, about, registry=self._registry).set_function(count)

    @contextmanager
    def request(self, request: Request) -> Iterator[Status]:
        status, began = Status(), time.perf_counter()
        try:
            yield status
        finally:
            route = request.scope.get("route")
            path = getattr(route, "path", "other")
            self._requests.labels(path, str(status.code)).inc()
            self._seconds.labels(path).observe(time.perf_counter() - began)

    async def shown(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")
