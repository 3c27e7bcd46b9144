"""Answers compared with reference objects and texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchen.errors import DataError
from stages.tasks.json_score import JsonScore, default_metric, exact_match, score_json

WANTED = '{"quantity": 1.5, "unit": "cup", "optional": false}'


@pytest.mark.parametrize(
    "answer, hits, fields",
    [
        # order, spelling and white space are free
        (' {"unit": "cup", "optional": false, "quantity": 1.50}\n', 3, 3),
        ('{"quantity": 1.5, "unit": "cups", "optional": false}', 2, 3),
        ('{"quantity": 1.5}', 1, 1),
        ('{"quantity": 1.5, "unit": "cup", "optional": false, "name": "salt"}', 3, 4),
        ('{"quantity": 1.5, "unit": "cup", "optional": 0}', 2, 3),  # 0 is not false
        ("{}", 0, 0),
    ],
)
def test_field_f1_counts_equal_fields(answer, hits, fields):
    score = score_json(answer, WANTED)
    assert score.parsed
    assert score.f1 == pytest.approx(2 * hits / (fields + 3))
    assert score.exact == (hits == fields == 3)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "sorry",
        "[1]",
        "3",
        "null",
        '{"quantity": NaN}',
        '{"quantity": Infinity}',
        "{'quantity': 1}",
        '{"quantity": 1,}',
        '{"quantity": 1.5',
        '{"a": 1} and more',
        '```python\n{"a": 1}\n```',
        '{"quantity": 1.5, "quantity": 1.5}',
        '{"a": {"b": 1, "b": 2}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": ' + "9" * 10_000 + "}",
    ],
)
def test_non_object_answer_scores_zero(answer):
    assert score_json(answer, WANTED) == JsonScore(exact=False, f1=0.0, parsed=False)


@pytest.mark.parametrize(
    "a, b, same",
    [
        ("1", "1.0", True),
        ("1", "true", False),
        ("0", "false", False),
        ("true", "true", True),
        ("null", "null", True),
        ("null", "0", False),
        ('"1"', "1", False),
        ("[1, 2]", "[1.0, 2]", True),
        ("[1, 2]", "[2, 1]", False),
        ("[1, true]", "[1, 1]", False),
        ('{"x": [0]}', '{"x": [false]}', False),
        ('{"x": 1, "y": 2}', '{"y": 2, "x": 1}', True),
        ("[]", "{}", False),
        ('"a "', '"a"', False),
    ],
)
def test_values_compare_as_json(a, b, same):
    assert score_json(f'{{"v": {a}}}', f'{{"v": {b}}}').exact is same
    assert score_json(f'{{"v": {b}}}', f'{{"v": {a}}}').exact is same


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_f1_is_symmetric_and_1_only_if_exact(a, b):
    one, other = (
        score_json(json.dumps(a), json.dumps(b)),
        score_json(json.dumps(b), json.dumps(a)),
    )
    assert one == other
    assert 0.0 <= one.f1 <= 1.0
    assert one.exact == (one.f1 == 1.0)
    assert score_json(json.dumps(a, indent=1), json.dumps(a)).exact


def test_exact_match_ignores_outer_white_space():
    assert exact_match(" 42\n", "42")
    assert not exact_match("4 2", "42")
    assert not exact_match('{"a": 1}', '{"a": 1.0}')


def test_default_metric_is_json_if_all_are_objects():
    assert default_metric([WANTED, " {} "]) == "json"
    assert default_metric([WANTED, "42"]) == "text"
    assert default_metric([]) == "text"


def test_bad_reference_is_an_error():
    with pytest.raises(DataError, match="'42' is not a JSON object"):
        score_json("{}", "42")
