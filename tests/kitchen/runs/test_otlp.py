"""Spans and metrics of `kitchen run` arrive at a collector, as OTLP over HTTP."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from adapters.local.blobs import LocalBlobs
from kitchen.errors import ConfigError
from kitchen.runs.otlp import export_telemetry
from kitchen.runs.store import read_journal
from tests.support.commands import shell_output
from tests.support.otlp_collector import attributes_of, collecting

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
RUN = (
    "kitchen run recipes.sl_basic --training fake --name dish max_steps=3 eval_every=0 "
    "warmup_steps=0 reading.limit=12 reading.held_out_rows=4 evaluation.max_tokens=5"
)


def test_run_is_exported_to_a_collector(tmp_path: Path) -> None:
    with collecting() as collector:
        variables = f"{ENDPOINT}={collector.url} OTEL_EXPORTER_OTLP_HEADERS=api-key=mine"
        shell_output(tmp_path, f"{variables} OTEL_EXPORTER_OTLP_COMPRESSION=gzip {RUN}")
    assert {row["service.name"] for row in collector.resources} == {"crucible-kitchen"}
    assert {headers["api-key"] for headers in collector.headers} == {"mine"}
    rows = read_journal(LocalBlobs(str(tmp_path / "runs")), "dish", "requests")
    spans = Counter(span.name for span in collector.spans)
    for name, count in Counter(f"{row['port']}.{row['verb']}" for row in rows).items():
        assert spans[name] == count, name
    assert spans["run"] == 1
    for span in collector.spans:
        has_names = any(name.startswith("gen_ai.") for name in attributes_of(span))
        assert has_names == (span.name == "Sampler.sample"), span.name
    sampling = [attributes_of(span) for span in collector.spans if span.name == "Sampler.sample"]
    assert sampling[0] | {"kitchen.stage": "EvaluateBase"} == sampling[0]
    wanted = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "fake",
        "gen_ai.request.model": "packaged:smollm2-135m-instruct",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert sampling[0] | wanted == sampling[0]
    for kind in ("input", "output"):
        spent = sum(row[f"gen_ai.usage.{kind}_tokens"] for row in sampling)
        of_rows = [row.get(f"{kind}_tokens", 0) for row in rows]
        of_samples = [row[f"{kind}_tokens"] for row in rows if row["verb"] == "sample"]
        assert spent == sum(of_samples) > 0
        points = collector.metrics["kitchen.port.call.tokens"].sum.data_points
        of_kind = [p for p in points if attributes_of(p)["kitchen.token.type"] == kind]
        assert sum(point.as_int for point in of_kind) == sum(of_rows)
    duration = collector.metrics["kitchen.port.call.duration"]
    assert duration.unit == "s"
    assert sum(point.count for point in duration.histogram.data_points) == len(rows)
    assert sum(point.sum for point in duration.histogram.data_points) == pytest.approx(
        sum(row["duration_ms"] for row in rows) / 1000, abs=1e-6 * len(rows)
    )
    assert "kitchen.port.call.errors" not in collector.metrics


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({ENDPOINT: "localhost:4318"}, "localhost:4318"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "collector"}, "OTLP_METRICS_ENDPOINT"),
        (
            {ENDPOINT: "http://[::1]:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTLP_PROTOCOL='grpc'",
        ),
    ],
)
def test_wrong_variable_is_named(
    variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as raised:
        export_telemetry()
    assert named in str(raised.value)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://localhost:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError) as raised:
        export_telemetry()
    assert "pip install 'crucible-kitchen[otlp]'" in str(raised.value)
    for name, value in (("OTEL_SDK_DISABLED", "true"), (ENDPOINT, "")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            export_telemetry()
