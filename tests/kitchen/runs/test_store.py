"""Runs in a store: names, summaries and orders."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from kitchen.errors import ConfigError, KitchenError, QualityError
from kitchen.runs.lock import InUse, in_use, lease
from kitchen.runs.store import (
    list_runs,
    read_journal,
    read_order,
    read_run,
    run_names,
    run_summary,
    write_run,
)
from recipes.sl_basic import SlBasic
from tests.support.commands import in_folder

SETTINGS: dict[str, Any] = {"dataset": "ingredients", "max_steps": 2, "batch_size": 1}
SETTINGS |= {"reading.limit": 4, "reading.held_out_rows": 1, "eval_every": 0}


class Listing(FakeBlobs):
    """Counts what a listing of runs reads and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read(self, name: str) -> bytes | None:
        self.reads.append(name)
        return super().read(name)


def test_a_name_is_taken_once() -> None:
    blobs, outcomes = FakeBlobs(), list[str]()
    start = threading.Barrier(4)

    def cook() -> None:
        start.wait()
        try:
            kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name="dish")
            outcomes.append("completed")
        except KitchenError:
            outcomes.append("refused")

    threads = [threading.Thread(target=cook) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # of two at one moment both may be refused, but never both run
    assert outcomes.count("completed") <= 1
    assert len(outcomes) == 4
    attempts = json.loads(blobs.read("dish/run.json") or b'{"attempts": []}')["attempts"]
    assert len(attempts) == outcomes.count("completed")


def test_summaries_read_one_blob_a_run() -> None:
    blobs = Listing()
    for name in ("one", "two"):
        kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name=name)
    blobs.reads.clear()
    first, second = list_runs(blobs)
    assert (first.id, second.id) == ("one", "two")
    assert first.metrics["loss"] == second.metrics["loss"]
    assert set(blobs.reads) == {"one/run.json", "two/run.json"}


def test_summaries_equal_those_of_whole_records() -> None:
    blobs = FakeBlobs()
    kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name="dish")
    missed = {**SETTINGS, "evaluation.at_least": 1.0}
    with pytest.raises(QualityError):
        kitchen.run(SlBasic, settings=missed, training="fake", blobs=blobs, name="failed")
    listed = list_runs(blobs)
    assert [run.status for run in listed] == ["completed", "failed"]
    assert listed == [run_summary(blobs, run.id) for run in listed]
    for run in listed:  # without a digest, the whole record counts
        record = {**read_run(blobs, run.id), "recipe": "recipes.other:Other"}
        blobs.write(f"{run.id}/run.json", json.dumps(record).encode())
    assert [run.recipe for run in list_runs(blobs)] == ["recipes.other:Other"] * 2


def test_order_of_another_version_is_named(tmp_path: Path) -> None:
    with in_folder(tmp_path):
        kitchen.run(SlBasic, settings=SETTINGS, training="fake", name="dish")
        file = Path("runs/dish/run.json")
        record = json.loads(file.read_text())
        record["order"]["colour"] = "red"
        file.write_text(json.dumps(record))
        with pytest.raises(ConfigError, match=r"dish/run.json: its 'order' cannot be read.*colour"):
            kitchen.resume("dish")


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"status": "completed"', b'"status": "complgted"'), (b'"seconds": ', b'"seconds": 1')],
)
def test_a_changed_record_is_named_and_listed(before: bytes, after: bytes) -> None:
    blobs = FakeBlobs()
    kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name="dish")
    data = blobs.read("dish/run.json") or b""
    digest, rest = data.split(b"\n", 2)[1:]
    changed = rest.replace(before, after, 1)
    assert changed != rest
    blobs.write("dish/run.json", b"\n".join((b"{", digest, changed)))
    with pytest.raises(ConfigError, match=r"dish/run.json is damaged.*'sha256'"):
        read_run(blobs, "dish")
    [row] = list_runs(blobs)
    assert (row.id, row.status) == ("dish", "unreadable")
    blobs.write("dish/run.json", b"{" + changed)  # edited on purpose
    edited = json.loads(b"{" + changed)
    del edited["summary"]
    assert read_run(blobs, "dish") == edited


@pytest.mark.parametrize("port", ["training", "datasets"])
def test_settings_of_an_adapter_without_a_name_are_refused(port: str) -> None:
    blobs = FakeBlobs()
    kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name="dish")
    for key, value in (("adapter_settings", {port: {}}), ("objects", [port])):
        record = read_run(blobs, "dish")
        del record["order"]["adapters"][port]
        record["order"] = {**record["order"], "adapter_settings": {}, "objects": [], key: value}
        changed = FakeBlobs()
        changed.write("dish/run.json", json.dumps(record).encode())
        with pytest.raises(ConfigError, match=rf"no 'order\.adapters\.{port}' of the right type"):
            read_run(changed, "dish")


CLAIMS = [
    *(b"", b"{}", b"[1]", b"\xff", b'{"host": 1}', b'{"pid": "x"', b"[" * 100_000),
    *(b'{"host": "x", "pid": 1e400, "born": ""}', b'{"host": "x", "pid": null, "born": ""}'),
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_damaged_lease_is_taken_over_on_request(claim: bytes) -> None:
    blobs = FakeBlobs()
    blobs.write("dish/lease/0.json", claim)
    with pytest.raises(InUse, match="damaged"), lease(blobs, "dish"):
        pass
    with lease(blobs, "dish", take_over=True):
        assert len(blobs.list("dish/lease/")) == 1
    assert not blobs.list("dish/lease/")


@pytest.mark.parametrize(
    "name",
    ["rows.jsonl", "deep/er/notes.txt", "weights/final/adapter_model.safetensors", "save/1.json"],
)
def test_files_without_a_record_are_never_deleted(tmp_path: Path, name: str) -> None:
    """`--runs .` with the name of a folder that is no run, or of a run that lost its record."""
    file = tmp_path / "data" / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    with pytest.raises(KitchenError, match=rf"'data' cannot be .* {re.escape(str(file))} is there"):
        kitchen.run(SlBasic, settings=SETTINGS, training="fake", runs=tmp_path, name="data")
    assert file.read_text() == "precious"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the states of processes")
def test_run_of_a_killed_process_is_not_in_use() -> None:
    """Its parent may never read its status, as in a container without an init process."""
    blobs = FakeBlobs()
    child = subprocess.Popen(["sleep", "60"])
    stat = Path(f"/proc/{child.pid}/stat")
    born = stat.read_text().rsplit(")", 1)[1].split()[19]
    claim = {"host": socket.gethostname(), "pid": child.pid, "born": born}
    blobs.write("dish/lease/0.json", json.dumps(claim).encode())
    assert in_use(blobs, "dish")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and its status unread
    assert stat.exists()
    assert not in_use(blobs, "dish")
    child.wait()
    assert not in_use(blobs, "dish")


def test_folders_that_are_no_runs_are_not_listed() -> None:
    blobs = FakeBlobs()
    for name in ("a/b/run.json", "c/other.json", "run.json", "d/run.json"):
        blobs.write(name, b"{}")
    assert run_names(blobs) == ["d"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"training": "fake"', b'"training": 5'),
        (b'"hub": "hf"', b'"hub": null'),
        (b'"sources": {', b'"sources": {"no": ["cli"], '),
        (b'"adapter_settings": {', b'"adapter_settings": {"training": 5, '),
        (b'"adapter_sources": {', b'"adapter_sources": {"training": 5, '),
        (b"{", b"[" * 100_000),
    ],
)
def test_a_damaged_record_hides_no_other_run(before: bytes, after: bytes) -> None:
    blobs = FakeBlobs()
    adapters: dict[str, Any] = {"training": "fake", "hub": "hf", "blobs": blobs}
    for name in ("dish", "soup"):
        kitchen.run(SlBasic, settings=SETTINGS, name=name, **adapters)
    data = (blobs.read("dish/run.json") or b"").split(b"\n", 2)
    edited = b"\n".join([data[0], data[2]])  # without the digest
    assert edited.count(before) >= 1
    blobs.write("dish/run.json", edited.replace(before, after, 1))
    for read in (read_run, read_order):
        with pytest.raises(ConfigError, match=r"dish/run\.json"):
            read(blobs, "dish")
    assert [run.status for run in list_runs(blobs)] == ["unreadable", "completed"]


@pytest.mark.parametrize("number", [10**400, -(10**4000), None])
def test_a_number_beyond_floats_hides_no_run(number: int | None) -> None:
    blobs = FakeBlobs()
    kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name="dish")
    write_run(blobs, "dish", {**read_run(blobs, "dish"), "metrics": {"loss": number}})
    [run] = list_runs(blobs)
    assert not math.isfinite(run.metrics["loss"])


def test_a_renamed_run_is_named() -> None:
    blobs = FakeBlobs()
    kitchen.run(SlBasic, settings=SETTINGS, training="fake", blobs=blobs, name="dish")
    for name in blobs.list("dish/"):
        blobs.write(name.replace("dish/", "copy/", 1), blobs.read(name) or b"")
    with pytest.raises(ConfigError, match=r"copy/run.json is the record of run 'dish'"):
        kitchen.resume("copy", blobs=blobs)
    assert [run.status for run in list_runs(blobs)] == ["unreadable", "completed"]


CHECKPOINT = {
    "path": "dish/weights/final",
    "step": 2,
    "kind": "weights",
    "sha256": "0",
    "role": "FinalWeights",
    "at": "/runs/dish/weights/final",
    "final": True,
}


@pytest.mark.parametrize(
    ("journal", "line"),
    [
        ("metrics", b"[1]"),
        ("metrics", b'"loss"'),
        ("samples", b"{"),
        ("tables", b"\xff\xfe"),
        ("log", b"[" * 100_000),
        ("checkpoints", b"[1]"),
        ("checkpoints", json.dumps({**CHECKPOINT, "step": "2"}).encode()),
        ("checkpoints", json.dumps({**CHECKPOINT, "path": ["a"]}).encode()),
        ("checkpoints", b'{"path": "dish/weights/final"}'),
        ("tables", b'{"title": null, "columns": [], "rows": []}'),
        ("tables", b'{"title": "Rows"}'),
    ],
)
def test_a_damaged_row_is_named(journal: str, line: bytes) -> None:
    blobs = FakeBlobs()
    blobs.write(f"dish/{journal}.jsonl", json.dumps(CHECKPOINT).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=rf"dish/{journal}.jsonl has a damaged line"):
        read_journal(blobs, "dish", journal)
