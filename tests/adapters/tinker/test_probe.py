"""A probe reports exactly the features that a server lacks, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.errors import BackendError
from kitchen.types import Lora
from tests.support.faulty_app import FaultyApp
from tests.support.incomplete_server import Refusal, leaving_out
from tests.support.tinker_server import ByteTinker, serving


def probe(
    url: str, model: str = "tiny", on_finding: Callable[[Finding], None] = lambda finding: None
) -> ProbeReport:
    return ByteTinker(FakeBlobs(), url).probe(model, Lora(rank=4), (), on_finding)


def probe_without(*names: str, refusals: tuple[Refusal, ...] = ()) -> tuple[ProbeReport, list[str]]:
    """Probe a server that lacks something; return the report and what is left there."""
    blobs = FakeBlobs()
    wrap = leaving_out(*names, refusals=refusals)
    with serving(FakeTraining(blobs), blobs, wrap=wrap) as server:
        report = probe(server.url)
    return report, [name for name in blobs.list() if "/probe-" in name]


def features(report: ProbeReport) -> list[str]:
    return [finding.feature for finding in report.lacking]


def test_complete_server_lacks_nothing() -> None:
    report, left = probe_without()
    assert report.lacking == report.unknown == []
    assert {"custom loss", "top_logprobs", "prompt_logprobs", "export"} <= set(report.present)
    assert not left


@pytest.mark.parametrize(
    "left_out, lacking",
    [
        ("loss:sum", ["loss:sum", "custom loss"]),
        ("training logprobs", ["training logprobs", "custom loss", "optim_step", "grad_clip_norm"]),
        ("prompt logprobs", ["prompt_logprobs"]),
        ("first prompt logprob", ["prompt_logprobs"]),
        ("top-k", ["top_logprobs"]),
        ("last top-k column", ["top_logprobs"]),
        ("sample logprobs", ["sampling"]),
        ("create from state", ["create from training state", "create from weights"]),
        ("snapshots", ["snapshots"]),
        ("external weights", ["export"]),
        ("external weights urls", ["export"]),
        ("ttl", ["expiry of checkpoints"]),
    ],
)
def test_exactly_what_is_left_out_is_lacking(left_out: str, lacking: list[str]) -> None:
    report, left = probe_without(left_out)
    assert features(report) == lacking
    assert all(finding.detail for finding in report.lacking)
    assert not left


def test_checkpoints_that_cannot_be_deleted_expire() -> None:
    report, left = probe_without("deletions")
    assert features(report) == ["delete checkpoints"]
    assert left


def test_a_state_that_cannot_be_saved_is_not_loaded() -> None:
    report, left = probe_without(refusals=(Refusal("/save_weights", 404),))
    assert "save training state" in features(report)
    assert [finding.feature for finding in report.unknown][:2] == [
        "create from training state",
        "create from weights",
    ]
    assert not left


@pytest.mark.parametrize("stop_after", ["loss ppo", "save weights", "export"])
def test_an_interrupted_probe_leaves_nothing(stop_after: str) -> None:
    blobs, apps = FakeBlobs(), list[FaultyApp]()

    def wrap(app: Any) -> Any:
        apps.append(FaultyApp(app, ()))
        return apps[0]

    def interrupt(finding: Finding) -> None:
        if finding.feature == stop_after:
            raise KeyboardInterrupt

    with serving(FakeTraining(blobs), blobs, wrap=wrap) as server:
        with pytest.raises(KeyboardInterrupt):
            probe(server.url, on_finding=interrupt)
        [finished] = [path for path in apps[0].requests if path.endswith("/finish")]
    assert apps[0].requests[finished] == 1
    assert not [name for name in blobs.list() if "/probe-" in name]


def test_a_server_that_cannot_be_probed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        with pytest.raises(BackendError, match=f"{server.url} opens no session that trains tinny"):
            probe(server.url, "tinny")
        monkeypatch.setenv("TINKER_API_KEY", "tml-another")
        with pytest.raises(BackendError, match="401") as rejected:
            probe(server.url)
    assert "tml-another" not in str(rejected.value)
    with pytest.raises(BackendError, match="does not answer"):
        probe(server.url)
