"""Exports of SkyRL's archives as single files."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping

import pytest

from adapters.tinker.skyrl.exports import CONFIG, TENSORS, Exports
from adapters.tinker.skyrl.messages import API, ApiReply, ApiRequest, Send, post, reply
from kitchen.errors import BackendError
from tests.support.skyrl_replies import ReplayedSkyRL

CHECKPOINT = "training_runs/model_1/checkpoints/external_weights/download"
LAYER = "base_model.model.model.layers.0"
HEADER = json.dumps(
    {f"{LAYER}.self_attn.q_proj.lora_A.weight": {}, f"{LAYER}.mlp.up_proj.lora_B.weight": {}}
).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER
FILES = {CONFIG: b'{"r": 8, "target_modules": null}', TENSORS: WEIGHTS}


def archive(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def skyrl_with(files: Mapping[str, bytes]) -> Send:
    def send(request: ApiRequest) -> ApiReply:
        if request.endpoint.endswith("download/archive"):
            return ApiReply(302, location=f"http://10.0.0.1:8000{API}the/archive")
        if request.endpoint == "the/archive":
            return ApiReply(200, archive(files))
        return reply({}, status=404)

    return send


def listed(quirk: Exports, files: Mapping[str, bytes]) -> dict[str, str]:
    request = ApiRequest("GET", f"{API}{CHECKPOINT}/external_weights_urls")
    urls: dict[str, str] = quirk(request, skyrl_with(files)).json()["urls"]
    return urls


def test_sampler_weights_are_saved_for_exports() -> None:
    skyrl, quirk = ReplayedSkyRL(retrieve_future={"path": "tinker://model_1/download"}), Exports()
    save = {"model_id": "model_1", "path": "download", "ttl_seconds": 3600}
    quirk(post("save_weights_external", save), skyrl)
    assert skyrl.last("save_weights_for_sampler") == {"model_id": "model_1", "path": "download"}
    answer = quirk(post("retrieve_future", {"request_id": "1"}), skyrl)
    assert answer.json()["path"] == "tinker://model_1/external_weights/download"


def test_archives_become_single_files() -> None:
    quirk = Exports()
    urls = listed(quirk, FILES)
    assert set(urls) == {CONFIG, TENSORS}
    config = json.loads(quirk.file(ApiRequest("GET", urls[CONFIG])).body)
    assert config == {"r": 8, "target_modules": ["q_proj", "up_proj"]}
    assert quirk.file(ApiRequest("GET", urls[TENSORS])).body == WEIGHTS


def test_deleted_exports_are_gone() -> None:
    quirk, skyrl = Exports(), ReplayedSkyRL()
    urls = listed(quirk, FILES)
    quirk(ApiRequest("DELETE", f"{API}{CHECKPOINT}"), skyrl)
    assert skyrl.requests[-1].path.endswith("/sampler_weights/download")
    assert quirk.file(ApiRequest("GET", urls[CONFIG])).status == 404


def test_archives_without_weights_are_refused() -> None:
    with pytest.raises(BackendError, match=r"holds adapter_config\.json, and no"):
        listed(Exports(), {CONFIG: FILES[CONFIG]})
