"""Fields of requests: those that are read, those that change nothing, and those refused."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from adapters.server.openai.errors import OpenAIError
from kitchen.errors import did_you_mean
from kitchen.safe_text import escape_controls, read_json

# change no answer, and are accepted
IGNORED = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
# would change the answer: the values at which they do not
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": ([],),
    "guided_json": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "verbosity": (),
    "web_search_options": (),
}
MAX_SHOWN_NAME = 100  # characters of an unknown field's name
R = TypeVar("R", bound=BaseModel)


def parse_fields(kind: type[R], body: bytes) -> R:
    """Return the fields of a request; raises OpenAIError, which names the field at fault."""
    try:
        values = read_json(body)
    except ValueError as error:
        raise OpenAIError(f"the request is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise OpenAIError("the request must be a JSON object")
    _check_surrogates(values)
    given = {name: value for name, value in values.items() if value is not None}
    read = {name: given[name] for name in given if name in kind.model_fields}
    for name in given.keys() - read.keys():
        _check_unread(name, given[name], [*kind.model_fields, *IGNORED, *NEUTRAL])
    try:
        return kind.model_validate(read)
    except ValidationError as error:
        raise _invalid(error) from error


def _check_surrogates(values: Mapping[str, Any]) -> None:
    r"""Raise OpenAIError for half of a surrogate pair, such as `\ud83d` alone: it is no text."""
    for name, value in values.items():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            short = escape_controls(name[:MAX_SHOWN_NAME])
            half = escape_controls(error.object[error.start])
            raise OpenAIError(
                f"{short} has the character {half}, which is half of a surrogate pair and no "
                "text: encode the text as UTF-8, or both halves",
                param=short,
                code="invalid_value",
            ) from error


def _check_unread(name: str, value: Any, known: list[str]) -> None:
    """Raise OpenAIError for a field that would change the answer, or that is unknown."""
    if name in IGNORED:
        return
    if name not in NEUTRAL:
        short = name[:MAX_SHOWN_NAME]
        raise OpenAIError(
            f"the field {short!r} is unknown; {did_you_mean(short, known)}",
            param=short,
            code="unknown_parameter",
        )
    if value not in NEUTRAL[name]:
        allowed = " or ".join(repr(neutral) for neutral in NEUTRAL[name])
        only = f"; only {allowed} is accepted" if allowed else ""
        raise OpenAIError(
            f"{name} is not supported by this server, and would change the answer{only}: leave "
            "it out",
            param=name,
            code="unsupported_parameter",
        )


def _invalid(error: ValidationError) -> OpenAIError:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return OpenAIError(f"{path} is missing", param=path, code="missing_required_parameter")
    message = first["msg"].removeprefix("Value error, ")
    return OpenAIError(
        f"{path} is {reprlib.repr(first['input'])}: {message}", param=path, code="invalid_value"
    )
