"""A probe reports exactly the features that a server lacks, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.backend.needs import needing
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.engine.plan import check as plan
from kitchen.errors import BackendError, ConfigError
from kitchen.ports import Future, TrainingClient, TrainingSession
from kitchen.ports.future import Failed
from kitchen.types import Lora
from stages.train.optim import ForwardBackward
from tests.support.fake_runs import run_recipe
from tests.support.faulty_app import FaultyApp
from tests.support.incomplete_server import Refusal, leaving_out
from tests.support.tinker_server import ByteTinker, serving


class WithoutLosses(FakeTraining):
    """A backend that refuses some losses, as an older server does."""

    def __init__(self, blobs: FakeBlobs, *losses: str, answer: str = "") -> None:
        super().__init__(blobs)
        self._refusals = {loss: answer or f"no loss {loss!r} here" for loss in losses}

    def open(self, model: str, lora: Lora) -> TrainingSession:
        return SessionWithoutLosses(super().open(model, lora), self._refusals)


class SessionWithoutLosses:
    def __init__(self, session: TrainingSession, refusals: Mapping[str, str]) -> None:
        self._session = session
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def forward(self, data: Any, loss: Any = "cross_entropy", options: Any = None) -> Future[Any]:
        return self._refused(loss) or self._session.forward(data, loss, options)

    def forward_backward(
        self, data: Any, loss: Any = "cross_entropy", options: Any = None
    ) -> Future[Any]:
        return self._refused(loss) or self._session.forward_backward(data, loss, options)

    def _refused(self, loss: Any) -> Future[Any] | None:
        return Failed(ConfigError(self._refusals[loss])) if loss in self._refusals else None


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITCHEN_CACHE", str(tmp_path / "cache"))


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
        ("loss:sum", ["loss:sum"]),
        ("training logprobs", ["training logprobs", "custom loss", "optim_step", "grad_clip_norm"]),
        ("prompt logprobs", ["prompt_logprobs"]),
        ("first prompt logprob", ["first row of prompts"]),
        ("two prompt logprobs", ["prompt_logprobs"]),
        ("first top-k row", ["first row of prompts"]),
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


def test_capabilities_come_from_the_newest_probe() -> None:
    blobs = FakeBlobs()
    backend = WithoutLosses(blobs, "ppo", "cispo", "next_year")
    with serving(backend, blobs, wrap=leaving_out("top-k")) as server:
        client = ByteTinker(FakeBlobs(), server.url)
        assert {"loss ppo", "top_logprobs"} <= client.capabilities
        assert "assumed" in client.capabilities_source()
        report = client.probe("tiny", Lora(rank=4), ["loss next_year", "custom loss"])
        problems = " ".join(plan(ForwardBackward("ppo"), {TrainingClient: client}).problems)
    lacking = ["loss ppo", "loss cispo", "loss next_year", "top_logprobs"]
    assert features(report) == lacking
    assert client.capabilities.isdisjoint(lacking)
    assert {"loss dro", "custom loss", "lora_targets"} <= client.capabilities
    assert report.when in client.capabilities_source()
    has = "cross_entropy, dro, gspo, importance_sampling"
    assert f"needs 'loss ppo', which {server.url} lacks; it has {has}" in problems


@pytest.mark.parametrize(
    "answer, known", [("no loss 'next_year' here", True), ("sequence_ids are missing", False)]
)
def test_a_refused_loss_of_unknown_inputs_may_exist(answer: str, known: bool) -> None:
    blobs = FakeBlobs()
    backend = WithoutLosses(blobs, "next_year", answer=answer)
    with serving(backend, blobs) as server:
        client = ByteTinker(FakeBlobs(), server.url)
        report = client.probe("tiny", Lora(rank=4), ["loss next_year"])
    [finding] = [finding for finding in report.findings if finding.feature == "loss next_year"]
    assert finding.present is (False if known else None)
    assert answer in finding.detail


def test_a_damaged_report_is_an_error(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        probe(server.url)
        [file] = (tmp_path / "cache/servers").iterdir()
        file.write_text(file.read_text()[:-9])
        with pytest.raises(BackendError, match=r"servers/.*json: .* cannot be read"):
            assert ByteTinker(FakeBlobs(), server.url).capabilities


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


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("loss", ["ppo", "importance_sampling"])
def test_a_run_stops_before_rollouts_if_its_loss_is_missing(loss: str) -> None:
    blobs, apps = FakeBlobs(), list[FaultyApp]()

    def wrap(app: Any) -> Any:
        apps.append(FaultyApp(app, ()))
        return apps[0]

    with serving(WithoutLosses(blobs, "ppo"), blobs, wrap=wrap) as server:
        store = FakeBlobs()
        training = ByteTinker(store, server.url)
        if loss == "ppo":
            text = f"{server.url} lacks 'loss ppo', which this run needs: .*; choose another one"
            with pytest.raises(ConfigError, match=text):
                run_recipe("rl", training, store, loss=loss)
        else:
            run_recipe("rl", training, store, loss=loss)
    paths = {path.removeprefix("/api/v1/") for path in apps[0].requests}
    assert ("asample" in paths) == (loss != "ppo")


@pytest.mark.parametrize(
    "left_out, need", [("top-k", "top_logprobs"), ("prompt logprobs", "prompt_logprobs")]
)
def test_opening_tries_what_the_run_needs(left_out: str, need: str) -> None:
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs, wrap=leaving_out(left_out)) as server:
        client = ByteTinker(FakeBlobs(), server.url)
        with needing([need, "loss ppo", "loss cross_entropy", "custom loss"]):
            session = client.open("tiny", Lora(rank=4))
        with pytest.raises(ConfigError, match=f"lacks '{need}'"):
            session.facts()
        session.close()
        with needing(["loss ppo"]):
            session = client.open("tiny", Lora(rank=4))
        session.facts()
        session.close()
