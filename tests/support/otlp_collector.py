"""An OpenTelemetry collector on loopback, which parses what an exporter sends."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """Spans, and the last point of each metric, as protobuf messages."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    resources: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def add_spans(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(group.resource))
            self.spans += chain.from_iterable(scope.spans for scope in group.scope_spans)

    def add_metrics(self, body: bytes) -> None:
        for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resources.append(attributes_of(group.resource))
            for metric in chain.from_iterable(scope.metrics for scope in group.scope_metrics):
                self.metrics[metric.name] = metric


def attributes_of(message: Any) -> dict[str, Any]:
    """Return the attributes of a span, a point or a resource."""
    return {pair.key: _value(pair.value) for pair in message.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    content = getattr(value, kind)
    return list(map(_value, content.values)) if kind == "array_value" else content


@contextmanager
def collecting() -> Iterator[Collector]:
    """Receive OTLP over HTTP until the block ends."""
    collector = Collector()
    sinks = {"/v1/traces": collector.add_spans, "/v1/metrics": collector.add_metrics}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sinks[self.path](body)
            collector.headers.append(dict(self.headers))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
