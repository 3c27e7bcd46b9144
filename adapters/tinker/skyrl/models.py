"""Quirks of models: how they are opened from checkpoints, named, and dropped."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from adapters.tinker.skyrl.messages import ApiReply, ApiRequest, Send, post
from adapters.tinker.skyrl.passes import Backend
from adapters.tinker.skyrl.results import check, wait_for


class CreateThenLoad:
    """SkyRL does not create a model from a checkpoint in one request.

    The bridge creates a model of the same rank, and loads the checkpoint as its first request. The
    SDK derives the id of such a model from its session, and SkyRL chooses another one, so the
    bridge replaces it in later requests. Seen in 0.3.0 and git (a956457).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening = defaultdict[str, threading.Lock](threading.Lock)  # by the SDK's model id
        self._replies: dict[str, ApiReply] = {}
        self._models: dict[str, str] = {}  # SkyRL's model ids by the SDK's

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        if request.method != "POST" or not request.body:
            return send(request)
        content = request.json()
        model = content.get("model_id")
        if request.endpoint == "load_weights" and model is None:
            return self._open(content, send)
        if model in self._models:
            request = request.with_json({**content, "model_id": self._models[model]})
        return send(request)

    def _open(self, content: dict[str, Any], send: Send) -> ApiReply:
        """Open the model once, however often the SDK repeats the request."""
        model = f"{content['session_id']}:train:{content['model_seq_id']}"
        with self._lock:
            opening = self._opening[model]
        with opening:
            if model not in self._replies:
                info = send(post("weights_info", {"tinker_path": content["path"]}))
                if info.is_error:
                    return info
                self._models[model] = create_model(content["session_id"], info.json(), send)
                load = {key: content[key] for key in ("path", "optimizer")}
                loading = send(post("load_weights", {"model_id": self._models[model], **load}))
                if loading.is_error:
                    return loading
                self._replies[model] = loading
            return self._replies[model]


class SessionEnds:
    """SkyRL has no request that ends a session: models stay until heartbeats stop for 5 minutes.

    A server that trains one model at a time refuses the next one until then, so the bridge unloads
    the models of the session. The JAX backend keeps the gradient of a pass without an optimiser
    step, and adds it to the first step of the next model with the same place in memory. The bridge
    therefore takes a step with learning rate 0, which clears it. Seen in 0.3.0 and git (a956457).
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._models = defaultdict[str, list[str]](list)  # by session

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        kind, _, end = request.endpoint.partition("/")
        if kind == "sessions" and end.endswith("/finish"):
            for model in self._models.pop(end.removesuffix("/finish"), []):
                self._unload(model, send)
            return ApiReply(204)
        answer = send(request)
        if request.endpoint == "create_model" and not answer.is_error:
            self._models[request.json()["session_id"]].append(answer.json()["model_id"])
        return answer

    def _unload(self, model: str, send: Send) -> None:
        try:
            if self._backend.is_jax:
                step = {"model_id": model, "adam_params": {"learning_rate": 0.0}}
                wait_for(send(post("optim_step", step)), send)
        finally:
            check(send(post("unload_model", {"model_id": model})))


def create_model(session: str, info: dict[str, Any], send: Send) -> str:
    """Create a model for weights, wait until it is there, and return its id."""
    content = {
        "session_id": session,
        "base_model": info["base_model"],
        "model_seq_id": 0,
        "lora_config": {"rank": info["lora_rank"]},
    }
    created = send(post("create_model", content))
    wait_for(created, send)
    return str(created.json()["model_id"])
