"""Axes of a sweep: a setting and the values it takes, as typed after `--over`."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import Any

from kitchen.config.sources import from_arguments
from kitchen.errors import ConfigError, did_you_mean

MAX_POINTS = 10_000
_EXAMPLE = "write it as KEY=VALUE,VALUE or KEY=FIRST..LAST, such as learning_rate=1e-4,2e-4"
_WHOLE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_NUMBER = r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?::(\w*))?")
_SCALES = ("log", "uniform")
_MAX_REDRAWS = 1_000  # of points that were drawn before
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, both included, of which the points of a sweep draw one each."""

    low: float
    high: float
    log: bool  # whether the logarithm is distributed uniformly, in place of the number
    whole: bool  # whether only whole numbers are drawn

    def draw(self, generator: random.Random) -> str:
        """Return a random number of the range, as it would be typed."""
        low, high = self.low, self.high + (1 if self.whole else 0)
        if self.log:
            number = math.exp(generator.uniform(math.log(low), math.log(high)))
        else:
            number = generator.uniform(low, high)
        return self.typed(math.floor(number) if self.whole else number)

    def typed(self, number: float) -> str:
        """Return a number within the bounds as it would be typed, with six significant digits."""
        if self.whole:
            return str(min(max(int(number), int(self.low)), int(self.high)))
        return repr(min(max(float(f"{number:.6g}"), self.low), self.high))


@dataclass(frozen=True)
class Axis:
    """A setting of a recipe, and its values in a sweep as they would be typed.

    With a range, points draw their value from it, and `values` are its bounds.
    """

    key: str
    values: Sequence[str]
    range: Range | None = None
    text: str = ""  # as it was typed after --over

    def settings(self) -> Sequence[str]:
        """Return the settings `key=value` of this axis."""
        return [f"{self.key}={value}" for value in self.values]

    def parsed(self) -> Sequence[Any]:
        """Return the values as recipes read them, or the range as it was typed."""
        if self.range is not None:
            return [self.text.partition("=")[2]]
        return [_parsed(self.key, value) for value in self.values]

    def count(self) -> float:
        """Return the number of different values; infinite for a range of all numbers."""
        if self.range is None:
            return len(self.values)
        return self.range.high - self.range.low + 1 if self.range.whole else math.inf

    def draw(self, generator: random.Random) -> str:
        """Return a random value."""
        return self.range.draw(generator) if self.range else generator.choice(self.values)


def parse_axis(text: str) -> Axis:
    """Parse `KEY=VALUE,VALUE`, where `FIRST..LAST` stands for all whole numbers between.

    `KEY=LOW..HIGH:log` and `KEY=LOW..HIGH:uniform` are ranges to draw from. Raises ConfigError.
    """
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"--over {text}: {_EXAMPLE}")
    parts = _split(text, values)
    ranges = [part for part in parts if _RANGE.fullmatch(part) and not _WHOLE.fullmatch(part)]
    if ranges:
        if len(parts) > 1:
            raise ConfigError(
                f"--over {text}: {ranges[0]} is a range to draw from, which stands alone; remove "
                "the other values"
            )
        return _range_axis(text, key, ranges[0])
    expanded = list(chain.from_iterable(_expanded(text, part) for part in parts))
    if len(expanded) < 2:
        raise ConfigError(
            f"--over {text}: an axis has two or more values; give a single one as a setting, "
            f"{key}={values}"
        )
    seen: set[str] = set()
    for value in expanded:
        parsed = repr(_parsed(key, value))
        if parsed in seen:
            raise ConfigError(f"--over {text}: the value {value} is given twice")
        seen.add(parsed)
    return Axis(key, expanded, text=text)


def _range_axis(text: str, key: str, values: str) -> Axis:
    """Return the axis of a range `LOW..HIGH:SCALE`; raises ConfigError."""
    ends = _RANGE.fullmatch(values)
    assert ends
    first, last, scale = ends.groups()
    if scale not in _SCALES:
        problem = (
            f"{scale!r} is no scale; {did_you_mean(scale, _SCALES)}"
            if scale
            else f"{values} is a range to draw from, and needs a scale."
        )
        raise ConfigError(
            f"--over {text}: {problem} Write {key}={first}..{last}:log to draw every order of "
            f"magnitude equally often, or {key}={first}..{last}:uniform, and say how many points "
            "with --random N or --optuna N"
        )
    low, high = float(first), float(last)
    if not low < high or math.isinf(high):
        raise ConfigError(f"--over {text}: {values} must rise, and have finite bounds")
    if scale == "log" and low <= 0:
        raise ConfigError(
            f"--over {text}: zero and negative numbers have no logarithm; begin with a number "
            f"above 0, or write {key}={first}..{last}:uniform"
        )
    whole = _WHOLE.fullmatch(f"{first}..{last}") is not None
    return Axis(key, [first, last], Range(low, high, scale == "log", whole), text)


def parse_axes(texts: Sequence[str]) -> Sequence[Axis]:
    """Parse the values of all `--over` options; raises ConfigError, also for a repeated setting."""
    axes: list[Axis] = []
    for text in texts:
        axis = parse_axis(text)
        if any(other.key == axis.key for other in axes):
            raise ConfigError(
                f"--over {text}: {axis.key} is given twice; list all of its values in one option"
            )
        axes.append(axis)
    return axes


def grid(axes: Sequence[Axis]) -> Iterator[Sequence[str]]:
    """Yield the settings of every combination of values; the last axis changes fastest.

    Raises ConfigError for more than `MAX_POINTS` combinations, and for ranges to draw from.
    """
    for axis in axes:
        if axis.range is not None:
            raise ConfigError(
                f"--over {axis.text}: points draw their value from this range, so say how many "
                "points there are, as in --random 20 or --optuna 20"
            )
    count = prod(len(axis.values) for axis in axes)
    if count > MAX_POINTS:
        raise ConfigError(
            f"the axes have {count:,} combinations, and a sweep has at most {MAX_POINTS:,}; "
            "--random N tries N of them"
        )
    yield from product(*(axis.settings() for axis in axes))


def random_points(axes: Sequence[Axis], count: int, seed: int) -> Iterator[Sequence[str]]:
    """Yield `count` different combinations of values, drawn without replacement.

    Listed values are drawn uniformly. Raises ConfigError if there are not that many combinations.
    """
    if any(axis.range for axis in axes):
        yield from _drawn(axes, count, seed)
        return
    available = prod(len(axis.values) for axis in axes)
    if count > min(available, MAX_POINTS):
        raise ConfigError(
            f"--random {count}: the axes have {available:,} combinations, and a sweep has at most "
            f"{MAX_POINTS:,} points"
        )
    for index in random.Random(seed).sample(range(available), count):
        yield _combination(axes, index)


def _drawn(axes: Sequence[Axis], count: int, seed: int) -> Iterator[Sequence[str]]:
    """Yield `count` different combinations, of which some values are drawn from ranges."""
    generator = random.Random(seed)
    drawn: set[tuple[str, ...]] = set()
    if count > MAX_POINTS:
        raise ConfigError(f"--random {count}: a sweep has at most {MAX_POINTS:,} points")
    while len(drawn) < count:
        for _ in range(_MAX_REDRAWS):
            point = tuple(f"{axis.key}={axis.draw(generator)}" for axis in axes)
            if point not in drawn:
                break
        else:
            raise ConfigError(
                f"--random {count}: only {len(drawn)} different combinations could be drawn from "
                "these axes; draw fewer, or add an axis"
            )
        drawn.add(point)
        yield point


def _combination(axes: Sequence[Axis], index: int) -> Sequence[str]:
    """Return the settings of the combination at a place in the grid."""
    settings: list[str] = []
    for axis in reversed(axes):
        index, at = divmod(index, len(axis.values))
        settings.insert(0, axis.settings()[at])
    return settings


def values_of(settings: Sequence[str]) -> Mapping[str, Any]:
    """Return the values of settings `key=value` by key, as recipes read them."""
    pairs = (setting.partition("=") for setting in settings)
    return {key: _parsed(key, value) for key, _, value in pairs}


def _parsed(key: str, value: str) -> Any:
    """Return a value as a recipe reads it; several settings in one become a mapping."""
    entries = from_arguments([f"{key}={value}"])
    if len(entries) == 1 and entries[0].keys == (key,):
        return entries[0].value
    return {".".join(entry.keys): entry.value for entry in entries}


def _split(text: str, values: str) -> Sequence[str]:
    """Split values at commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in values:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (depth or not parts[-1].strip()):
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if quote or depth:
        raise ConfigError(f"--over {text}: a quote or bracket is not closed")
    if not all(part.strip() for part in parts):
        raise ConfigError(f"--over {text}: a value is empty; {_EXAMPLE}")
    return [part.strip() for part in parts]


def _expanded(text: str, part: str) -> Sequence[str]:
    """Return the values that a part stands for: all whole numbers of a range, or itself."""
    ends = _WHOLE.fullmatch(part)
    if not ends:
        return [part]
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + MAX_POINTS:
        raise ConfigError(
            f"--over {text}: {part} must rise, and have at most {MAX_POINTS:,} values"
        )
    return [str(number) for number in range(first, last + 1)]
