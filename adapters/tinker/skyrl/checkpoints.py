"""Quirks of checkpoints: names, paths, kinds and deletions."""

from __future__ import annotations

import re
from dataclasses import replace

import structlog

from adapters.tinker.skyrl.messages import API, ApiReply, ApiRequest, Send, is_result_with, post

log = structlog.get_logger("kitchen.tinker")
SAVES = frozenset({"save_weights", "save_weights_for_sampler", "save_weights_external"})


class CheckpointNames:
    """SkyRL accepts letters, digits, `-` and `_` in names of checkpoints, but no dots.

    Seen in 0.3.0 and git (a956457).
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        if request.endpoint in SAVES and (name := request.json().get("path")):
            clean = re.sub(r"[^A-Za-z0-9_-]", "-", name)
            request = request.with_json({**request.json(), "path": clean})
        return send(request)


class SamplerPaths:
    """SkyRL returns `tinker://MODEL/NAME` for sampler weights, without `sampler_weights/`.

    Seen in 0.3.0 and git (a956457).
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        answer = send(request)
        if not is_result_with(request, answer, b"tinker://"):
            return answer
        result = answer.json()
        if bare := re.fullmatch(r"(tinker://[^/]+)/([^/]+)", str(result.get("path"))):
            return answer.with_json({**result, "path": f"{bare[1]}/sampler_weights/{bare[2]}"})
        return answer


class TrainableWeights:
    """SkyRL cannot train weights that were saved for sampling.

    The bridge saves a training checkpoint of the same name with them, and loads that one. Both are
    deleted together. Seen in 0.3.0 and git (a956457).
    """

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        endpoint = request.endpoint
        if request.method == "DELETE" and "/sampler_weights/" in endpoint:
            send(replace(request, path=request.path.replace("/sampler_weights/", "/weights/")))
        elif endpoint == "save_weights_for_sampler" and (name := request.json().get("path")):
            model = request.json()["model_id"]
            answer = send(post("save_weights", {"model_id": model, "path": name}))
            if answer.is_error:
                return answer
        elif endpoint in ("load_weights", "weights_info"):
            body = request.body.replace(b"/sampler_weights/", b"/weights/")
            request = replace(request, body=body)
        return send(request)


class Deletions:
    """SkyRL 0.3.0 deletes no checkpoints; git (a956457) does."""

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        answer = send(request)
        if request.method != "DELETE" or not request.endpoint.startswith("training_runs/"):
            return answer
        # the replies of its framework for a path that it does not have
        if answer.status != 405 and answer.detail != "Not Found":
            return answer
        if not self._warned:
            self._warned = True
            log.warning(
                "this version of SkyRL deletes no checkpoints; remove files from the folder of its "
                "option --checkpoints-base",
                checkpoint=request.path.removeprefix(API),
            )
        return ApiReply(204)
