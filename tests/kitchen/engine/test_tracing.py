"""Spans in the SDK's in-memory exporter, in a subprocess because a provider is set only once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SPANS = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""
COOK = """
import json
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from recipes.sl_basic import SlBasic

TURNS = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "{}"}]
CHATS = [{"messages": TURNS}] * 4
blobs = FakeBlobs()
datasets = FakeDatasets({"chats": {"train": CHATS, "held": CHATS}})
kitchen = Kitchen(FakeTraining(blobs), datasets, None, blobs)
kitchen.cook(SlBasic(dataset="chats", batch_size=2, max_steps=2), name="run")
"""
SHOW = """
print(json.dumps([
    {
        "name": s.name,
        "id": s.context.span_id,
        "parent": s.parent.span_id if s.parent else None,
        "attributes": dict(s.attributes),
        "ended": s.end_time is not None,
    }
    for s in exporter.get_finished_spans()
]))
"""


def spans(code: str) -> list[dict[str, Any]]:
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert process.returncode == 0, process.stderr
    records: list[dict[str, Any]] = json.loads(process.stdout.splitlines()[-1])
    return records


def test_spans_nest_and_carry_recipe_step_and_stage() -> None:
    records = spans(SPANS + COOK + SHOW)
    by_id = {span["id"]: span for span in records}
    [run] = [span for span in records if span["name"] == "run"]
    assert run["attributes"] == {"kitchen.recipe": "recipes.sl_basic", "kitchen.run": "run"}
    calls = [span for span in records if span["name"] == "TrainingSession.forward_backward"]
    assert [call["attributes"]["kitchen.step"] for call in calls] == [0, 1]
    for call in calls:
        stage = by_id[call["parent"]]
        assert stage["name"] == call["attributes"]["kitchen.stage"] == "ForwardBackward"
        assert stage["attributes"]["kitchen.recipe"] == "recipes.sl_basic"
        assert stage["attributes"]["kitchen.step"] == call["attributes"]["kitchen.step"]
        assert by_id[stage["parent"]]["name"] == "run"
    names = {span["name"] for span in records}
    assert {
        "DatasetStore.load",
        "TrainingClient.open",
        "TrainingSession.optim_step",
        "TrainingClient.sampler",
    } <= names
    assert all(span["ended"] for span in records)


def test_without_an_sdk_ports_are_not_wrapped() -> None:
    wrapped = """
from kitchen.ports import TrainingClient
from kitchen.backend.observed_ports import ObservedPorts
client = object()
[wrapped] = ObservedPorts().wrap({"client": TrainingClient}, {"client": client}, {}).values()
print(json.dumps([{"same": wrapped is client}]))
"""
    assert spans(COOK + wrapped) == [{"same": True}]


def test_span_of_a_failed_call_has_the_error_without_secrets() -> None:
    failing = """
import os
os.environ["SOUP_API_KEY"] = "s3cr3t-s3cr3t"
from kitchen.engine.tracing import span
from kitchen.ports import Failed, TrainingClient
from kitchen.backend.observed_ports import ObservedPorts

class Client:
    def open(self): raise ValueError("shut to s3cr3t-s3cr3t")
    def ask(self): return Failed(ValueError("shut later to s3cr3t-s3cr3t"))

[client] = ObservedPorts().wrap({"c": TrainingClient}, {"c": Client()}, {}).values()
for verb in (lambda: client.open(), lambda: client.ask().result()):
    try: verb()
    except ValueError: pass
try:
    with span("run", {}): client.open()
except ValueError: pass
found = []
for each in exporter.get_finished_spans():
    [event] = each.events
    found.append({"name": event.name, "status": each.status.description, **event.attributes})
print(json.dumps(found))
"""
    records = spans(SPANS + failing)
    expected = ["shut to ***", "shut later to ***", "shut to ***", "ValueError: shut to ***"]
    assert [record["status"] for record in records] == expected
    assert {record["name"] for record in records} == {"exception"}
    for record in records:
        assert record["exception.message"].startswith("shut")
        assert "ValueError: shut" in record["exception.stacktrace"]
    assert "s3cr3t" not in json.dumps(records)
