"""Export of spans and metrics to an OpenTelemetry collector, set up by environment variables."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import structlog
from opentelemetry import metrics, trace

from kitchen.backend.call_telemetry import metrics_or_none, tracer_or_none
from kitchen.config.extras import DISTRIBUTION, install_command_for
from kitchen.errors import ConfigError

log = structlog.get_logger("kitchen.runs.otlp")
_PREFIX = "OTEL_EXPORTER_OTLP_"
_SIGNALS = ("TRACES", "METRICS")
_PROTOCOL = "http/protobuf"
_SHUTDOWN_SECONDS = 5.0  # that the end of the process waits for a collector


def export_telemetry() -> None:
    """Send spans and metrics of this process to a collector, if OTEL_EXPORTER_OTLP_ENDPOINT is set.

    An SDK that the process has set up itself is left alone, as for OTEL_SDK_DISABLED=true. Raises
    ConfigError if the extra `otlp` is not installed, and for a value that cannot work.
    """
    endpoints = {signal: _endpoint(signal) for signal in _SIGNALS}
    if not any(endpoints.values()) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    for signal in filter(endpoints.get, _SIGNALS):
        _check_protocol(signal)
    try:
        resource, shutdowns = _resource(), list[Callable[[], None]]()
        if endpoints["TRACES"] and tracer_or_none() is None:
            shutdowns.append(_export_spans(resource))
        if endpoints["METRICS"] and metrics_or_none() is None:
            shutdowns.append(_export_metrics(resource))
    except ImportError as error:
        variables = map(_endpoint_variable, filter(endpoints.get, _SIGNALS))
        install = (
            install_command_for("opentelemetry.exporter.otlp.proto.http")
            or "pip install opentelemetry-exporter-otlp-proto-http"
        )
        raise ConfigError(
            f"{next(variables)} is set, and exporting to a collector needs the SDK and the OTLP "
            f"exporter of OpenTelemetry: {install}; or unset it ({error})"
        ) from error
    if shutdowns:
        _shut_down_at_exit(shutdowns)
        _log_first_warning()


def _endpoint(signal: str) -> str:
    """Return the URL to which a signal goes; empty if it is not exported."""
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip() == "none":
        return ""
    variable = _endpoint_variable(signal)
    url = os.environ.get(variable, "").strip()
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
        raise ConfigError(
            f"{variable}={url!r} is not a URL such as http://localhost:4318, the address of a "
            "collector that receives OTLP over HTTP"
        )
    return url


def _endpoint_variable(signal: str) -> str:
    """Return the variable that holds the endpoint of a signal."""
    own = f"{_PREFIX}{signal}_ENDPOINT"
    return own if os.environ.get(own, "").strip() else f"{_PREFIX}ENDPOINT"


def _check_protocol(signal: str) -> None:
    """Raise ConfigError for a protocol other than OTLP over HTTP, in protobuf."""
    own, shared = f"{_PREFIX}{signal}_PROTOCOL", f"{_PREFIX}PROTOCOL"
    variable = own if os.environ.get(own) else shared
    protocol = os.environ.get(variable) or _PROTOCOL
    if protocol != _PROTOCOL:
        raise ConfigError(
            f"{variable}={protocol!r} is not supported: set it to {_PROTOCOL}, and the endpoint to "
            "the collector's port for HTTP, usually 4318"
        )


def _resource() -> Any:
    """Return the attributes of this process, of which the environment may set any."""
    from opentelemetry.sdk.resources import Resource

    given = Resource.create().attributes  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    attributes = {"service.version": given.get("service.version") or version(DISTRIBUTION)}
    if str(given["service.name"]).startswith("unknown_service"):  # the default of the SDK
        attributes["service.name"] = DISTRIBUTION
    return Resource.create(attributes)


def _export_spans(resource: Any) -> Callable[[], None]:
    """Set up spans; return the function that sends the last of them."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _export_metrics(resource: Any) -> Callable[[], None]:
    """Set up metrics; return the function that sends their last values."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _shut_down_at_exit(shutdowns: Sequence[Callable[[], None]]) -> None:
    """Send what is left when the process ends, without waiting long for a collector.

    The SDK itself would wait up to 30 seconds for each signal. The threads start now, because a
    process that is ending cannot start any.
    """
    ending = threading.Event()

    def shut_down(shutdown: Callable[[], None]) -> None:
        ending.wait()
        shutdown()

    threads = [threading.Thread(target=shut_down, args=(each,), daemon=True) for each in shutdowns]
    for thread in threads:
        thread.start()

    def end() -> None:
        deadline = time.monotonic() + _SHUTDOWN_SECONDS
        ending.set()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    atexit.register(end)


class _FirstWarning(logging.Handler):
    """Logs the first warning of OpenTelemetry: a collector that is away causes one every second."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_logged = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_logged:
            self._is_logged = True
            log.warning(
                "spans and metrics may be missing in the collector", why=record.getMessage()
            )


def _log_first_warning() -> None:
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(_FirstWarning())
    logger.propagate = False
