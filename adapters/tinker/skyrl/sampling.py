"""Quirks of sampling: log-probabilities of prompts, and the weights that samples come from."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog

from adapters.tinker.skyrl.messages import (
    ApiReply,
    ApiRequest,
    Send,
    UnexpectedReply,
    post,
    reply,
)
from adapters.tinker.skyrl.models import create_model
from adapters.tinker.skyrl.passes import Backend
from adapters.tinker.skyrl.results import AWAY, Remembered, await_end, check, wait_for

log = structlog.get_logger("kitchen.tinker")
CHANGES = frozenset({"optim_step", "load_weights"})
STALE = (
    "SkyRL's JAX backend samples with the weights that are being trained, and the snapshot that "
    "this sampler belongs to has been trained further; sample before the next step, without a "
    "policy lag"
)


class PromptLogprobs:
    """SkyRL's JAX backend leaves out the first token of a prompt, which has no log-probability.

    The Tinker API has one entry per token. Seen in 0.3.0 and git (a956457) on JAX.
    """

    def __init__(self) -> None:
        self._lengths = Remembered[int]()  # tokens of prompts by request

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        answer = send(request)
        if answer.is_error:
            return answer
        if request.endpoint == "asample":
            chunks = request.json()["prompt"]["chunks"]
            tokens = sum(len(chunk["tokens"]) for chunk in chunks)
            self._lengths.add(answer.json()["request_id"], tokens)
        elif request.endpoint == "retrieve_future" and b'"prompt_logprobs"' in answer.body:
            length = self._lengths.get(request.json()["request_id"])
            result = answer.json()
            logprobs = result.get("prompt_logprobs")
            if length and logprobs is not None and len(logprobs) == length - 1:
                return answer.with_json({**result, "prompt_logprobs": [None, *logprobs]})
        return answer


@dataclass
class _Sampler:
    """The weights that a sampling session is to use; a snapshot has no path."""

    model: str
    version: int = -1  # changes of the model before the snapshot
    path: str = ""
    session: str = ""
    copy: str = ""  # sampling session of a copy of the weights
    opening: threading.Lock = field(default_factory=threading.Lock)


class FrozenWeights:
    """SkyRL samples only with the weights that a loaded model has now.

    Its JAX backend keeps one set of weights per model, for training and for sampling: a sample from
    an earlier checkpoint replaces the weights under training, and a sample from a snapshot uses
    the weights of later steps. Both backends refuse checkpoints of models that are not loaded, such
    as those of a run that has ended. The bridge loads a checkpoint that is not current into a
    separate model, which nobody trains. A snapshot that is not current is refused on JAX.
    Samples that are pending are awaited before the weights change, whether or not they fail. Seen
    in 0.3.0 and git (a956457) on JAX.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._versions = defaultdict[str, int](int)  # changes by model
        self._saved = dict[str, int]()  # versions by path of sampler weights
        self._snapshots = Remembered[_Sampler]()  # by the request that saves them
        self._samplers = dict[str, _Sampler]()  # by sampling session
        self._pending = defaultdict[str, set[str]](set)  # requests for samples by model

    def __call__(self, request: ApiRequest, send: Send) -> ApiReply:
        endpoint = request.endpoint
        if endpoint == "asample":
            return self._sample(request, send)
        if endpoint in CHANGES and (away := self._change(request.json()["model_id"], send)):
            return away
        answer = send(request)
        if answer.is_error:
            return answer
        if endpoint == "create_sampling_session":
            self._open(request, answer)
        elif endpoint == "save_weights_for_sampler":
            self._save(request, answer)
        elif endpoint == "retrieve_future":
            self._note_result(request.json()["request_id"], answer)
        return answer

    def _open(self, request: ApiRequest, answer: ApiReply) -> None:
        content = request.json()
        if path := content.get("model_path"):
            sampler = _Sampler(_model_of(path), path=path, session=content["session_id"])
            self._samplers[answer.json()["sampling_session_id"]] = sampler

    def _save(self, request: ApiRequest, answer: ApiReply) -> None:
        content = request.json()
        model = content["model_id"]
        if name := content.get("path"):
            path = f"tinker://{model}/sampler_weights/{name}"
            self._saved[path] = self._versions[model]
        else:
            snapshot = _Sampler(model, self._versions[model])
            self._snapshots.add(answer.json()["request_id"], snapshot)

    def _note_result(self, request_id: str, answer: ApiReply) -> None:
        for pending in tuple(self._pending.values()):
            pending.discard(request_id)
        if snapshot := self._snapshots.get(request_id):
            self._samplers[answer.json()["sampling_session_id"]] = snapshot

    def _change(self, model: str, send: Send) -> ApiReply | None:
        """Await the samples of the weights as they are; return a reply if SkyRL is away.

        The client that asked for a sample gets its error.
        """
        for request_id in tuple(self._pending[model]):
            try:
                answer = await_end(request_id, send)
            except UnexpectedReply as error:
                log.debug("a sample ended with a reply that is malformed", why=str(error))
            else:
                if answer.status == AWAY:
                    return answer
            self._pending[model].discard(request_id)
        self._versions[model] += 1
        return None

    def _sample(self, request: ApiRequest, send: Send) -> ApiReply:
        content = request.json()
        sampler = self._samplers.get(content.get("sampling_session_id", ""))
        if sampler is None:  # a base model
            return send(request)
        is_current = self._is_current(sampler)
        if not is_current and not sampler.path and self._backend.is_jax:
            return reply({"detail": STALE}, status=400)
        if not is_current and sampler.path:
            with sampler.opening:
                sampler.copy = sampler.copy or _open_copy(sampler, send)
            copied = {**content, "sampling_session_id": sampler.copy}
            return send(request.with_json(copied))
        answer = send(request)
        if not answer.is_error:
            self._pending[sampler.model].add(answer.json()["request_id"])
        return answer

    def _is_current(self, sampler: _Sampler) -> bool:
        version = self._saved.get(sampler.path, -1) if sampler.path else sampler.version
        return not sampler.copy and version == self._versions[sampler.model]


def _open_copy(sampler: _Sampler, send: Send) -> str:
    """Load the weights into a new model, and return a sampling session on it."""
    path = sampler.path.replace("/sampler_weights/", "/weights/")
    info = send(post("weights_info", {"tinker_path": path}))
    check(info)
    model = create_model(sampler.session, info.json(), send)
    load = {"model_id": model, "path": path, "optimizer": False}
    wait_for(send(post("load_weights", load)), send)
    name = path.rpartition("/")[2]
    wait_for(send(post("save_weights_for_sampler", {"model_id": model, "path": name})), send)
    opened = send(
        post(
            "create_sampling_session",
            {
                "session_id": sampler.session,
                "sampling_session_seq_id": 0,
                "model_path": f"tinker://{model}/sampler_weights/{name}",
            },
        )
    )
    check(opened)
    return str(opened.json()["sampling_session_id"])


def _model_of(path: str) -> str:
    return urlsplit(path).netloc
