"""A probe reports exactly the features that a server lacks, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from adapters.tinker.client import ALL_CAPABILITIES
from kitchen.backend.needs import needing
from kitchen.backend.probe_report import Finding, ProbeReport
from kitchen.engine.plan import check as plan
from kitchen.errors import BackendError, ConfigError, RunFailed
from kitchen.ports import Future, Sampler, TrainingClient, TrainingSession
from kitchen.ports.future import Failed
from kitchen.stage import Stage
from kitchen.types import Adam, Checkpoint, Lora, Trainable
from stages.rl.policy_gradient import ComputeReferenceLogprobs
from stages.rl.rollouts import Snapshot
from stages.train.optim import ForwardBackward
from tests.support.fake_runs import run_recipe
from tests.support.faulty_app import FaultyApp
from tests.support.incomplete_server import Refusal, leaving_out
from tests.support.tinker_server import ByteTinker, serving

WITHOUT_LOGPROBS = [
    "training logprobs",
    "topk_targets",
    "custom loss",
    "optim_step",
    "grad_clip_norm",
]


class WithoutLosses(FakeTraining):
    """A backend that refuses some losses, as an older server does."""

    def __init__(self, blobs: FakeBlobs, *losses: str, answer: str = "") -> None:
        super().__init__(blobs)
        self._refusals = {loss: answer or f"no loss {loss!r} here" for loss in losses}

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        return SessionWithoutLosses(super().open(model, trainable), self._refusals)


class SessionWithoutLosses:
    def __init__(self, session: TrainingSession, refusals: Mapping[str, str]) -> None:
        self._session = session
        self._refusals = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def forward(self, data: Any, loss: Any = "cross_entropy", options: Any = None) -> Future[Any]:
        return self._refused(loss, data) or self._session.forward(data, loss, options)

    def forward_backward(
        self, data: Any, loss: Any = "cross_entropy", options: Any = None
    ) -> Future[Any]:
        return self._refused(loss, data) or self._session.forward_backward(data, loss, options)

    def _refused(self, loss: Any, data: Any) -> Future[Any] | None:
        name = "topk_targets" if data[0].targets.ndim == 2 else loss
        return Failed(ConfigError(self._refusals[name])) if name in self._refusals else None


class OneModel(FakeTraining):
    """A backend that samples base models, or all others, with the weights of the last step."""

    def __init__(self, blobs: FakeBlobs, mixed_up: type) -> None:
        super().__init__(blobs)
        self._mixed_up = mixed_up  # str for base models, Checkpoint for others
        self.trained: TrainingSession | None = None

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        return cast(TrainingSession, SessionOfOneModel(super().open(model, trainable), self))

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        sampler = super().sampler(weights)
        if isinstance(weights, self._mixed_up):
            return cast(Sampler, SamplerOfTheTrained(sampler, self))
        return sampler


class SessionOfOneModel:
    def __init__(self, session: TrainingSession, backend: OneModel) -> None:
        self._session, self._backend = session, backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def optim_step(self, adam: Adam) -> Future[Any]:
        self._backend.trained = self._session
        return self._session.optim_step(adam)


class SamplerOfTheTrained:
    def __init__(self, sampler: Sampler, backend: OneModel) -> None:
        self._sampler, self._backend = sampler, backend

    def __getattr__(self, name: str) -> Any:
        trained = self._backend.trained
        return getattr(trained.snapshot().result() if trained else self._sampler, name)

    def close(self) -> None:
        self._sampler.close()


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
    assert {*ALL_CAPABILITIES, "frozen base model"} - {"lora_targets"} <= set(report.present)
    assert not left


@pytest.mark.parametrize(
    "left_out, lacking",
    [
        ("loss:sum", ["loss:sum"]),
        ("training logprobs", WITHOUT_LOGPROBS),
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
    "mixed_up, lacking, stage, why",
    [
        (str, "frozen base model", ComputeReferenceLogprobs(), "lacks for a reference"),
        (Checkpoint, "policy_lag", Snapshot(lag=1), "lacks (probed on"),
    ],
)
def test_weights_that_change_in_training_are_found(
    mixed_up: type, lacking: str, stage: Stage, why: str
) -> None:
    """A KL penalty and a policy lag would be wrong without an error."""
    blobs = FakeBlobs()
    with serving(OneModel(blobs, mixed_up), blobs) as server:
        client = ByteTinker(FakeBlobs(), server.url)
        assert "needs '" not in " ".join(plan(stage, {TrainingClient: client}).problems)
        report = client.probe("tiny", Lora(rank=4), ())
        problems = " ".join(plan(stage, {TrainingClient: client}).problems)
    assert features(report) == [lacking]
    assert why in problems


def test_targets_of_several_tokens_are_tried() -> None:
    blobs = FakeBlobs()
    backend = WithoutLosses(blobs, "topk_targets", answer="one target per token")
    with serving(backend, blobs) as server:
        client = ByteTinker(FakeBlobs(), server.url)
        with needing(["topk_targets"]):
            session = client.open("tiny", Lora(rank=4))
        with pytest.raises(ConfigError, match=r"lacks 'topk_targets'.*one target per token"):
            session.facts()
        session.close()
        report = client.probe("tiny", Lora(rank=4), ())
    assert features(report) == ["topk_targets"]


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


class FaultyOnce(FakeTraining):
    """A backend whose first training pass with the loss ppo fails."""

    def __init__(self, blobs: FakeBlobs, fault: Exception) -> None:
        super().__init__(blobs)
        self.faults = [fault]

    def open(self, model: str, trainable: Trainable) -> TrainingSession:
        return FaultySession(super().open(model, trainable), {}, self.faults)


class FaultySession(SessionWithoutLosses):
    def __init__(self, session: TrainingSession, refusals: Any, faults: list[Exception]) -> None:
        super().__init__(session, refusals)
        self._faults = faults

    def _refused(self, loss: Any, *_: Any) -> Future[Any] | None:
        return Failed(self._faults.pop()) if loss == "ppo" and self._faults else None


@pytest.mark.parametrize("kind", [RuntimeError, RunFailed, BackendError])
def test_a_fault_of_the_server_is_not_a_lack(kind: type[Exception]) -> None:
    """A run that needs the feature ends with the fault, and says nothing about the feature."""
    blobs = FakeBlobs()
    fault = kind("CUDA out of memory")
    backend = FaultyOnce(blobs, fault)
    with serving(backend, blobs) as server:
        client = ByteTinker(FakeBlobs(), server.url)
        report = client.probe("tiny", Lora(rank=4), ())
        assert "loss ppo" in client.capabilities
        backend.faults.append(fault)
        with needing(["loss ppo"]):
            session = client.open("tiny", Lora(rank=4))
        with pytest.raises((RunFailed, BackendError), match="CUDA out of memory"):
            session.facts()
        session.close()
    assert not report.lacking
    [finding] = report.unknown
    assert finding.feature == "loss ppo"
    assert "CUDA out of memory" in finding.detail


def test_a_damaged_report_is_an_error(tmp_path: Path) -> None:
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        probe(server.url)
        [file] = (tmp_path / "cache/servers").iterdir()
        file.write_text(file.read_text()[:-9])
        with pytest.raises(BackendError, match=r"servers/.*json: .* cannot be read"):
            assert ByteTinker(FakeBlobs(), server.url).capabilities


def test_features_that_need_a_second_model_are_not_known() -> None:
    """A server that trains one model at a time may have them."""
    created = count()
    second = Refusal("/create_model", 400, "one at a time", when=lambda body: next(created) > 0)
    report, left = probe_without(refusals=(second,))
    assert features(report) == []
    unknown = [finding.feature for finding in report.unknown]
    assert unknown[:2] == ["optim_step", "grad_norm"]
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
