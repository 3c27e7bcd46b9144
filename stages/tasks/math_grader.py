"""Comparison of answers with reference answers as mathematics, by math-verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from kitchen.errors import DataError
from kitchen.ports.environments import StepResult
from stages.tasks.math_text import (
    bare,
    final_answers,
    half_unit,
    is_formula,
    last_number,
    normalise,
    spaced,
    stated_answer,
)

REL_TOL = "1.000001e-6"  # of numbers one of which is a decimal: 1/3 and 0.333333 are equal
FLOAT_NOISE = "1e-15"  # relative error of a decimal that was parsed
PRECISION = 40  # digits that numbers are evaluated to, and as many more as they have before the dot
MAX_PRECISION = 5000


def math_reward(answer: str, reference: str) -> StepResult:
    """Return 1 for an equal number or formula, or for the same text, else 0.

    Only the final answer is compared: after the last ####, in <answer> tags, or in the last box.
    An unclosed box or thought is no answer. Raises DataError if the reference has no final answer.
    """
    golds = [_Reading.of(text) for text in final_answers(reference)]
    if not golds:
        raise DataError(
            f"the last box of {reference[-80:]!r} is not closed: add the missing }} (or </think>)"
        )
    if not any(gold.expressions for gold in golds):
        raise DataError(
            f"{reference[:80]!r} has no number or formula, so answers cannot be compared with it "
            "as math; compare them as text (evaluation.metric=text or reward=exact)"
        )
    readings = [_Reading.of(text) for text in final_answers(answer)]
    right = any(gold.equals(reading) for gold, reading in product(golds, readings))
    return StepResult(float(right), parsed=right or any(r.expressions for r in readings))


@dataclass(frozen=True)
class _Reading:
    """A final answer: its text, and what math-verify reads in it."""

    texts: frozenset[str]
    expressions: Sequence[Any]  # of sympy; a text if math-verify cannot parse a formula
    half_unit: str | None = None  # of the last place, if it is a number in digits

    @classmethod
    def of(cls, text: str) -> _Reading:
        text = normalise(text)
        core = bare(text)  # not empty if it is a formula
        if is_formula(core):
            return cls(frozenset({core}), _formula(core), half_unit(core))
        if stated := stated_answer(text):
            return cls(frozenset({core, stated}), _formula(stated), half_unit(stated))
        return cls(frozenset({core} - {""}), _plain(text), half_unit(core))

    def equals(self, answer: _Reading) -> bool:
        """Return whether an answer is this reference."""
        if self.texts & answer.texts:
            return True
        return any(
            _equal(gold, found, self.half_unit)
            for gold, found in product(self.expressions, answer.expressions)
        )


def _formula(text: str) -> Sequence[Any]:
    """Read a text that is a formula as a whole."""
    return _parse(f"${text}$") or [text]


def _plain(text: str) -> Sequence[Any]:
    """Read the final formula or number of a text in words."""
    if found := _parse(spaced(text)):
        return found
    number = last_number(text)
    return _parse(number) if number else []


def _parse(text: str) -> Sequence[Any]:
    """Parse without a time limit: math-verify's needs the main thread, and callers have one."""
    from math_verify import parse

    return list(parse(text, fallback_mode="no_fallback", parsing_timeout=None))


def _equal(gold: Any, answer: Any, unit: str | None) -> bool:
    """Compare two expressions; `unit` is half of the last place of a reference in digits."""
    try:
        expected, number = _number(gold), _number(answer)
        if expected is not None and number is not None:
            return _numbers_equal(expected, number, unit)
        return _verify(gold, answer)
    except Exception:  # noqa: BLE001 sympy raises errors of all kinds for odd expressions
        return False


def _verify(gold: Any, answer: Any) -> bool:
    """Compare by math-verify, which rounds to decimal places: more of them for small numbers."""
    from math_verify import verify
    from sympy import Number

    sizes = [abs(number) for number in gold.atoms(Number)] if hasattr(gold, "atoms") else []
    smallest = min((size for size in sizes if size.is_finite and size != 0), default=1)
    places = max(0, -_magnitude(smallest))
    return bool(
        verify(
            gold,
            answer,
            float_rounding=6 + places,
            numeric_precision=15 + places,
            timeout_seconds=None,
        )
    )


@dataclass(frozen=True)
class _Number:
    """A real number."""

    value: Any  # of sympy, evaluated when it is compared
    is_decimal: bool  # whether it has a part in decimal notation, which may be rounded
    is_percentage: bool = False  # of a value before the percent sign

    def digits(self, count: int) -> Any:
        return self.value.evalf(count)


def _number(expression: Any) -> _Number | None:
    """Return the value of an expression; None if it is not a number or cannot be evaluated."""
    from math_verify.grader import get_pct_val
    from sympy import Expr, Float

    if not isinstance(expression, Expr) or not expression.is_number:
        return None
    value = get_pct_val(expression, expression)
    evaluated = value.evalf(15)
    if not evaluated.is_Number or not evaluated.is_finite:
        return None
    return _Number(value, bool(value.atoms(Float)), value is not expression)


def _numbers_equal(gold: _Number, answer: _Number, unit: str | None) -> bool:
    """Compare numbers; a percent sign that only one of them has may be missing."""
    from sympy import Float

    precision = min(PRECISION + max(0, _magnitude(gold.digits(15))), MAX_PRECISION)
    expected = gold.digits(precision)
    value = answer.digits(precision)
    if gold.is_decimal or answer.is_decimal:
        tolerance = max(abs(expected), abs(value)) * Float(REL_TOL)
        tolerance = tolerance if unit is None else min(tolerance, Float(unit))
        tolerance = max(tolerance, abs(expected) * Float(FLOAT_NOISE))
    else:
        tolerance = abs(expected) * Float(10) ** (10 - precision)
    candidates = [value]
    if gold.is_percentage != answer.is_percentage:
        candidates.append(value * 100 if gold.is_percentage else value / 100)
    return any(bool(abs(expected - candidate) <= tolerance) for candidate in candidates)


def _magnitude(value: Any) -> int:
    """Return the power of ten of a number, 0 for 0."""
    from sympy import floor, log

    return int(floor(log(abs(value), 10).evalf(15))) if value != 0 else 0
