"""A server of the Tinker API that leaves things out, as servers in the wild do.

`IncompleteApp` goes around the application of our own server and changes its answers. Each thing
that it leaves out has a name in `SWITCHES`:

    with serving(training, blobs, wrap=leaving_out("loss:sum", "weights_info")) as server:
        ...

A `Refusal` makes it answer a kind of request with a status, for example all deletions with 405.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

API = "/api/v1"
PROTOBUF = b"application/x-protobuf"
PASSES = ("forward", "forward_backward")
SAVES = ("save_weights", "save_weights_for_sampler", "save_weights_external")
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """An answer with `status` to the requests whose path contains `path`."""

    path: str
    status: int
    detail: str = "Not Found"
    method: str = "POST"
    when: Callable[[Body], bool] = lambda body: True  # condition on the JSON of the request

    def applies(self, scope: Any, body: Body) -> bool:
        return scope["method"] == self.method and self.path in scope["path"] and self.when(body)


@dataclass(frozen=True)
class Edit:
    """A change of the results of requests of these kinds, in place."""

    kinds: tuple[str, ...]  # last parts of the paths that the requests were sent to
    change: Callable[[Any], None]  # of a protobuf message, or of a dict from JSON


def _array(data: bytes) -> Any:
    return np.frombuffer(data, np.float32).copy()


def _fields(message: Any) -> list[Any]:
    return [record.fields["logprobs"] for record in message.loss_fn_outputs]


def _each_logprobs(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return an edit of each datum's flat array of training log-probabilities."""

    def edit(message: Any) -> None:
        for tensor in _fields(message):
            offsets = np.frombuffer(tensor.offsets, np.int64)
            values = np.frombuffer(tensor.data, np.float32)
            bounds = zip(offsets[:-1] // 4, offsets[1:] // 4, strict=True)
            parts = [change(values[start:end].copy()).astype(np.float32) for start, end in bounds]
            tensor.data = np.concatenate(parts).tobytes()
            tensor.offsets = np.cumsum([0, *(part.nbytes for part in parts)]).tobytes()

    return edit


def _with_nan(values: Any) -> Any:
    values[-1] = np.nan
    return values


def _as_integers(message: Any) -> None:
    for tensor in _fields(message):
        values = np.frombuffer(tensor.data, np.float32).astype(np.int32)
        tensor.data, tensor.dtype = values.tobytes(), pb.DTYPE_INT32


def _without_logprobs(message: Any) -> None:
    for record in message.loss_fn_outputs:
        del record.fields["logprobs"]


def _one_datum_fewer(message: Any) -> None:
    record = message.loss_fn_outputs[-1]
    record.num_datums -= 1
    record.fields["logprobs"].offsets = record.fields["logprobs"].offsets[:-8]


def _without_loss_sum(message: Any) -> None:
    message.metrics.pop("loss:sum", None)


def _mean_loss(message: Any) -> None:
    total = message.metrics.pop("loss:sum", 0.0)
    message.metrics["loss:mean"] = total / max(len(_fields(message)), 1)


def _set_loss(value: float) -> Callable[[Any], None]:
    def edit(message: Any) -> None:
        message.metrics["loss:sum"] = value

    return edit


def _metric_without_reduction(message: Any) -> None:
    message.metrics["throughput"] = 1.0


def _prompt(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return an edit of the log-probabilities of a prompt."""

    def edit(message: Any) -> None:
        if message.prompt_logprobs:
            values = change(_array(message.prompt_logprobs))
            message.prompt_logprobs = np.asarray(values, np.float32).tobytes()

    return edit


def _set(index: int, value: float) -> Callable[[Any], Any]:
    def edit(values: Any) -> Any:
        values[index] = value
        return values

    return edit


def _top(rows: slice, columns: slice) -> Callable[[Any], None]:
    """Return an edit that leaves these rows and columns of the top-k matrices of a prompt."""

    def edit(message: Any) -> None:
        top = message.topk_prompt_logprobs
        if not top.length:
            return
        ids = np.frombuffer(top.token_ids, np.int32).reshape(top.length, top.k)[rows, columns]
        nats = np.frombuffer(top.logprobs, np.float32).reshape(top.length, top.k)[rows, columns]
        top.token_ids, top.logprobs = ids.tobytes(), nats.tobytes()
        top.length, top.k = ids.shape

    return edit


def _without_top(message: Any) -> None:
    message.ClearField("topk_prompt_logprobs")


def _sequences(change: Callable[[Any], None]) -> Callable[[Any], None]:
    def edit(message: Any) -> None:
        for sequence in message.sequences:
            change(sequence)

    return edit


def _last_sequence(message: Any) -> None:
    del message.sequences[-1]


def _clear_logprobs(sequence: Any) -> None:
    sequence.ClearField("logprobs")


def _short_logprobs(sequence: Any) -> None:
    sequence.logprobs = sequence.logprobs[:-4] or np.zeros(2, np.float32).tobytes()


def _nan_logprobs(sequence: Any) -> None:
    sequence.logprobs = np.full(len(sequence.logprobs) // 4, np.nan, np.float32).tobytes()


def _positive_logprobs(sequence: Any) -> None:
    sequence.logprobs = (-_array(sequence.logprobs) + 1).tobytes()


def _negative_tokens(sequence: Any) -> None:
    sequence.tokens = np.full(len(sequence.tokens) // 4, -7, np.int32).tobytes()


def _no_tokens(sequence: Any) -> None:
    sequence.tokens, sequence.logprobs = b"", b""


def _too_many_tokens(sequence: Any) -> None:
    sequence.tokens, sequence.logprobs = sequence.tokens * 99, sequence.logprobs * 99


def _unknown_stop_reason(sequence: Any) -> None:
    sequence.stop_reason = 7


def _plain_path(message: Any) -> None:
    message["path"] = "/checkpoints/1"


def _without_path(message: Any) -> None:
    message.pop("path", None)


def _without_metrics(message: Any) -> None:
    message["metrics"] = None


def _creates_model(body: Body) -> bool:
    return body.get("model_id") is None


def _has_ttl(body: Body) -> bool:
    return body.get("ttl_seconds") is not None


def _is_snapshot(body: Body) -> bool:
    return body.get("path") is None


def _refused(status: int, detail: str) -> Refusal:
    """Return a refusal to create a model from a checkpoint in one request."""
    return Refusal("/load_weights", status, detail, when=_creates_model)


Switch = Refusal | Edit
SWITCHES: Mapping[str, Switch] = {
    # training
    "loss:sum": Edit(PASSES, _without_loss_sum),
    "loss:sum, but mean": Edit(PASSES, _mean_loss),
    "finite loss": Edit(PASSES, _set_loss(float("nan"))),
    "reduction in a metric": Edit(PASSES, _metric_without_reduction),
    "last training logprob": Edit(PASSES, _each_logprobs(lambda values: values[:-1])),
    "finite training logprobs": Edit(PASSES, _each_logprobs(_with_nan)),
    "training logprobs": Edit(PASSES, _without_logprobs),
    "training logprobs of a datum": Edit(PASSES, _one_datum_fewer),
    "fractions of training logprobs": Edit(PASSES, _as_integers),
    "metrics of a step": Edit(("optim_step",), _without_metrics),
    # saves
    "tinker:// in paths": Edit(SAVES, _plain_path),
    "paths of saves": Edit(SAVES, _without_path),
    # log-probabilities of a prompt
    "first prompt logprob": Edit(("asample",), _prompt(lambda values: values[1:])),
    "last prompt logprob": Edit(("asample",), _prompt(lambda values: values[:-1])),
    "two prompt logprobs": Edit(("asample",), _prompt(lambda values: values[2:])),
    "middle prompt logprob": Edit(("asample",), _prompt(_set(2, float("nan")))),
    "finite prompt logprob": Edit(("asample",), _prompt(_set(2, float("-inf")))),
    "NaN for the first token": Edit(("asample",), _prompt(_set(0, 0.0))),
    "prompt logprobs": Edit(("asample",), lambda message: message.ClearField("prompt_logprobs")),
    # top tokens of a prompt
    "top-k": Edit(("asample",), _without_top),
    "first top-k row": Edit(("asample",), _top(slice(1, None), slice(None))),
    "two top-k rows": Edit(("asample",), _top(slice(2, None), slice(None))),
    "last top-k column": Edit(("asample",), _top(slice(None), slice(0, -1))),
    # samples
    "last sample": Edit(("asample",), _last_sequence),
    "sample logprobs": Edit(("asample",), _sequences(_clear_logprobs)),
    "last sample logprob": Edit(("asample",), _sequences(_short_logprobs)),
    "finite sample logprobs": Edit(("asample",), _sequences(_nan_logprobs)),
    "negative sample logprobs": Edit(("asample",), _sequences(_positive_logprobs)),
    "valid sampled tokens": Edit(("asample",), _sequences(_negative_tokens)),
    "sampled tokens": Edit(("asample",), _sequences(_no_tokens)),
    "limit on sampled tokens": Edit(("asample",), _sequences(_too_many_tokens)),
    "stop reason": Edit(("asample",), _sequences(_unknown_stop_reason)),
    # requests; SkyRL's validation refuses a load without model_id
    "create from state": _refused(422, "body.model_id: Field required"),
    "create from state, 400": _refused(400, "model_id is missing"),
    "create from state, 404": _refused(404, "Not Found"),
    "create from state, 405": _refused(405, "Method Not Allowed"),
    "create from state, 501": _refused(501, "not implemented"),
    "loads": Refusal("/load_weights", 404),
    "weights_info": Refusal("/weights_info", 404),
    "weights_info, 405": Refusal("/weights_info", 405, "Method Not Allowed"),
    "right to read weights": Refusal("/weights_info", 403, "not yours"),
    "deletions": Refusal("", 404, method="DELETE"),
    "deletions, 405": Refusal("", 405, "Method Not Allowed", method="DELETE"),
    "ttl": Refusal("", 422, "body.ttl_seconds: extra inputs are not permitted", when=_has_ttl),
    "snapshots": Refusal("save_weights_for_sampler", 422, "body.path: missing", when=_is_snapshot),
    "external weights": Refusal("/save_weights_external", 404),
    "external weights urls": Refusal("/external_weights_urls", 404, method="GET"),
    "get_info": Refusal("/get_info", 404),
    "samplers": Refusal("/samplers/", 404, method="GET"),
    "heartbeats": Refusal("/session_heartbeat", 404),
    "session ends": Refusal("/finish", 404),
    "health checks": Refusal("/api/v1/healthz", 404, method="GET"),
    "capabilities": Refusal("/get_server_capabilities", 404, method="GET"),
}


def leaving_out(*names: str, refusals: tuple[Refusal, ...] = ()) -> Callable[[Any], IncompleteApp]:
    """Return the `wrap` of `serving` for a server without the named things."""
    switches = [SWITCHES[name] for name in names]
    return lambda app: IncompleteApp(app, (*switches, *refusals))


@dataclass
class IncompleteApp:
    """An ASGI application that leaves things out; `used` counts the changed answers."""

    app: Any
    switches: tuple[Switch, ...]
    used: int = 0
    refused: list[str] = field(default_factory=list)  # paths of the requests that were refused
    kinds: dict[str, str] = field(default_factory=dict)  # of pending requests, by id

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = await _read(receive)
        if (refusal := self._refusal(scope, _json(body))) is not None:
            self.used += 1
            self.refused.append(scope["path"])
            await _send(send, refusal.status, json.dumps({"detail": refusal.detail}).encode())
            return
        answer = _Answer()
        await self.app(scope, _replay(body, receive), answer.send)
        await self._send_edited(scope["path"].removeprefix(f"{API}/"), _json(body), answer, send)

    def _refusal(self, scope: Any, body: Body) -> Refusal | None:
        for switch in self.switches:
            if isinstance(switch, Refusal) and switch.applies(scope, body):
                return switch
        return None

    async def _send_edited(self, path: str, sent: Body, answer: _Answer, send: Any) -> None:
        content = answer.body
        if path != "retrieve_future":
            request_id = _json(content).get("request_id")
            if answer.status == 200 and request_id:
                self.kinds[request_id] = path
        elif answer.status == 200:
            content = self._edited(self.kinds.get(sent["request_id"], ""), answer)
        await _send(send, answer.status, content, answer.media_type)

    def _edited(self, kind: str, answer: _Answer) -> bytes:
        edits = [
            switch for switch in self.switches if isinstance(switch, Edit) and kind in switch.kinds
        ]
        if not edits:
            return answer.body
        message = _parsed(kind, answer)
        for edit in edits:
            edit.change(message)
        content: bytes = (
            json.dumps(message).encode()
            if isinstance(message, dict)
            else message.SerializeToString()
        )
        self.used += content != answer.body
        return content


class _Answer:
    """An answer of the application, collected."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.media_type = b"application/json"

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.media_type = dict(message.get("headers", ())).get(b"content-type", self.media_type)
        else:
            self.body += message.get("body", b"")


def _parsed(kind: str, answer: _Answer) -> Any:
    if answer.media_type != PROTOBUF:
        return json.loads(answer.body)
    message = pb.SampleResponse() if kind == "asample" else pb.ForwardBackwardOutput()
    message.ParseFromString(answer.body)
    return message


def _json(body: bytes) -> Body:
    try:
        content = json.loads(body)
    except ValueError:  # protobuf, or empty
        return {}
    return content if isinstance(content, dict) else {}


async def _read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def _replay(body: bytes, receive: Any) -> Callable[[], Any]:
    """Return a `receive` that gives the body once, and then the events of the connection."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Any:
        return messages.pop() if messages else await receive()

    return replayed


async def _send(send: Any, status: int, body: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind)]
    if status != 204:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
