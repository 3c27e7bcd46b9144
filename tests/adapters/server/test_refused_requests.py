"""Requests that the server refuses, sent by the SDK: the model can be trained afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from tinker import RequestFailedError, ServiceClient, types

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from tests.support.tinker_server import KEY, RunningServer, serving

STEP = types.AdamParams(learning_rate=0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        yield server


@pytest.fixture
def model(server: RunningServer) -> Iterator[Any]:
    with ServiceClient(base_url=server.url, api_key=KEY) as service:
        yield service.create_lora_training_client("tiny", rank=4, seed=1).result()


def datum(**fields: Any) -> types.Datum:
    tokens = fields.pop("tokens", [1, 2, 3])
    inputs = {
        "target_tokens": types.TensorData.from_numpy(np.array([2, 3, 4])),
        "weights": types.TensorData.from_numpy(np.ones(3, np.float32)),
        **fields,
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def with_image(datum: types.Datum) -> types.Datum:
    image = types.ImageChunk(data=b"png", format="png", expected_tokens=3)
    return types.Datum(
        model_input=types.ModelInput(chunks=[image]), loss_fn_inputs=datum.loss_fn_inputs
    )


def floats(*values: float) -> types.TensorData:
    return types.TensorData.from_numpy(np.array(values, np.float32))


def loss(model: Any) -> float:
    return float(model.forward([datum()], "cross_entropy").result().metrics["loss:sum"])


BAD: dict[str, tuple[Callable[[], types.Datum], str, str]] = {
    "NaN weight": (lambda: datum(weights=floats(1, np.nan, 1)), "cross_entropy", "weights"),
    "short weights": (lambda: datum(weights=floats(1, 1)), "cross_entropy", "weights"),
    "image": (lambda: with_image(datum()), "cross_entropy", "image"),
    "unknown id": (lambda: datum(tokens=[1, 2, 100_000]), "cross_entropy", "vocabulary"),
    "unknown loss": (datum, "stable_reinforce", "ppo, cispo or gspo"),
    "too long": (
        lambda: types.Datum(
            model_input=types.ModelInput.from_ints([1] * 10_000),
            loss_fn_inputs={"target_tokens": [1] * 10_000, "weights": [1.0] * 10_000},
        ),
        "cross_entropy",
        "context",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_model_is_usable_after_a_refused_pass(model: Any, case: str) -> None:
    make_bad, loss_name, named = BAD[case]
    before = loss(model)
    futures = [
        model.forward_backward([datum(), make_bad()], loss_name),
        model.optim_step(STEP),
    ]
    saves = [
        model.save_state("after"),
        model.save_weights_for_sampler("after"),
    ]
    for future, text in zip(futures, (named, "no gradient"), strict=True):
        with pytest.raises(RequestFailedError, match=text) as refused:
            future.result()
        assert refused.value.category == types.RequestErrorCategory.User
    for save in saves:
        assert save.result().path.startswith("tinker://")
    assert loss(model) == before
    model.forward_backward([datum()], "cross_entropy")
    model.optim_step(STEP).result()
    assert loss(model) < before


@pytest.mark.parametrize("case", ["NaN weight", "image"])
def test_step_without_a_part_of_its_batch_is_refused(model: Any, case: str) -> None:
    before = loss(model)
    make_bad, _, named = BAD[case]
    accepted = model.forward_backward([datum()], "cross_entropy")
    refused = model.forward_backward([make_bad()], "cross_entropy")
    step, save = model.optim_step(STEP), model.save_state("between")
    accepted.result()
    for future, text in ((refused, named), (step, "a forward_backward of its batch was refused")):
        with pytest.raises(RequestFailedError, match=text):
            future.result()
    save.result()
    assert loss(model) == before


def test_later_batch_is_applied_after_a_refused_one(model: Any) -> None:
    before = loss(model)
    with pytest.raises(RequestFailedError, match="weights"):
        model.forward_backward([datum(weights=floats(1, np.nan, 1))], "cross_entropy").result()
    model.forward_backward([datum()], "cross_entropy").result()
    model.optim_step(STEP).result()
    assert loss(model) < before


@pytest.mark.parametrize("rate", [float("nan"), -1.0, float("inf")])
def test_refused_step_changes_nothing(model: Any, rate: float) -> None:
    before = loss(model)
    model.forward_backward([datum()], "cross_entropy").result()
    with pytest.raises(Exception, match="learning_rate"):
        model.optim_step(types.AdamParams(learning_rate=rate)).result(timeout=20)
    assert loss(model) == before
    model.optim_step(STEP).result(timeout=20)
    assert loss(model) < before
