"""JSONL data is validated line by line, with one problem for each line and field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kitchen.errors import ConfigError, DataError
from stages.claims.validation import (
    DataProblem,
    DataReport,
    SchemaField,
    claim_lines,
    validate_file,
)


def validate(folder: Path, rows: list[Any], *fields: SchemaField, **options: Any) -> DataReport:
    path = folder / "rows.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return validate_file(path, fields, **options)


def starts_with_a(value: Any, row: Mapping[str, Any]) -> str:
    return "" if value.startswith("a") else f"does not start with a in row {row['id']}"


@pytest.mark.parametrize(
    "options, value, problem",
    [
        ({"type": "string"}, 1, "must be of type string, and is 1"),
        ({"type": "number"}, True, "must be of type number, and is true"),
        ({"type": "integer"}, 1.5, "must be of type integer, and is 1.5"),
        ({"type": "boolean"}, 1, "must be of type boolean, and is 1"),
        ({"type": "array"}, {}, "must be of type array, and is {}"),
        ({"type": "object"}, [], "must be of type object, and is []"),
        ({}, None, "is missing"),
        ({"allow_empty": False}, " \n", "is empty"),
        ({"allow_empty": False}, [], "is empty"),
        ({"pattern": "^[0-9]+$"}, "12a", "does not match '^[0-9]+$': \"12a\""),
        ({"minimum": 0}, -1, "is -1, and must be at least 0"),
        ({"maximum": 0.5}, 0.75, "is 0.75, and must be at most 0.5"),
        ({"enum": ["a", 1]}, "b", 'is "b", and must be one of ["a", 1]'),
        ({"min_length": 2}, "a", "has the length 1, and must have at least 2"),
        ({"max_length": 1}, [1, 2], "has the length 2, and must have at most 1"),
        ({"check": f"{__name__}:starts_with_a"}, "b", "does not start with a in row 7"),
    ],
)
def test_wrong_values_are_problems(
    options: dict[str, Any], value: Any, problem: str, tmp_path: Path
) -> None:
    report = validate(tmp_path, [{"id": 7, "f": value}], SchemaField("f", **options))
    assert report == DataReport(1, 1, (DataProblem(1, "f", problem),))


@pytest.mark.parametrize(
    "options, value",
    [
        ({"type": "number"}, 2),
        ({"type": "integer"}, 10**30),
        ({"type": "string", "required": False}, None),
        ({"type": "string"}, ""),
        ({"minimum": 1, "maximum": 1}, 1.0),
        ({"min_length": 1, "max_length": 1}, "☃"),
        ({"check": f"{__name__}:starts_with_a"}, "ab"),
    ],
)
def test_right_values_are_no_problems(options: dict[str, Any], value: Any, tmp_path: Path) -> None:
    assert validate(tmp_path, [{"f": value}], SchemaField("f", **options)) == DataReport(1, 0)


def test_each_line_and_field_has_one_problem(tmp_path: Path) -> None:
    fields = (SchemaField("a", "string", min_length=3, pattern="x"), SchemaField("b", "integer"))
    report = validate(tmp_path, [{"a": "", "b": 1}, "", "{", [1], {"b": "1"}], *fields)
    assert [str(problem) for problem in report.first] == [
        "line 1: a has the length 0, and must have at least 3",
        str(report.first[1]),
        "line 4: must be an object, and is [1]",
        "line 5: a is missing",
        'line 5: b must be of type integer, and is "1"',
    ]
    assert str(report.first[1]).startswith("line 3: is not JSON (")
    assert report.rows == 4


def test_exactly_max_examples_rows_are_read(tmp_path: Path) -> None:
    rows = [{"a": 1}, "", {"a": 1}, {"a": "1"}]
    assert validate(tmp_path, rows, SchemaField("a", "integer"), max_examples=2).problems == 0
    assert validate(tmp_path, rows, SchemaField("a", "integer"), max_examples=3).problems == 1


def test_the_first_problems_are_shown_and_all_reported(tmp_path: Path) -> None:
    found: list[DataProblem] = []
    rows = [{"a": 1}] * 30
    report = validate(tmp_path, rows, SchemaField("a", "string"), shown=5, report=found.append)
    assert [problem.line for problem in report.first] == [1, 2, 3, 4, 5]
    assert report.problems == len(found) == 30


def test_relations_of_each_row_are_validated() -> None:
    assert claim_lines("CLAIM[c1]: a", {}) == ""
    problem = "a relation names c2, which is no claim"
    assert claim_lines("CLAIM[c1]: a\nRELATION: c2 supports c1", {}) == problem


@pytest.mark.parametrize(
    "field, message",
    [
        (lambda: SchemaField("a", "strnig"), "did you mean 'string'?"),
        (lambda: SchemaField("a", pattern="("), "pattern of field 'a':"),
        (lambda: SchemaField("a", check="claim_line").validator, "did you mean 'claim_lines'?"),
        (lambda: SchemaField("a", check="no.module:f").validator, "there is no module 'no.module'"),
        (lambda: SchemaField("a", check=f"{__name__}:__name__").validator, "has no function"),
    ],
)
def test_wrong_schemas_are_errors(field: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        field()
    assert message in str(caught.value)


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl: cannot be read"):
        validate_file(tmp_path / "none.jsonl", [])
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xe4"}\n')
    with pytest.raises(DataError, match=r"latin.jsonl: not UTF-8 text"):
        validate_file(tmp_path / "latin.jsonl", [])
