"""The OpenAI SDK: models, chats, completions, streams, tools, scores, seeds and errors."""

from __future__ import annotations

import sys

from openai import BadRequestError, NotFoundError, OpenAI

MODEL, RUN = sys.argv[1:3]
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Sets a timer.",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}},
    },
}
client = OpenAI(max_retries=0, timeout=600)  # address and key come from the environment
question = [{"role": "user", "content": "Write one sentence about basil."}]

names = [model.id for model in client.models.list()]
assert {MODEL, RUN} <= set(names), names

options = {"model": MODEL, "messages": question, "max_tokens": 24, "seed": 5}
answer = client.chat.completions.create(**options, n=2)
texts = [choice.message.content for choice in answer.choices]
again = client.chat.completions.create(**options, n=2)
assert texts == [choice.message.content for choice in again.choices]
assert texts[0] != texts[1]

usage = {"include_usage": True}
streamed, chunks = {0: "", 1: ""}, 0
for chunk in client.chat.completions.create(**options, n=2, stream=True, stream_options=usage):
    for choice in chunk.choices:
        streamed[choice.index] += choice.delta.content or ""
        chunks += 1
assert list(streamed.values()) == texts
assert chunk.usage == answer.usage

stop = texts[0][10:13]
stopped = client.chat.completions.create(**options, stop=[stop]).choices[0]
assert stopped.message.content == texts[0][: texts[0].index(stop)]
assert stopped.finish_reason == "stop"

scored = client.chat.completions.create(**options, logprobs=True, top_logprobs=3).choices[0]
assert "".join(token.token for token in scored.logprobs.content).startswith(texts[0])
assert all(len(token.top_logprobs) == 3 for token in scored.logprobs.content)

tools = client.chat.completions.create(**options, tools=[TIMER])
calls = tools.choices[0].message.tool_calls
assert tools.usage.prompt_tokens > answer.usage.prompt_tokens + 20  # the prompt describes them
assert (tools.choices[0].finish_reason == "tool_calls") == bool(calls), tools

echoed = client.completions.create(
    model=MODEL,
    prompt="The capital of France is",
    max_tokens=1,
    temperature=0,
    logprobs=1,
    echo=True,
).choices[0]
assert echoed.text == "The capital of France is Paris", echoed.text

tuned = client.chat.completions.create(**{**options, "model": RUN}).choices[0]
assert tuned.message.content

refused = {"model": ("nothing", NotFoundError), "logit_bias": ({"5": 1}, BadRequestError)}
for field, (value, kind) in refused.items():
    try:
        client.chat.completions.create(**{**options, field: value})
    except kind as error:
        message = error.body["message"]
    else:
        raise AssertionError(f"{field}={value} was accepted")
    assert str(value) in message or field in message, message
print(f"{len(names)} models, 2 answers in {chunks} chunks, scores, stop strings, tools, errors")
