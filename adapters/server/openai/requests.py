"""Requests for completions and for answers in a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    model_validator,
)

from adapters.server.openai.errors import OpenAIError
from adapters.server.sampling import MAX_SAMPLES

MAX_TOP_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_TEMPERATURE = 1000.0
MAX_ID = 2**31 - 1  # of tokens
MAX_STOPS = 64  # strings or token ids
MAX_STOP_LENGTH = 1000  # characters
DEFAULT_COMPLETION_TOKENS = 16  # of OpenAI's API
Count = Annotated[StrictInt, Field(ge=1, le=MAX_SAMPLES)]
TokenCount = Annotated[StrictInt, Field(ge=0, le=2**31)]
TopLogprobs = Annotated[StrictInt, Field(ge=0, le=MAX_TOP_LOGPROBS)]
StopId = Annotated[StrictInt, Field(ge=0, le=MAX_ID)]


def _number(value: Any) -> float:
    largest = 1e9
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= largest:
        raise ValueError("must be a finite number")
    return float(value)


def _texts(value: Any) -> Sequence[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise ValueError("must be a text or a list of texts")
    return values


def _prompts(value: Any) -> Sequence[str | Sequence[int]]:
    """Return prompts, each as text or token ids."""
    values = [value] if isinstance(value, str) or _is_ids(value) else value
    if isinstance(values, list) and (
        all(isinstance(one, str) for one in values) or all(map(_is_ids, values))
    ):
        return values
    raise ValueError("must be a text, a list of texts, token ids or a list of lists of token ids")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


Number = Annotated[float, BeforeValidator(_number)]
Texts = Annotated[Sequence[str], PlainValidator(_texts)]
Prompts = Annotated[Sequence[str | Sequence[int]], PlainValidator(_prompts)]


class WithoutNulls(BaseModel):
    """An object whose fields may be null, as clients write fields that they leave out."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class StreamOptions(WithoutNulls):
    """Options of a streamed answer."""

    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False  # padding, which hides lengths; none is sent


class SamplingFields(BaseModel):
    """The fields that both endpoints have."""

    model: str
    n: Count = 1
    temperature: Annotated[Number, Field(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[StrictInt, Field(ge=-1, le=MAX_ID)] = 0  # of vLLM; 0 and -1 are off
    seed: Annotated[StrictInt, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    stop: Texts = ()
    stop_token_ids: Annotated[list[StopId], Field(max_length=MAX_STOPS)] = []  # of vLLM
    stream: StrictBool = False
    stream_options: StreamOptions = StreamOptions()
    prompt_logprobs: TopLogprobs | None = None  # of vLLM

    @property
    def stop_texts(self) -> Sequence[str]:
        """The stop strings; raises OpenAIError for an empty one, and for too many or too long."""
        texts = self.stop
        longest = max(map(len, texts), default=0)
        if len(texts) > MAX_STOPS or longest > MAX_STOP_LENGTH:
            raise OpenAIError(
                f"stop has {len(texts)} strings of up to {longest} characters; at most "
                f"{MAX_STOPS} strings of {MAX_STOP_LENGTH} characters are accepted",
                param="stop",
            )
        if "" in texts:
            raise OpenAIError("stop has an empty string; leave it out", param="stop")
        if texts and self.stop_token_ids:
            raise OpenAIError(
                "stop and stop_token_ids cannot be combined; use one of them",
                param="stop_token_ids",
            )
        return texts


class CompletionRequest(SamplingFields):
    """A request to continue text or tokens."""

    prompt: Prompts
    max_tokens: TokenCount = DEFAULT_COMPLETION_TOKENS
    echo: StrictBool = False
    logprobs: TopLogprobs | None = None
    return_token_ids: StrictBool = False  # of vLLM

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """The prompts, each as text or token ids; raises OpenAIError if there are none."""
        if not self.prompt:
            raise OpenAIError("prompt is an empty list", param="prompt")
        return self.prompt


class FunctionTool(WithoutNulls):
    """The function of a tool."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool | None = None


class ToolField(WithoutNulls):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionTool

    @property
    def schema_(self) -> Mapping[str, Any]:
        """The tool as chat templates read it."""
        return {"type": "function", "function": self.function.model_dump(exclude={"strict"})}


class ChatRequest(SamplingFields):
    """A request for the next message of a conversation."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1), FailFast()]
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None  # the newer name
    logprobs: StrictBool = False
    top_logprobs: TopLogprobs = 0
    tools: Annotated[list[ToolField], FailFast()] = []
    tool_choice: Any = "auto"
    chat_template_kwargs: dict[str, Any] = {}  # of vLLM

    @property
    def offered_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools in the prompt; raises OpenAIError for a `tool_choice` that is not supported."""
        if self.tool_choice == "none":
            return []
        if self.tool_choice != "auto":
            raise OpenAIError(
                f"tool_choice={self.tool_choice!r:.80} is not supported by this server, which "
                "cannot force a call; use 'auto' or 'none'",
                param="tool_choice",
                code="unsupported_parameter",
            )
        return [tool.schema_ for tool in self.tools]

    @property
    def token_limit(self) -> int | None:
        """The maximum number of tokens; None for all that fit. Raises OpenAIError."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise OpenAIError(
                "max_tokens and max_completion_tokens differ; use one of them", param="max_tokens"
            )
        return limits.pop() if limits else None
