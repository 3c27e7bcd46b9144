"""Axes of a sweep, and the combinations of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kitchen.errors import ConfigError
from kitchen.experiments.axes import grid, parse_axes, parse_axis, random_points, values_of


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("learning_rate=1e-4,2e-4", ["1e-4", "2e-4"]),
        ("seed=0..3", ["0", "1", "2", "3"]),
        ("seed=-1..1,7", ["-1", "0", "1", "7"]),
        ("reward=[a, m:f],exact", ["[a, m:f]", "exact"]),
        ("""text="a, b",c""", ['"a, b"', "c"]),
        ("text=it's,that's", ["it's", "that's"]),
        ("path=a..b,1.5.2", ["a..b", "1.5.2"]),
    ],
)
def test_values_are_split_and_ranges_filled(text: str, values: list[str]) -> None:
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("learning_rate", "write it as KEY=VALUE,VALUE"),
        ("=1,2", "write it as KEY=VALUE,VALUE"),
        ("seed=1", "give a single one as a setting, seed=1"),
        ("seed=1,", "a value is empty"),
        ("seed=1,,2", "a value is empty"),
        ("seed=3..1", "must rise"),
        ("rate=1e-1,0.1", "the value 0.1 is given twice"),
        ("reward=[a,b", "a quote or bracket is not closed"),
        ("rate=1e-5..1e-3", "Write rate=1e-5..1e-3:log .* --random N"),
        ("rate=1e-5..1e-3:lgo", "did you mean 'log'"),
        ("rate=1e-3..1e-5:log", "must rise"),
        ("rate=0..1e999:uniform", "finite bounds"),
        ("rate=0..0.1:log", "no logarithm"),
        ("rate=0.1..0.5:uniform,0.9", "stands alone"),
    ],
)
def test_wrong_axes_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_axis(text)


def test_a_setting_has_one_axis() -> None:
    with pytest.raises(ConfigError, match="seed is given twice"):
        parse_axes(["seed=0,1", "rate=1,2", "seed=2,3"])


def test_the_last_axis_changes_fastest() -> None:
    points = list(grid(parse_axes(["a=1,2", "b=x,y"])))
    assert points == [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]
    assert values_of(points[1]) == {"a": 1, "b": "y"}


def test_a_grid_has_a_limit() -> None:
    with pytest.raises(ConfigError, match=r"40,000 combinations.*--random N"):
        list(grid(parse_axes(["a=1..200", "b=1..200"])))


@pytest.mark.parametrize(
    ("text", "below_middle"),
    [
        ("rate=1e-5..1e-1:log", lambda value: value < 1e-3),
        ("rate=0.0..1:uniform", lambda value: value < 0.5),
        ("rank=1..64:log", lambda value: isinstance(value, int) and value <= 8),
        ("rank=1..64:uniform", lambda value: isinstance(value, int) and value <= 32),
    ],
)
def test_ranges_are_drawn_on_their_scale(text: str, below_middle: Callable[[Any], bool]) -> None:
    axis = parse_axis(text)
    points = list(random_points([axis, parse_axis("seed=0..99")], 400, seed=0))
    values = [values_of(point)[axis.key] for point in points]
    assert 160 < sum(map(below_middle, values)) < 240
    low, high = map(float, axis.values)
    assert all(low <= value <= high for value in values)
    assert len(set(map(tuple, points))) == 400
    assert points == list(random_points([axis, parse_axis("seed=0..99")], 400, seed=0))
    with pytest.raises(ConfigError, match="--random 20"):
        list(grid([axis]))


def test_a_range_of_whole_numbers_can_be_exhausted() -> None:
    axes = [parse_axis("rank=1..4:log")]
    assert sorted(random_points(axes, 4, seed=0)) == [(f"rank={rank}",) for rank in range(1, 5)]
    with pytest.raises(ConfigError, match="only 4 different"):
        list(random_points(axes, 5, seed=0))


def test_random_points_differ_and_depend_on_the_seed() -> None:
    axes = parse_axes(["a=1..100", "b=x,y"])
    points = list(random_points(axes, 150, seed=0))
    assert len(set(map(tuple, points))) == 150
    assert set(map(tuple, points)) < set(grid(axes))
    assert points == list(random_points(axes, 150, seed=0))
    assert points != list(random_points(axes, 150, seed=1))
    with pytest.raises(ConfigError, match="200 combinations"):
        list(random_points(axes, 201, seed=0))
