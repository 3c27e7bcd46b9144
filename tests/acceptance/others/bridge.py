"""A proxy between SDK 0.38 and a server of an earlier Tinker API, which supports only JSON.

It changes the format of messages, not the computation: it converts protobuf to JSON and back,
replaces opening from a checkpoint by opening and loading, and adds the sample ids that the SDK
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
    """A proxy as an ASGI application, `app`; `changes` counts the changed messages by kind."""

    def __init__(self, upstream: str) -> None:
        self._upstream = httpx.AsyncClient(base_url=upstream, timeout=600)
        # id of a load request -> fields to add to its response
        self._loading: dict[str, Mapping[str, str]] = {}
        self.changes: dict[str, int] = {}
        self.app = Starlette(
            routes=[
                Route(f"{API}/forward_backward", self._convert_pass, methods=["POST"]),
                Route(f"{API}/forward", self._convert_pass, methods=["POST"]),
                Route(f"{API}/asample", self._sample, methods=["POST"]),
                Route(f"{API}/load_weights", self._load, methods=["POST"]),
                Route(f"{API}/retrieve_future", self._retrieve, methods=["POST"]),
                Route(f"{API}/client/dynamic_config", self._config, methods=["POST"]),
                Route(f"{API}/sessions/{{id}}/finish", self._finish, methods=["POST"]),
                Route(f"{API}/training_runs/{{path:path}}", self._delete, methods=["DELETE"]),
                Route(
                    "/{path:path}",
                    self._forward_unchanged,
                    methods=["GET", "POST", "PUT", "DELETE"],
                ),
            ]
        )

    async def _convert_pass(self, request: Request) -> Response:
        self._count("protobuf of forward and backward")
        parsed = parse_forward_backward(await request.body())
        field = "forward_input" if parsed.forward_only else "forward_backward_input"
        path = "forward" if parsed.forward_only else "forward_backward"
        return await self._post(
            path, {"model_id": parsed.model, "seq_id": parsed.number, field: _json_request(parsed)}
        )

    async def _sample(self, request: Request) -> Response:
        self._count("ids of sampled sequences")
        body = await request.json()
        response = await self._upstream.post(f"{API}/asample", json=body)
        if response.is_error:
            return _to_response(response)
        ids = [secrets.token_hex(8) for _ in range(body.get("num_samples", 1))]
        return JSONResponse({**response.json(), "sample_sequence_ids": ids})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        if body.get("model_id") is not None:
            return await self._post("load_weights", body)
        self._count("opening from a checkpoint")
        info = await self._upstream.post(f"{API}/weights_info", json={"tinker_path": body["path"]})
        if info.is_error:
            return _to_response(info)
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
            return _to_response(created)
        await self._upstream.post(
            f"{API}/retrieve_future", json={"request_id": created.json()["request_id"]}
        )
        model = created.json()["model_id"]
        loading = await self._upstream.post(
            f"{API}/load_weights", json={"model_id": model, "path": body["path"]}
        )
        if not loading.is_error:
            self._loading[loading.json()["request_id"]] = {"model_id": model}
        return _to_response(loading)

    async def _retrieve(self, request: Request) -> Response:
        body = await request.json()
        response = await self._upstream.post(f"{API}/retrieve_future", json=body)
        if response.is_error:
            return _to_response(response)
        result = response.json()
        if "sequences" in result:
            return Response(_samples(result), media_type=PROTOBUF)
        if "loss_fn_outputs" in result:
            return Response(_output(result), media_type=PROTOBUF)
        if bare := re.fullmatch(r"(tinker://[^/]+)/([^/]+)", result.get("path") or ""):
            self._count("path of sampler weights")
            result["path"] = f"{bare[1]}/sampler_weights/{bare[2]}"
        return JSONResponse({**result, **self._loading.get(body["request_id"], {})})

    async def _delete(self, request: Request) -> Response:
        self._count("deletions (ignored)")
        return Response(status_code=204)

    async def _config(self, request: Request) -> Response:
        return JSONResponse({})

    async def _finish(self, request: Request) -> Response:
        self._count("session ends (ignored)")
        return Response(status_code=204)

    async def _forward_unchanged(self, request: Request) -> Response:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in ("content-type", "x-api-key")
        }
        return _to_response(
            await self._upstream.request(
                request.method,
                request.url.path,
                params=dict(request.query_params),
                content=await request.body(),
                headers=headers,
            )
        )

    async def _post(self, path: str, body: Mapping[str, Any]) -> Response:
        return _to_response(await self._upstream.post(f"{API}/{path}", json=body))

    def _count(self, change: str) -> None:
        self.changes[change] = self.changes.get(change, 0) + 1


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
    """Return the response with the summed loss; SkyRL returns the loss of each token."""
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
    prompt = result.get("prompt_logprobs")  # SkyRL omits the first token
    return sample_response(
        samples, None if prompt is None else np.array([np.nan, *prompt], np.float32)
    )


def _to_response(response: httpx.Response) -> Response:
    return Response(
        response.content, response.status_code, media_type=response.headers.get("content-type")
    )
