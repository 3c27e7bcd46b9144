"""Models that SkyRL opens, names and drops in its own way."""

from __future__ import annotations

import pytest

from adapters.tinker.skyrl.messages import ApiRequest, post
from adapters.tinker.skyrl.models import CreateThenLoad, SessionEnds
from adapters.tinker.skyrl.passes import Backend
from tests.support.skyrl_replies import CREATED, ReplayedSkyRL

LOAD = post(
    "load_weights",
    {
        "session_id": "session_1",
        "model_seq_id": 2,
        "path": "tinker://model_0/weights/a",
        "optimizer": True,
    },
)


def test_checkpoints_are_loaded_into_a_new_model() -> None:
    skyrl = ReplayedSkyRL()
    CreateThenLoad()(LOAD, skyrl)
    assert skyrl.last("create_model")["lora_config"] == {"rank": 8}
    assert skyrl.last("load_weights") == {
        "model_id": CREATED["model_id"],
        "path": "tinker://model_0/weights/a",
        "optimizer": True,
    }


def test_repeated_requests_open_one_model() -> None:
    skyrl, quirk = ReplayedSkyRL(), CreateThenLoad()
    assert quirk(LOAD, skyrl) == quirk(LOAD, skyrl)
    assert skyrl.count("create_model") == skyrl.count("load_weights") == 1


def test_ids_of_the_sdk_become_those_of_skyrl() -> None:
    skyrl, quirk = ReplayedSkyRL(), CreateThenLoad()
    quirk(LOAD, skyrl)
    quirk(post("optim_step", {"model_id": "session_1:train:2", "adam_params": {}}), skyrl)
    assert skyrl.last("optim_step") == {"model_id": CREATED["model_id"], "adam_params": {}}


@pytest.mark.parametrize("status", [400, 404])
def test_unknown_checkpoints_create_no_model(status: int) -> None:
    skyrl = ReplayedSkyRL(status, weights_info={"detail": "Checkpoint not found"})
    assert CreateThenLoad()(LOAD, skyrl).status == status
    assert not skyrl.count("create_model")


@pytest.mark.parametrize("is_jax", [None, False, True])
def test_end_of_a_session_unloads_its_models(is_jax: bool | None) -> None:
    """JAX keeps a gradient for the next model, unless a step clears it."""
    skyrl, quirk = ReplayedSkyRL(), SessionEnds(Backend(is_jax))
    quirk(post("create_model", {"session_id": "session_1", "base_model": "tiny"}), skyrl)
    finish = ApiRequest("POST", "/api/v1/sessions/session_1/finish", b"{}")
    assert quirk(finish, skyrl).status == 204
    assert skyrl.last("unload_model") == {"model_id": CREATED["model_id"]}
    quirk(finish, skyrl)
    assert skyrl.count("unload_model") == 1
    assert skyrl.count("optim_step") == bool(is_jax)
    if is_jax:
        assert skyrl.last("optim_step")["adam_params"] == {"learning_rate": 0.0}
