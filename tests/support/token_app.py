"""A server of token ids on loopback that a test may make answer wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from adapters.fake.tokenizer import ByteTokenizer
from adapters.openai.token_server import KITCHEN
from kitchen.types import Tokens
from tests.support.openai_server import Body, Send, read_body, respond

Change = Callable[[Body, Body], object]  # changes a choice, given the request


class TokenApp:
    """An ASGI application that reads bytes, answers "BC", and scores each token of a prompt -1.

    `change` changes the choice of a request with token ids; `encode` gives the ids that a text is
    read as.
    """

    def __init__(self, change: Change = lambda choice, body: None, owner: str = KITCHEN) -> None:
        self.change = change
        self.encode: Callable[[str], Tokens] = ByteTokenizer().encode
        self.model: Body = {"id": "m", "object": "model", "owned_by": owner}
        self.sha256: str | None = "1" * 64  # of the weights
        self.bodies: list[Body] = []  # of requests with token ids

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["path"].endswith("/models"):
            await respond(send, 200, {"object": "list", "data": [self.model]})
            return
        if "/models/" in scope["path"]:
            await respond(send, 200, {**self.model, "sha256": self.sha256})
            return
        body = json.loads(await read_body(receive))
        prompt, is_text = body["prompt"], isinstance(body["prompt"], str)
        if is_text:
            prompt = self.encode(prompt).tolist()
        choice = _choice(prompt, body)
        if not is_text:
            self.bodies.append(body)
            self.change(choice, body)
        await respond(send, 200, {"choices": [choice] * body["n"]})


def _choice(prompt: list[int], body: Body) -> Body:
    scores = [None] + [{str(token): {"logprob": -1.0, "rank": 1}} for token in prompt[1:]]
    return {
        "index": 0,
        "prompt_token_ids": prompt,
        "token_ids": [66, 67],
        "text": "BC",
        "finish_reason": "stop",
        "logprobs": {"token_logprobs": [-0.5, -0.25]},
        "prompt_logprobs": None if body.get("prompt_logprobs") is None else scores,
    }
