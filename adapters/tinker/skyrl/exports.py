"""Quirk of exports: SkyRL packs weights into an archive, and the SDK downloads single files."""

from __future__ import annotations

import io
import json
import re
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from adapters.tinker.skyrl.messages import API, ApiReply, ApiRequest, Send, post, reply
from adapters.tinker.skyrl.results import Remembered, check
from kitchen.errors import BackendError

FILES = f"{API}files/"  # of the bridge; a path holds a random token in place of a key
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
LIFETIME = timedelta(hours=1)
URLS = re.compile(
    r"training_runs/([^/]+)/checkpoints/external_weights/([^/]+)/external_weights_urls"
)
EXTERNAL = re.compile(r"(training_runs/[^/]+/checkpoints)/external_weights/([^/]+)")


class Exports:
    """SkyRL returns sampler weights as one archive, and has no weights for other programs.

    The bridge saves sampler weights instead, fetches their archive, and serves its files. The
    configuration in the archive names no target modules, so that PEFT would guess them by the
    architecture, and ignore the weights of all others: the bridge adds those that have weights.
    Seen in 0.3.0 and git (a956457) on JAX.
    """

    def __init__(self) -> None:
        self.url = ""  # of the bridge
        self._saving = Remembered[str]()  # names by request
        self._files = dict[str, bytes]()  # by token and name
        self._tokens = dict[str, str]()  # by endpoint of the checkpoint

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        endpoint = request.endpoint
        if endpoint == "save_weights_external":
            return self._save(request, send)
        if endpoint == "retrieve_future":
            return self._note_path(request, send(request))
        if match := URLS.fullmatch(endpoint):
            return self._list(match[1], match[2], send)
        if request.method == "DELETE" and (match := EXTERNAL.fullmatch(endpoint)):
            self._drop(endpoint)
            path = f"{API}{match[1]}/sampler_weights/{match[2]}"
            return send(replace(request, path=path))
        return send(request)

    def file(self, request: ApiRequest) -> ApiReply:
        """Return a file of an export."""
        content = self._files.get(request.path.removeprefix(FILES))
        if content is None:
            return reply({"detail": "the bridge has no such file"}, status=404)
        return ApiReply(200, content, "application/octet-stream")

    def _save(self, request: ApiRequest, send: Send) -> ApiReply:
        content = request.json()
        save = {"model_id": content["model_id"], "path": content["path"]}
        answer = send(post("save_weights_for_sampler", save))
        if not answer.is_error:
            path = f"tinker://{save['model_id']}/external_weights/{save['path']}"
            self._saving.add(answer.json()["request_id"], path)
        return answer

    def _note_path(self, request: ApiRequest, answer: ApiReply) -> ApiReply:
        path = self._saving.get(request.json()["request_id"])
        if path is None or answer.status != 200 or "path" not in answer.json():
            return answer
        return answer.with_json({"path": path, "type": "save_weights_external"})

    def _list(self, run: str, name: str, send: Send) -> ApiReply:
        checkpoint = f"training_runs/{run}/checkpoints"
        files = unpack(_archive(f"{checkpoint}/{name}", send))
        self._drop(f"{checkpoint}/external_weights/{name}")
        token = secrets.token_hex(16)
        self._tokens[f"{checkpoint}/external_weights/{name}"] = token
        self._files.update({f"{token}/{file}": content for file, content in files.items()})
        urls = {file: f"{self.url}{FILES}{token}/{file}" for file in files}
        return reply({"urls": urls, "expires": (datetime.now(UTC) + LIFETIME).isoformat()})

    def _drop(self, checkpoint: str) -> None:
        token = self._tokens.pop(checkpoint, None)
        for path in [path for path in self._files if token and path.startswith(token)]:
            del self._files[path]


def _archive(checkpoint: str, send: Send) -> bytes:
    """Return the archive of sampler weights; SkyRL redirects to it."""
    found = send(ApiRequest("GET", f"{API}{checkpoint}/archive"))
    check(found)
    if not found.location:
        raise BackendError(f"SkyRL returned no address for the archive of {checkpoint}")
    downloaded = send(ApiRequest("GET", urlsplit(found.location).path))
    check(downloaded)
    return downloaded.body


def unpack(archive: bytes) -> Mapping[str, bytes]:
    """Return the files of an archive, with the target modules in the configuration."""
    files = dict[str, bytes]()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar.getmembers():
            if member.isfile() and (opened := tar.extractfile(member)):
                files[member.name.lstrip("./")] = opened.read()
    if CONFIG not in files or TENSORS not in files:
        raise BackendError(
            f"SkyRL's archive holds {', '.join(files)}, and no {CONFIG} or no {TENSORS}"
        )
    config: dict[str, Any] = json.loads(files[CONFIG])
    if not config.get("target_modules"):
        config["target_modules"] = target_modules(files[TENSORS])
        files[CONFIG] = json.dumps(config, indent=2).encode()
    return files


def target_modules(tensors: bytes) -> list[str]:
    """Return the names of the layers that have LoRA weights in a safetensors file."""
    length = int.from_bytes(tensors[:8], "little")
    names = json.loads(tensors[8 : 8 + length])
    found = {match[1] for name in names if (match := re.search(r"([^.]+)\.lora_[AB]\.", name))}
    return sorted(found)
