"""Metrics for Prometheus."""

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
    """The HTTP status of a response; 500 until one is sent."""

    code: int = 500


class Metrics:
    """Requests by path and status, their duration, and what the server holds in memory."""

    def __init__(self, sessions: Sessions) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "kitchen_requests", "HTTP requests.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "kitchen_request_seconds",
            "Seconds until a request is answered.",
            ["path"],
            registry=self._registry,
        )
        for name, help_text, count in (
            ("kitchen_sessions", "Open sessions.", lambda: len(list(sessions))),
            (
                "kitchen_models",
                "Models under training.",
                lambda: sum(len(client.models) for client in sessions),
            ),
            (
                "kitchen_futures",
                "Requests in progress, and results held for clients to fetch.",
                lambda: len(sessions.futures),
            ),
            ("kitchen_polls", "Clients that wait for a result.", lambda: sessions.futures.polls),
        ):
            Gauge(name, help_text, registry=self._registry).set_function(count)

    @contextmanager
    def request(self, request: Request) -> Iterator[Status]:
        """Count and time a request; the caller sets the status."""
        status = Status()
        start = time.perf_counter()
        try:
            yield status
        finally:
            route = request.scope.get("route")
            path = getattr(route, "path", "other")
            self._requests.labels(path, str(status.code)).inc()
            self._seconds.labels(path).observe(time.perf_counter() - start)

    async def render(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")
