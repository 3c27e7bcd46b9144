"""Replies of SkyRL in the shapes that 0.3.0 and git (a956457) return, shortened."""

from __future__ import annotations

from typing import Any

from adapters.tinker.skyrl.messages import ApiReply, ApiRequest, reply

ARRAY = {"data": [-1.5, -0.25, -2.0], "dtype": "float32", "shape": [3]}
JAX_FORWARD: dict[str, Any] = {
    "loss_fn_output_type": "scalar",
    "loss_fn_outputs": [{"elementwise_loss": ARRAY, "logprobs": ARRAY}],
    "metrics": {},
}
# of the FSDP and Megatron backends, from their source
TRAIN_FORWARD: dict[str, Any] = {
    "loss_fn_output_type": "scalar",
    "loss_fn_outputs": [{"logprobs": ARRAY}],
    "metrics": {},
}
SAMPLES: dict[str, Any] = {
    "sequences": [
        {"stop_reason": "stop", "tokens": [5, 9], "logprobs": [-0.5, -1.25]},
        {"stop_reason": "length", "tokens": [5], "logprobs": [-0.5]},
    ],
    "prompt_logprobs": [-3.0, -0.5],
    "topk_prompt_logprobs": None,
}
TOP: dict[str, Any] = {
    **SAMPLES,
    "topk_prompt_logprobs": [None, [[7, -0.1], [8, -2.0]], [[3, -0.2]]],
}
INFO = {"base_model": "tiny", "is_lora": True, "lora_rank": 8}
PENDING = {"future_id": "1", "status": "pending", "request_id": "1"}
CREATED = {
    "model_id": "model_1a2b3c4d",
    "base_model": "tiny",
    "status": "created",
    "request_id": "1",
}
REPLIES: dict[str, Any] = {"weights_info": INFO, "create_model": CREATED}


class ReplayedSkyRL:
    """Replays a reply per endpoint, and records requests; other endpoints return a future."""

    def __init__(self, status: int = 200, **replies: dict[str, Any]) -> None:
        self._replies = {**REPLIES, **replies}
        self._status = status
        self.requests: list[ApiRequest] = []

    def __call__(self, request: ApiRequest) -> ApiReply:
        self.requests.append(request)
        return reply(self._replies.get(request.endpoint, PENDING), self._status)

    def last(self, endpoint: str) -> dict[str, Any]:
        return [request for request in self.requests if request.endpoint == endpoint][-1].json()

    def count(self, endpoint: str) -> int:
        return sum(request.endpoint == endpoint for request in self.requests)
