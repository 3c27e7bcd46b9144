"""LangChain: an answer, a stream, a batch, tools and a chain with a prompt template."""

from __future__ import annotations

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL, RUN = sys.argv[1:3]


@tool
def set_timer(minutes: int) -> str:
    """Sets a timer."""
    return f"set to {minutes} minutes"


model = ChatOpenAI(model=MODEL, temperature=0, max_tokens=16, max_retries=0)
answer = model.invoke("Write one sentence about basil.")
pieces = [chunk.content for chunk in model.stream("Write one sentence about basil.")]
assert "".join(pieces) == answer.content
assert sum(bool(piece) for piece in pieces) > 1
assert answer.usage_metadata["output_tokens"] <= 16

prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "What is {herb}?")])
chain = prompt | ChatOpenAI(model=RUN, temperature=0, max_tokens=16) | StrOutputParser()
answers = chain.batch([{"herb": "basil"}, {"herb": "mint"}])
assert all(answers)

request = "Set a timer for 3 minutes."
plain, offered = model.invoke(request), model.bind_tools([set_timer]).invoke(request)
described = offered.usage_metadata["input_tokens"] - plain.usage_metadata["input_tokens"]
assert described > 20, described  # the prompt describes the tool
has_calls = offered.response_metadata["finish_reason"] == "tool_calls"
assert has_calls == bool(offered.tool_calls), offered
print(f"an answer in {len(pieces)} pieces, a batch of {len(answers)}, tools")
