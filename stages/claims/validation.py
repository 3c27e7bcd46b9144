"""Validation of JSONL data against a schema, line by line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from kitchen.config.user_functions import import_function
from kitchen.errors import ConfigError, DataError, check_name, did_you_mean
from kitchen.safe_text import read_json
from stages.claims.answer import parse_answer

# gets a value and its row; returns what is wrong with the value, or "" if nothing is
Validator = Callable[[Any, Mapping[str, Any]], str]
TypeName = Literal["string", "number", "integer", "boolean", "array", "object"]
VALIDATORS = "kitchen.validators"  # entry points: name -> Validator


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_IS_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_SIZED = ("string", "array", "object")


@dataclass(frozen=True)
class SchemaField:
    """Schema of one field of the rows."""

    name: str
    type: TypeName | None = None  # null for any type
    required: bool = True  # a row without it, or with null, is an error
    allow_empty: bool = True  # false: "", blank text, [] and {} are errors
    pattern: str | None = None  # regular expression that occurs in the text
    minimum: float | None = None  # smallest number
    maximum: float | None = None  # largest number
    enum: Sequence[Any] | None = None  # the only values
    min_length: int | None = None  # characters of a text, items of an array or object
    max_length: int | None = None
    check: str | None = None  # more: a function as MODULE:FUNCTION, or an installed validator

    def __post_init__(self) -> None:
        if self.type is not None:
            check_name(f"type of field {self.name!r}", self.type, get_args(TypeName))
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigError(f"pattern of field {self.name!r}: {error}") from error

    @cached_property
    def validator(self) -> Validator | None:
        """The function that `check` names; raises ConfigError if there is none."""
        return None if self.check is None else find_validator(self.check)

    def problem(self, row: Mapping[str, Any]) -> str:
        """Return what is wrong with this field of a row; "" if nothing is."""
        value = row.get(self.name)
        if value is None:
            return "" if not self.required else "is missing"
        if self.type is not None and not _IS_TYPE[self.type](value):
            return f"must be of type {self.type}, and is {_shown(value)}"
        return (
            self._size_problem(value)
            or self._value_problem(value)
            or (self.validator(value, row) if self.validator is not None else "")
        )

    def _size_problem(self, value: Any) -> str:
        if not isinstance(value, str | list | dict):
            return ""
        is_empty = not value.strip() if isinstance(value, str) else not value
        if is_empty and not self.allow_empty:
            return "is empty"
        length = len(value)
        if self.min_length is not None and length < self.min_length:
            return f"has the length {length}, and must have at least {self.min_length}"
        if self.max_length is not None and length > self.max_length:
            return f"has the length {length}, and must have at most {self.max_length}"
        return ""

    def _value_problem(self, value: Any) -> str:
        if self.enum is not None and value not in self.enum:
            return f"is {_shown(value)}, and must be one of {json.dumps(list(self.enum))}"
        is_text = isinstance(value, str)
        if self.pattern is not None and is_text and not re.search(self.pattern, value):
            return f"does not match {self.pattern!r}: {_shown(value)}"
        if _is_number(value):
            if self.minimum is not None and value < self.minimum:
                return f"is {value}, and must be at least {self.minimum:g}"
            if self.maximum is not None and value > self.maximum:
                return f"is {value}, and must be at most {self.maximum:g}"
        return ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def find_validator(name: str) -> Validator:
    """Return a validator by MODULE:FUNCTION or by the name of an entry point.

    Raises ConfigError, with the closest names, if there is none.
    """
    if ":" not in name:
        installed = {entry.name: entry for entry in entry_points(group=VALIDATORS)}
        if name not in installed:
            raise ConfigError(
                f"there is no validator {name!r}; {did_you_mean(name, installed)} (a function of "
                "your own is named as MODULE:FUNCTION)"
            )
        return installed[name].load()  # type: ignore[no-any-return]
    return import_function("check", name)


def claim_lines(value: Any, row: Mapping[str, Any]) -> str:
    """Validate an answer of claim lines and relations; the validator `claim_lines`."""
    if not isinstance(value, str):
        return "must be text"
    return "; ".join(parse_answer(value).problems)


@dataclass(frozen=True)
class DataProblem:
    """One problem with one field of one line; `field` is "" for a line that is no object."""

    line: int  # from 1
    field: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field + ' ' if self.field else ''}{self.message}"


@dataclass(frozen=True)
class DataReport:
    """The result of validating a file: rows read, and how many problems there are."""

    rows: int
    problems: int
    first: tuple[DataProblem, ...] = field(default=())  # the first problems


def data_problems(
    lines: Iterator[str], fields: Sequence[SchemaField]
) -> Iterator[tuple[int, list[DataProblem]]]:
    """Yield, for each row in turn, its line number and its problems; blank lines are no rows."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = read_json(line)
        except ValueError as error:
            yield number, [DataProblem(number, "", f"is not JSON ({error})")]
            continue
        if not isinstance(row, dict):
            yield number, [DataProblem(number, "", f"must be an object, and is {_shown(row)}")]
            continue
        found = ((field.name, field.problem(row)) for field in fields)
        yield number, [DataProblem(number, name, message) for name, message in found if message]


def validate_file(
    path: Path,
    fields: Sequence[SchemaField],
    *,
    max_examples: int | None = None,
    shown: int = 20,
    report: Callable[[DataProblem], None] = lambda problem: None,
) -> DataReport:
    """Validate the first `max_examples` rows of a JSONL file; null for all.

    The file is read line by line, so memory does not grow with it. `report` gets every problem,
    the result has the first `shown`. Raises DataError for a file that cannot be read, and
    ConfigError for a validator that does not exist.
    """
    for field_ in fields:
        _ = field_.validator
    rows = problems = 0
    first: list[DataProblem] = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for _, found in islice(data_problems(file, fields), max_examples):
                rows += 1
                problems += len(found)
                for problem in found:
                    report(problem)
                first += found[: shown - len(first)]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error.reason})") from error
    return DataReport(rows, problems, tuple(first))
