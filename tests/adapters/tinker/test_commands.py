"""The command line checks a server's key and models before a run."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.tinker.client import TinkerTraining
from kitchen.cli.commands.system_info import ServerProbe
from kitchen.engine.plan import Plan
from kitchen.engine.plan import check as plan
from kitchen.ports import TrainingClient
from kitchen.stage import Stage
from kitchen.types import FullWeights, Lora
from stages.distill.on_policy import TopKTargets
from stages.rl.rollouts import Snapshot
from stages.train.optim import ForwardBackward
from stages.train.session import OpenSession
from tests.support.commands import invoke
from tests.support.imports import HEAVY, imported_by
from tests.support.incomplete_server import leaving_out
from tests.support.tinker_server import KEY, MODELS, serving

ADAPTERS = ("--training", "tinker", "--hub", "fake", "--datasets", "fake", "--blobs", "fake")
MODEL = "fake/bigram"  # of the fake hub
NOBODY = "http://127.0.0.1:1"
SHORT = ("--max-tokens", "3", "--temperature", "0")


def check(
    code: int, *more: str, url: str = NOBODY, key: str | None = KEY, stdout: bool = False
) -> str:
    """Return both streams of `kitchen check`, or only `stdout`; it must end with this exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_BASE_URL", url)
        patch.setenv("COLUMNS", "200")
        patch.delenv("TINKER_API_KEY", raising=False)
        if key is not None:
            patch.setenv("TINKER_API_KEY", key)
        settings = (f"model={MODEL}", "dataset=greetings")
        result = invoke("check", "recipes.sl_basic", *ADAPTERS, *settings, *more)
    assert result.exit_code == code, result.output
    return result.stdout if stdout else result.output


@pytest.mark.parametrize(
    "key, message",
    [
        (None, "TINKER_API_KEY is missing"),
        ("hf_of-another-hub", "begin with tml-"),
        ("tml-of-another-hub\r", "no spaces or line breaks"),
    ],
)
def test_check_finds_missing_and_malformed_keys(key: str | None, message: str) -> None:
    shown = check(4, key=key)
    assert message in shown
    assert "of-another-hub" not in shown


def test_check_sends_nothing_and_imports_no_sdk(tmp_path: Path) -> None:
    arguments = ["kitchen", "check", "recipes.sl_basic", *ADAPTERS, f"model={MODEL}"]
    program = f"""
import runpy
sys.argv = {[*arguments, "dataset=greetings"]!r}
runpy.run_module("kitchen.cli", run_name="__main__")
"""
    environment = {"TINKER_API_KEY": KEY, "TINKER_BASE_URL": NOBODY}
    _, modules = imported_by(program, tmp_path, **environment)
    assert modules.isdisjoint(HEAVY)


def test_check_online_asks_the_server_for_the_model() -> None:
    server_blobs = FakeBlobs()
    with serving(FakeTraining(server_blobs), server_blobs, models=["tiny"]) as served:
        unknown = check(4, "--online", url=served.url)
        rejected = check(4, "--online", url=served.url, key="tml-another")
    assert f"does not serve '{MODEL}'; there are: tiny" in unknown
    assert "401" in rejected
    assert "does not answer as a server of the Tinker API" in check(4, "--online")


def test_check_online_probes_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITCHEN_CACHE", str(tmp_path))
    blobs = FakeBlobs()
    app = leaving_out("top-k")
    with serving(FakeTraining(blobs), blobs, FakeHub(), [MODEL], wrap=app) as served:
        shown = check(0, "--online", url=served.url)
        recorded = json.loads(check(0, "--online", "--json", url=served.url, stdout=True))
    assert f"Features that {served.url} lacks" in shown
    assert "top_logprobs" in shown
    assert KEY not in shown
    assert recorded["capabilities_source"].startswith(f"features of {served.url}: as probed on ")
    assert "as probed on " in check(0, url=served.url)
    assert "as probed on " not in check(0, url=NOBODY)
    [report] = recorded["probes"]
    assert report["address"] == served.url
    assert report["lacking"] == ["loss stable_reinforce", "top_logprobs"]


def test_names_on_the_server_have_kinds_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kitchen serve` offers packaged models under their names."""
    monkeypatch.setenv("KITCHEN_CACHE", str(tmp_path))
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as served:
        more = ("--online", "--hub", "local", "model=packaged:smollm2-135m-instruct")
        shown = check(4, *more, url=served.url)
    assert "does not serve 'packaged:smollm2-135m-instruct'" in shown


def test_doctor_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(url: str = "", key: str = KEY, online: bool = False) -> Mapping[str, Any]:
        monkeypatch.setenv("TINKER_BASE_URL", url)
        monkeypatch.setenv("TINKER_API_KEY", key)
        return ServerProbe("tinker", online, timeout=10.0).answer()

    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs, models=["tiny", "other"]) as served:
        found, rejected, keyless = (ask(served.url, key) for key in (KEY, "tml-another", ""))
    assert found["address"] == served.url
    assert found["models"][:2] == ["other", "tiny"]
    assert found["status"].startswith("answers, accepts the key, and serves other, tiny")
    assert rejected["status"] == "answers, but rejects the key in TINKER_API_KEY (status 401)"
    assert rejected["key_accepted"] is False
    assert "TINKER_API_KEY is missing" in keyless["status"]
    assert ask(NOBODY)["status"].startswith("does not answer as a server of the Tinker API")
    assert ask()["status"] == "not asked: --online asks it"
    assert ask(key="") == {}


def test_doctor_asks_all_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", NOBODY)  # not asked, as servers are named
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as served:
        shown = invoke("doctor", "--json", "--server", served.url, "--server", NOBODY + "0").stdout
    first, second = json.loads(shown)["servers"]
    assert (first["address"], first["key_accepted"]) == (served.url, True)
    assert (second["address"], second["reachable"]) == (NOBODY + "0", False)


def test_doctor_does_not_wait_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("TINKER_BASE_URL", url)
        found = ServerProbe("tinker", False, timeout=0.2).answer()
    assert found["address"] == url
    assert not found["reachable"]


def test_unlisted_losses_depend_on_the_kind_of_server() -> None:
    def plan_with(server: str, loss: Any) -> Plan:
        training = TinkerTraining(FakeHub(MODELS), FakeBlobs(), server=server)
        return plan(ForwardBackward(loss), {TrainingClient: training})

    newest = plan_with("tinker", "next_year")
    lacking = plan_with("skyrl", "dro")
    assert newest.not_honoured == ["loss next_year"]
    assert not [problem for problem in newest.problems if "lacks" in problem]
    problems = " ".join(plan_with("kitchen", "next_year").problems)
    assert "needs 'loss next_year', which servers of the kind 'kitchen'" in problems
    assert "it has cispo, cross_entropy" in problems
    assert "needs 'loss dro'" in " ".join(lacking.problems)


def test_check_lists_what_is_not_honoured() -> None:
    assert "not honoured" not in check(0)
    other = "lora_rank=32"  # recipes want twice the rank as alpha
    assert "not honoured: lora_alpha" in check(0, other)
    assert "--strict" in check(2, other, "--strict")


def test_check_lists_clipping_that_a_server_ignores() -> None:
    skyrl = ("--set", "training.server=skyrl")
    clipped = "grad_clip_norm=1.0"
    assert "not honoured" not in check(0, clipped)
    assert "not honoured" not in check(0, *skyrl)
    assert "not honoured: grad_clip_norm" in check(0, *skyrl, clipped)
    assert "does not honour grad_clip_norm" in check(2, *skyrl, clipped, "--strict")


@pytest.mark.parametrize(
    "stage, capability, advice",
    [
        (Snapshot(lag=2), "policy_lag", "set policy_lag=0"),
        (TopKTargets(3), "topk_targets", "set divergence=reverse"),
    ],
)
def test_stages_that_a_kind_of_server_cannot_run(
    stage: Stage, capability: str, advice: str
) -> None:
    """Refused before a run, by the names of the feature and the server, with an alternative."""
    skyrl = problems_of(stage, "skyrl")
    assert f"needs '{capability}', which servers of the kind 'skyrl'" in skyrl
    assert skyrl.endswith(advice)
    for server in ("kitchen", "tinker"):
        assert capability not in problems_of(stage, server)
    assert "policy_lag" not in problems_of(Snapshot(), "skyrl")


@pytest.mark.parametrize("server", ["skyrl", "kitchen", "tinker"])
def test_kinds_of_lora_that_no_server_trains(server: str) -> None:
    found = problems_of(OpenSession("tiny", Lora(kind="rslora")), server)
    assert "needs 'rslora', which no server" in found
    assert found.endswith("set lora_kind=lora")
    found = problems_of(OpenSession("tiny", FullWeights()), server)
    assert "needs 'full_weights', which " in found
    assert found.endswith("set train=lora")
    assert problems_of(OpenSession("tiny"), server) == ""


def problems_of(stage: Stage, server: str) -> str:
    """Return what a stage needs and servers of a kind are assumed to lack."""
    training = TinkerTraining(FakeHub(MODELS), FakeBlobs(), server=server)
    problems = plan(stage, {TrainingClient: training}).problems
    return " ".join(text for text in problems if "needs '" in text)


@pytest.mark.parametrize("options", [(), ("--json",), ("--debug",)])
def test_only_the_answer_goes_to_standard_output(options: tuple[str, ...]) -> None:
    with serving(FakeTraining(blobs := FakeBlobs()), blobs) as server:
        adapters = ("--training", "tests.support.tinker_server:ByteTinker", "--blobs", "fake")
        where = ("--set", f"training.url={server.url}")
        structlog.reset_defaults()  # as in a new process
        result = invoke("sample", "tiny", "?", "--raw", *SHORT, *adapters, *where, *options)
    assert result.exit_code == 0, result.output
    if "--json" in options:
        assert json.loads(result.stdout)["completions"][0]["tokens"] == 3
    else:
        assert result.stdout.count("\n") <= 2
        assert "request" not in result.stdout
    assert ("create_sampling_session" in result.stderr) == ("--debug" in options)
