"""Quirks of sampling: log-probabilities of prompts."""

from __future__ import annotations

from adapters.tinker.skyrl.messages import ApiReply, ApiRequest, Send
from adapters.tinker.skyrl.results import Remembered


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
