"""Checkpoints of SkyRL: their names, paths and deletions."""

from __future__ import annotations

import pytest

from adapters.tinker.skyrl.checkpoints import (
    CheckpointNames,
    Deletions,
    SamplerPaths,
    TrainableWeights,
)
from adapters.tinker.skyrl.messages import ApiReply, ApiRequest, post
from tests.support.skyrl_replies import ReplayedSkyRL

DELETE = ApiRequest("DELETE", "/api/v1/training_runs/model_1/checkpoints/sampler_weights/best-1")


def test_dots_in_names_become_hyphens() -> None:
    skyrl = ReplayedSkyRL()
    CheckpointNames()(post("save_weights", {"model_id": "model_1", "path": "v1.5_a"}), skyrl)
    assert skyrl.last("save_weights")["path"] == "v1-5_a"


def test_paths_of_sampler_weights_are_complete() -> None:
    skyrl = ReplayedSkyRL(retrieve_future={"path": "tinker://model_1/best-1"})
    answer = SamplerPaths()(post("retrieve_future", {"request_id": "1"}), skyrl)
    assert answer.json()["path"] == "tinker://model_1/sampler_weights/best-1"


def test_sampler_weights_are_trainable() -> None:
    skyrl, quirk = ReplayedSkyRL(), TrainableWeights()
    quirk(post("save_weights_for_sampler", {"model_id": "model_1", "path": "best-1"}), skyrl)
    assert [request.endpoint for request in skyrl.requests] == [
        "save_weights",
        "save_weights_for_sampler",
    ]
    quirk(post("load_weights", {"path": "tinker://model_1/sampler_weights/best-1"}), skyrl)
    assert skyrl.last("load_weights")["path"] == "tinker://model_1/weights/best-1"
    quirk(DELETE, skyrl)
    assert [request.path.split("/")[-2] for request in skyrl.requests[-2:]] == [
        "weights",
        "sampler_weights",
    ]


def test_snapshots_without_a_name_are_saved_once() -> None:
    skyrl = ReplayedSkyRL()
    save = {"model_id": "model_1", "sampling_session_seq_id": 1, "seq_id": 5}
    TrainableWeights()(post("save_weights_for_sampler", save), skyrl)
    assert not skyrl.count("save_weights")


# SkyRL 0.3.0 has no such endpoint; git says which checkpoint is unknown, or that it is deleted
@pytest.mark.parametrize(
    ("status", "detail", "expected"),
    [(404, "Not Found", 204), (405, "Method Not Allowed", 204), (404, "Checkpoint not found", 404)],
)
def test_missing_deletions_are_not_errors(status: int, detail: str, expected: int) -> None:
    skyrl = ReplayedSkyRL(status, **{DELETE.endpoint: {"detail": detail}})
    assert Deletions()(DELETE, skyrl).status == expected


def test_errors_in_plain_text_are_passed_on() -> None:
    plain = ApiReply(500, b"Internal Server Error", "text/plain")
    assert Deletions()(DELETE, lambda request: plain) == plain
