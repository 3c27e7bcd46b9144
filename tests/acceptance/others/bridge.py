"""A bridge between the SDK 0.38 and a server of an earlier Tinker API, which reads only JSON.

It changes the format of messages, never what a server computes: protobuf becomes JSON and vice
versa, opening from a state becomes opening and loading, and samples get the ids that the SDK
requires.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.server.app import PROTOBUF
from adapters.server.protobuf import (
    ForwardBackward,
    loss_output_message,
    parse_forward_backward,
    sample_response,
)
from kitchen.types import Datum, LossOutput, Sampled

API = "/api/v1"


class Bridge:
    """`app` is an ASGI application; `needed` counts the changes by kind."""

    def __init__(self, upstream: str) -> None:
        self._upstream = httpx.AsyncClient(base_url=upstream, timeout=600)
        # id of a load request -> fields to add to its answer
        self._loading: dict[str, Mapping[str, str]] = {}
        self.needed: dict[str, int] = {}
        self.app = Starlette(
            routes=[
                Route(f"{API}/forward_backward", self._pass, methods=["POST"]),
                Route(f"{API}/forward", self._pass, methods=["POST"]),
                Route(f"{API}/asample", self._sample, methods=["POST"]),
                Route(f"{API}/load_weights", self._load, methods=["POST"]),
                Route(f"{API}/retrieve_future", self._retrieve, methods=["POST"]),
                Route(f"{API}/client/dynamic_config", self._config, methods=["POST"]),
                Route(f"{API}/sessions/{{id}}/finish", self._finish, methods=["POST"]),
                Route(f"{API}/training_runs/{{path:path}}", self._delete, methods=["DELETE"]),
                Route("/{path:path}", self._same, methods=["GET", "POST", "PUT", "DELETE"]),
            ]
        )

    async def _pass(self, request: Request) -> Response:
        self._count("forward and backward in protobuf")
        parsed = parse_forward_backward(await request.body())
        field = "forward_input" if parsed.forward_only else "forward_backward_input"
        path = "forward" if parsed.forward_only else "forward_backward"
        return await self._post(
            path, {"model_id": parsed.model, "seq_id": parsed.number, field: _json_request(parsed)}
        )

    async def _sample(self, request: Request) -> Response:
        self._count("ids of sampled sequences")
        body = await request.json()
        answer = await self._upstream.post(f"{API}/asample", json=body)
        if answer.is_error:
            return _through(answer)
        ids = [secrets.token_hex(8) for _ in range(body.get("num_samples", 1))]
        return JSONResponse({**answer.json(), "sample_sequence_ids": ids})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        if body.get("model_id") is not None:
            return await self._post("load_weights", body)
        self._count("opening from a state")
        info = await self._upstream.post(f"{API}/weights_info", json={"tinker_path": body["path"]})
        if info.is_error:
            return _through(info)
        created = await self._upstream.post(
            f"{API}/create_model",
            json={
                "session_id": body["session_id"],
                "base_model": info.json()["base_model"],
                "model_seq_id": body["model_seq_id"],
                "lora_config": {"rank": info.json()["lora_rank"]},
            },
        )
        if created.is_error:
            return _through(created)
        await self._upstream.post(
            f"{API}/retrieve_future", json={"request_id": created.json()["request_id"]}
        )
        model = created.json()["model_id"]
        loading = await self._upstream.post(
            f"{API}/load_weights", json={"model_id": model, "path": body["path"]}
        )
        if not loading.is_error:
            self._loading[loading.json()["request_id"]] = {"model_id": model}
        return _through(loading)

    async def _retrieve(self, request: Request) -> Response:
        body = await request.json()
        answer = await self._upstream.post(f"{API}/retrieve_future", json=body)
        if answer.is_error:
            return _through(answer)
        result = answer.json()
        if "sequences" in result:
            return Response(_samples(result), media_type=PROTOBUF)
        if "loss_fn_outputs" in result:
            return Response(_output(result), media_type=PROTOBUF)
        if bare := re.fullmatch(r"(tinker://[^/]+)/([^/]+)", result.get("path") or ""):
            self._count("a path of sampler weights without the kind of weights")
            result["path"] = f"{bare[1]}/sampler_weights/{bare[2]}"
        return JSONResponse({**result, **self._loading.get(body["request_id"], {})})

    async def _delete(self, request: Request) -> Response:
        self._count("deletions, which are ignored")
        return Response(status_code=204)

    async def _config(self, request: Request) -> Response:
        return JSONResponse({})

    async def _finish(self, request: Request) -> Response:
        self._count("the end of a session")
        return Response(status_code=204)

    async def _same(self, request: Request) -> Response:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in ("content-type", "x-api-key")
        }
        return _through(
            await self._upstream.request(
                request.method,
                request.url.path,
                params=dict(request.query_params),
                content=await request.body(),
                headers=headers,
            )
        )

    async def _post(self, path: str, body: Mapping[str, Any]) -> Response:
        return _through(await self._upstream.post(f"{API}/{path}", json=body))

    def _count(self, change: str) -> None:
        self.needed[change] = self.needed.get(change, 0) + 1


def _json_request(parsed: ForwardBackward) -> Mapping[str, Any]:
    return {
        "data": [_datum(datum) for datum in parsed.data()],
        "loss_fn": parsed.loss,
        "loss_fn_config": parsed.options() or None,
    }


def _datum(datum: Datum) -> Mapping[str, Any]:
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": datum.tokens.tolist()}]},
        "loss_fn_inputs": {
            name: {"data": array.ravel().tolist(), "shape": list(array.shape)}
            for name, array in datum.loss_inputs.items()
        },
    }


def _output(result: Mapping[str, Any]) -> bytes:
    """Return the message with the summed loss; SkyRL returns the loss of each token."""
    outputs = result["loss_fn_outputs"]
    total = sum(float(np.sum(output["elementwise_loss"]["data"])) for output in outputs)
    arrays = tuple(np.array(output["logprobs"]["data"], np.float32) for output in outputs)
    return loss_output_message(
        LossOutput(arrays, {"loss:sum": total, **(result.get("metrics") or {})})
    )


def _samples(result: Mapping[str, Any]) -> bytes:
    samples = [
        Sampled(
            np.array(sequence["tokens"]), np.array(sequence["logprobs"]), sequence["stop_reason"]
        )
        for sequence in result["sequences"]
    ]
    prompt = result.get("prompt_logprobs")  # SkyRL starts with the second token
    return sample_response(
        samples, None if prompt is None else np.array([np.nan, *prompt], np.float32)
    )


def _through(answer: httpx.Response) -> Response:
    return Response(
        answer.content, answer.status_code, media_type=answer.headers.get("content-type")
    )
