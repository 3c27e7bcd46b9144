"""Laws of the Tinker adapter on servers that leave things out.

Each ends in the result that a complete server gives, or in an error that names the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen.backend.losses import LOSSES
from kitchen.errors import BackendError, CorruptCheckpoint, Diverged, KitchenError, SessionLost
from kitchen.ports.sampling import Sampler
from kitchen.ports.training import TrainingSession
from kitchen.types import Adam, Array, Checkpoint, Datum, Lora
from tests.support.fake_runs import run_recipe
from tests.support.faulty_app import Fault, FaultyApp
from tests.support.incomplete_server import IncompleteApp, Refusal, leaving_out
from tests.support.tinker_server import KEY, ByteTinker, serving

PROMPT = np.array([72, 105, 33, 10])
LORA = Lora(rank=4, seed=1)
EXPIRED = Fault("expired", "forward_backward", (7,))
STATUSES = (400, 401, 403, 405, 422)  # those after which the SDK does not try again for minutes


@pytest.fixture(scope="module", autouse=True)
def _key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_API_KEY", KEY)
        patch.setenv("TINKER_TELEMETRY", "0")
        yield


@dataclass
class Served:
    """A client of a server, a session, and the wrapper around the server's application."""

    client: ByteTinker
    session: TrainingSession
    app: IncompleteApp
    address: str
    blobs: FakeBlobs  # of the client


@contextmanager
def served_without(*names: str, refusals: tuple[Refusal, ...] = ()) -> Iterator[Served]:
    server_blobs, apps = FakeBlobs(), list[IncompleteApp]()

    def wrap(app: Any) -> Any:
        apps.append(leaving_out(*names, refusals=refusals)(app))
        return apps[0]

    with serving(FakeTraining(server_blobs), server_blobs, wrap=wrap) as server:
        blobs = FakeBlobs()
        client = ByteTinker(blobs, server.url)
        session = client.open("tiny", LORA)
        yield Served(client, session, apps[0], server.url, blobs)
        session.close()


def datums(loss: str) -> list[Datum]:
    fields: Mapping[str, list[float]] = {
        "weights": [0.0, 1.0, 0.5],
        "advantages": [0.0, 1.0, -2.0],
        "logprobs": [0.0, -6.0, -5.0],
        "sequence_ratio_mask": [0.0, 1.0, 1.0],
    }
    inputs = {name: np.array(fields[name], np.float32) for name in LOSSES[loss].inputs}
    target_tokens = np.array([4, 2, 3])
    return [Datum(np.array([1, 4, 2]), {"target_tokens": target_tokens, **inputs})] * 2


class SquaredLoss:
    """The weighted sum of squared log-probabilities, as a custom loss."""

    def __call__(self, data: Any, logprobs: Any) -> Any:
        value = float(sum((lp**2).sum() for lp in logprobs))
        return value, [2 * lp for lp in logprobs], {"squared:sum": value}


def train(session: TrainingSession, loss: Any = "cross_entropy") -> Array:
    """Take two steps, and return the losses of training and one of evaluation."""
    data = datums(loss if isinstance(loss, str) else "cross_entropy")
    losses = []
    for _ in range(2):
        losses.append(session.forward_backward(data, loss).result().metrics["loss:sum"])
        session.optim_step(Adam(1e-2)).result()
    return np.array([*losses, session.forward(data, loss).result().metrics["loss:sum"]])


@pytest.mark.parametrize("loss", [*LOSSES, SquaredLoss()], ids=[*LOSSES, "custom"])
@pytest.mark.parametrize("missing", ["loss:sum", "loss:sum, but mean"])
def test_losses_do_not_depend_on_the_server(missing: str, loss: Any) -> None:
    expected = train(FakeTraining(FakeBlobs()).open("tiny", LORA), loss)
    with served_without(missing) as served:
        np.testing.assert_allclose(train(served.session, loss), expected, rtol=1e-5)
        assert served.app.used


def test_options_count_in_a_loss_computed_here() -> None:
    options = {"clip_low_threshold": 0.99, "clip_high_threshold": 1.01}
    local = FakeTraining(FakeBlobs()).open("tiny", LORA)
    expected = local.forward(datums("ppo"), "ppo", options).result().metrics["loss:sum"]
    plain = local.forward(datums("ppo"), "ppo").result().metrics["loss:sum"]
    with served_without("loss:sum") as served:
        loss = served.session.forward(datums("ppo"), "ppo", options).result().metrics["loss:sum"]
    assert loss == pytest.approx(expected, rel=1e-5) != plain


@pytest.mark.parametrize(
    "missing, kind",
    [
        ("training logprobs", BackendError),
        ("training logprobs of a datum", BackendError),
        ("last training logprob", BackendError),
        ("fractions of training logprobs", BackendError),
        ("reduction in a metric", BackendError),
        ("finite training logprobs", Diverged),
    ],
)
@pytest.mark.parametrize("loss", ["cross_entropy", SquaredLoss()], ids=["named", "custom"])
def test_bad_training_result_names_the_server(missing: str, kind: type, loss: Any) -> None:
    with served_without(missing) as served:
        for call in (served.session.forward, served.session.forward_backward):
            with pytest.raises(kind, match=served.address) as raised:
                call(datums("cross_entropy"), loss).result(60)
            assert not isinstance(raised.value, SessionLost)


def test_server_that_opens_no_session_is_named() -> None:
    with served_without("get_info") as served:
        with pytest.raises(BackendError, match=f"{served.address} lacks .*get_info") as raised:
            served.session.facts()
        assert not isinstance(raised.value, SessionLost)


def test_loss_that_is_not_finite_names_the_server() -> None:
    with served_without("finite loss") as served:
        with pytest.raises(Diverged, match=served.address):
            served.session.forward_backward(datums("cross_entropy")).result(60)


def test_metrics_of_a_step_may_be_missing() -> None:
    with served_without("metrics of a step") as served:
        expected = train(FakeTraining(FakeBlobs()).open("tiny", LORA))
        np.testing.assert_allclose(train(served.session), expected, rtol=1e-5)


@pytest.mark.parametrize("missing", ["tinker:// in paths", "paths of saves"])
def test_path_that_cannot_be_opened_names_the_server(missing: str) -> None:
    with served_without(missing) as served:
        for save in (served.session.save, served.session.save_weights):
            with pytest.raises(BackendError, match=served.address):
                save("one").result(60)
    assert not served.blobs.list("one")


@pytest.mark.parametrize("missing", ["first prompt logprob", "NaN for the first token"])
def test_first_prompt_logprob_is_nan(missing: str) -> None:
    expected = FakeTraining(FakeBlobs()).sampler("tiny").logprobs(PROMPT).result()
    with served_without(missing) as served, closing(served.client.sampler("tiny")) as sampler:
        logprobs = sampler.logprobs(PROMPT).result(60)
        assert served.app.used
    np.testing.assert_allclose(logprobs, expected, rtol=1e-5)


def test_first_row_of_top_tokens_may_be_missing() -> None:
    expected = FakeTraining(FakeBlobs()).sampler("tiny").top_logprobs(PROMPT, 3).result()
    with (
        served_without("first top-k row") as served,
        closing(served.client.sampler("tiny")) as sampler,
    ):
        ids, nats = sampler.top_logprobs(PROMPT, 3).result(60)
        assert served.app.used
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(nats, expected[1], rtol=1e-5)


def score(sampler: Sampler) -> Any:
    return sampler.logprobs(PROMPT)


def rank(sampler: Sampler) -> Any:
    return sampler.top_logprobs(PROMPT, 3)


def sample(sampler: Sampler) -> Any:
    return sampler.sample(PROMPT, count=2, max_tokens=3, seed=1)


@pytest.mark.parametrize(
    "missing, call",
    [
        ("prompt logprobs", score),
        ("last prompt logprob", score),
        ("two prompt logprobs", score),
        ("middle prompt logprob", score),
        ("finite prompt logprob", score),
        ("top-k", rank),
        ("two top-k rows", rank),
        ("last top-k column", rank),
        ("last sample", sample),
        ("sample logprobs", sample),
        ("last sample logprob", sample),
        ("finite sample logprobs", sample),
        ("negative sample logprobs", sample),
        ("valid sampled tokens", sample),
        ("sampled tokens", sample),
        ("limit on sampled tokens", sample),
        ("stop reason", sample),
    ],
)
def test_bad_sample_names_the_server(missing: str, call: Callable[[Sampler], Any]) -> None:
    with served_without(missing) as served, closing(served.client.sampler("tiny")) as sampler:
        with pytest.raises(BackendError, match=served.address) as raised:
            call(sampler).result(60)
        assert not isinstance(raised.value, SessionLost)


@pytest.mark.parametrize("missing", ["", ", 400", ", 404", ", 405"])
def test_model_is_loaded_without_creation_from_state(missing: str, tmp_path: Path) -> None:
    """A session goes on as if it had not been reopened, and its weights can be exported."""
    with served_without(f"create from state{missing}") as served:
        session = served.session
        train(session)
        checkpoint = session.save("one").result(60)
        expected = train(session)
        session.load(checkpoint).result(60)
        np.testing.assert_array_equal(train(session), expected)
        session.load_weights(checkpoint).result(60)
        assert (train(session)[:1] == expected[:1]).all()
        served.client.export(checkpoint, tmp_path / "exported")
        assert served.app.used == 3
    assert list((tmp_path / "exported").iterdir())


def test_optimiser_is_loaded_only_if_asked_for() -> None:
    with served_without("create from state") as served:
        train(served.session)
        checkpoint = served.session.save("one").result(60)
        served.session.load(checkpoint).result(60)
        with_optimiser = train(served.session)
        served.session.load_weights(checkpoint).result(60)
        assert train(served.session)[1] != with_optimiser[1]


def test_model_is_loaded_without_weights_info() -> None:
    with served_without("create from state", "weights_info") as served:
        train(served.session)
        checkpoint = served.session.save("one").result(60)
        expected = train(served.session)
        served.session.load(checkpoint).result(60)
        np.testing.assert_array_equal(train(served.session), expected)
        with pytest.raises(BackendError, match=f"{served.address} neither creates"):
            served.client.export(checkpoint, Path("unused"))


@pytest.mark.parametrize("missing", ["create from state", "create from state, 404"])
def test_lost_session_is_resumed(missing: str) -> None:
    """The metrics of a run whose session expires are those of an undisturbed run."""
    undisturbed, resumed = (_run_on(missing, *faults) for faults in ((), (EXPIRED,)))
    assert len(undisturbed) > 3
    assert resumed == undisturbed


def _run_on(missing: str, *faults: Fault) -> list[dict[str, Any]]:
    """Return the metrics of a run on an incomplete server with faults."""
    server_blobs, blobs, apps = FakeBlobs(), FakeBlobs(), list[FaultyApp]()

    def wrap(app: Any) -> Any:
        apps.append(FaultyApp(leaving_out(missing)(app), faults))
        return apps[0]

    with serving(FakeTraining(server_blobs), server_blobs, wrap=wrap) as server:
        rows = run_recipe("sl_basic", ByteTinker(blobs, server.url), blobs)
    assert apps[0].injected == len(faults)
    return rows


def test_weights_are_sampled_without_records_of_samplers() -> None:
    with served_without("samplers") as served:
        weights = served.session.save_weights("one").result(60)
        expected = sample(FakeTraining(FakeBlobs()).sampler("tiny")).result()
        with closing(served.client.sampler(weights)) as sampler:
            drawn = sample(sampler).result(60)
    assert [list(each.tokens) for each in drawn] == [list(each.tokens) for each in expected]


def test_server_without_expiry_names_the_setting() -> None:
    with served_without("ttl") as served:
        client = ByteTinker(FakeBlobs(), served.address, expire_after=7200)
        with (
            closing(client.open("tiny", LORA)) as session,
            pytest.raises(BackendError, match=f"{served.address}.*expire_after"),
        ):
            session.save("one").result(60)


def gone(served: Served) -> Checkpoint:
    """Return a checkpoint that the server does not have any more."""
    checkpoint = served.session.save("one").result(60)
    [name] = served.blobs.list("one")
    entry = served.blobs.read(name)
    assert entry is not None
    served.client.delete(checkpoint)
    served.blobs.write(name, entry)
    return checkpoint


@pytest.mark.parametrize("missing", [(), ("create from state",)], ids=["complete", "incomplete"])
def test_deleted_checkpoint_is_corrupt(missing: tuple[str, ...]) -> None:
    with served_without(*missing) as served:
        checkpoint = gone(served)
        with pytest.raises(CorruptCheckpoint, match=served.address):
            served.session.load(checkpoint).result(60)


@pytest.mark.parametrize("status", [*STATUSES, 404])
def test_only_a_missing_checkpoint_is_corrupt(status: int) -> None:
    """A server that answers weights_info with an error says nothing about the weights."""
    refusals = (Refusal("/weights_info", status), Refusal("/load_weights", 403, "not yours"))
    with served_without(refusals=refusals) as served:
        checkpoint = served.session.save("one").result(60)
        with pytest.raises(KitchenError, match=served.address) as raised:
            served.session.load(checkpoint).result(60)
        assert not isinstance(raised.value, CorruptCheckpoint)


@pytest.mark.parametrize("missing", ["deletions", "deletions, 405"])
def test_server_without_deletions_warns(missing: str, tmp_path: Path) -> None:
    with served_without(missing) as served:
        checkpoint = served.session.save("one").result(60)
        served.session.delete(checkpoint).result(60)
        assert not served.client.checkpoints()
        other = served.session.save("two").result(60)
        served.client.export(other, tmp_path / "exported")
        with pytest.raises(BackendError, match=served.address):
            served.client.delete(other)
    assert list((tmp_path / "exported").iterdir())


def test_export_from_a_server_without_expiry(tmp_path: Path) -> None:
    with served_without("ttl") as served:
        checkpoint = served.session.save("one").result(60)
        served.client.export(checkpoint, tmp_path / "exported")
        assert served.app.used == 1
    assert list((tmp_path / "exported").iterdir())


@pytest.mark.parametrize("missing", ["external weights", "external weights urls", "loads"])
def test_failed_export_names_the_server(missing: str, tmp_path: Path) -> None:
    with served_without(missing) as served:
        checkpoint = served.session.save("one").result(60)
        with pytest.raises(BackendError, match=f"{served.address} lacks") as raised:
            served.client.export(checkpoint, tmp_path / "exported")
        assert not isinstance(raised.value, SessionLost)
    assert not (tmp_path / "exported").exists()


def test_refused_request_ends_the_session() -> None:
    """Its number is missing on the server, so that later requests would wait for it forever."""
    with served_without("snapshots") as served:
        with pytest.raises(BackendError, match=f"{served.address} answered with status 422"):
            served.session.snapshot().result(60)
        with pytest.raises(KitchenError, match="accepts no more calls"):
            served.session.forward(datums("cross_entropy")).result(60)
