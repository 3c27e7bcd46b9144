"""Checked arrays of scores, and statistics that are ratios of sums over them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from kitchen.errors import ConfigError, DataError
from kitchen.types import Array

Scores = Sequence[float] | Array
Clusters = Sequence[Hashable] | Array
Bounds = tuple[float, float]  # the range of a measure
SHARE: Bounds = (0.0, 1.0)
NON_NEGATIVE: Bounds = (0.0, float("inf"))
UNBOUNDED: Bounds = (float("-inf"), float("inf"))


def check_probability(name: str, value: float) -> float:
    """Return the value; raises ConfigError unless it lies between 0 and 1, exclusive."""
    if not 0 < value < 1:
        raise ConfigError(f"{name}={value} must lie between 0 and 1, such as 0.05 or 0.95")
    return value


def checked(
    values: Scores, name: str = "scores", *, bounds: Bounds = UNBOUNDED, at_least: int = 1
) -> Array:
    """Return (n,) numbers; raises DataError where there are too few or one is not valid."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: {error}; an array of numbers is needed") from error
    if array.ndim != 1 or len(array) < at_least:
        raise DataError(
            f"{name}: the shape is {array.shape}; needed are at least {at_least} numbers in one "
            "dimension"
        )
    finite = np.isfinite(array)
    if not finite.all():
        position = int(np.argmin(finite))
        raise DataError(
            f"{name}: the number at position {position} is {array[position]}, and must be finite; "
            "leave out items without a score"
        )
    slack = 1e-6  # of losses that are rounded below 0
    outside = (array < bounds[0] - slack) | (array > bounds[1] + slack)
    if outside.any():
        position = int(np.argmax(outside))
        raise DataError(
            f"{name}: the number at position {position} is {array[position]:g}, outside the range "
            f"of the measure, {bounds[0]:g} to {bounds[1]:g}"
        )
    return array


def checked_pair(
    first: Scores, second: Scores, *, bounds: Bounds = UNBOUNDED, at_least: int = 1
) -> tuple[Array, Array]:
    """Return two arrays of scores of the same items; raises DataError if the lengths differ."""
    one = checked(first, "first scores", bounds=bounds, at_least=at_least)
    other = checked(second, "second scores", bounds=bounds, at_least=at_least)
    if len(one) != len(other):
        raise DataError(
            f"paired scores need the same items in both arrays, but there are {len(one)} first and "
            f"{len(other)} second scores; match them with match_items"
        )
    return one, other


def checked_matrix(
    values: Sequence[Scores] | Array, name: str, *, bounds: Bounds = UNBOUNDED
) -> Array:
    """Return (rows, columns) of finite numbers, with at least two rows."""
    rows = [checked(row, f"{name} {at}", bounds=bounds) for at, row in enumerate(values)]
    if len(rows) < 2 or len({len(row) for row in rows}) > 1:
        lengths = ", ".join(str(len(row)) for row in rows)
        raise DataError(
            f"{name}s: the lengths are {lengths or 'none'}; needed are two or more of equal length"
        )
    return np.stack(rows)


def is_binary(*arrays: Array) -> bool:
    """Return whether every score is 0 or 1."""
    return all(bool(np.isin(array, (0.0, 1.0)).all()) for array in arrays)


def is_share(bounds: Bounds, *arrays: Array) -> bool:
    """Return whether a measure that ranges from 0 to 1 has scores of 0 and 1 only."""
    return bounds == SHARE and is_binary(*arrays)


def is_constant(array: Array) -> bool:
    """Return whether all numbers are equal, up to rounding."""
    return bool(np.ptp(array) <= 1e-12 * max(1.0, float(np.abs(array).max())))


def count(number: int, noun: str) -> str:
    """Return `1 item` or `2 items`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def mean_of_tries(items: Sequence[Hashable], scores: Scores) -> dict[Hashable, float]:
    """Return the mean score of each item, in the order in which items first appear.

    Several tries of an item are not independent, so that items are the units of all statistics.
    """
    numbers = checked(scores)
    if len(items) != len(numbers):
        raise DataError(f"there are {len(items)} items and {len(numbers)} scores, not one for each")
    tries: dict[Hashable, list[float]] = {}
    for item, number in zip(items, numbers.tolist(), strict=True):
        tries.setdefault(item, []).append(number)
    return {item: sum(of_item) / len(of_item) for item, of_item in tries.items()}


@dataclass(frozen=True)
class MatchedItems:
    """Scores of the items that two evaluations share, and how many only one of them has."""

    items: tuple[Hashable, ...]
    first: Array  # (n,) in the order of `items`
    second: Array
    only_first: int
    only_second: int


def match_items(
    first_items: Sequence[Hashable],
    first: Scores,
    second_items: Sequence[Hashable],
    second: Scores,
) -> MatchedItems:
    """Match two evaluations by item; several tries of an item are averaged first."""
    ones, others = mean_of_tries(first_items, first), mean_of_tries(second_items, second)
    shared = tuple(item for item in ones if item in others)
    return MatchedItems(
        shared,
        np.array([ones[item] for item in shared]),
        np.array([others[item] for item in shared]),
        len(ones) - len(shared),
        len(others) - len(shared),
    )


@dataclass(frozen=True)
class Ratio:
    """A mean, a ratio of sums, or a difference of two such ratios, over independent units.

    Columns are parts and sizes, and for a difference also those of the second ratio. A mean has
    sizes of 1.
    """

    columns: Array  # (units, 2) or (units, 4)
    items: int  # number of items, which clusters make larger than the number of units

    @classmethod
    def of(cls, parts: Scores, sizes: Scores | None = None, *, bounds: Bounds = UNBOUNDED) -> Ratio:
        """Return sum(parts) / sum(sizes), or without sizes the mean."""
        numbers = checked(parts, bounds=bounds)
        return cls(np.stack([numbers, _checked_sizes(sizes, len(numbers))], axis=1), len(numbers))

    @classmethod
    def difference(
        cls,
        first: Scores,
        second: Scores,
        sizes: Scores | None = None,
        second_sizes: Scores | None = None,
        *,
        bounds: Bounds = UNBOUNDED,
    ) -> Ratio:
        """Return the second ratio minus the first one, over the same items."""
        one, other = checked_pair(first, second, bounds=bounds)
        of_one = _checked_sizes(sizes, len(one))
        of_other = of_one if second_sizes is None else _checked_sizes(second_sizes, len(one))
        if np.array_equal(of_one, of_other):
            return cls(np.stack([other - one, of_one], axis=1), len(one))
        return cls(np.stack([one, of_one, other, of_other], axis=1), len(one))

    @property
    def units(self) -> int:
        """Number of independent units: items, or clusters."""
        return len(self.columns)

    @property
    def estimate(self) -> float:
        """The ratio, or the difference of the ratios."""
        return float(self.at(self.columns.sum(axis=0)))

    def at(self, sums: Array) -> Array:
        """Return the (...) statistic of (..., 2 or 4) sums."""
        first: Array = sums[..., 0] / sums[..., 1]
        return first if sums.shape[-1] == 2 else sums[..., 2] / sums[..., 3] - first

    def grouped(self, clusters: Clusters | None) -> Ratio:
        """Return the same statistic with clusters as units."""
        if clusters is None:
            return self
        index = cluster_index(clusters, self.units)
        sums = [np.bincount(index, weights=column) for column in self.columns.T]
        return Ratio(np.stack(sums, axis=1), self.items)

    def pseudo_values(self) -> Array:
        """Return (units,) values whose mean is the statistic, by linearisation (delta method)."""
        means = self.columns.mean(axis=0)
        deviations = (self.columns[:, 0] - means[0] / means[1] * self.columns[:, 1]) / means[1]
        if self.columns.shape[1] == 4:
            parts, sizes = self.columns[:, 2], self.columns[:, 3]
            deviations = (parts - means[2] / means[3] * sizes) / means[3] - deviations
        values: Array = self.estimate + deviations
        return values


def cluster_index(clusters: Clusters, items: int) -> Array:
    """Return (items,) numbers of clusters from 0; raises DataError if there is not one per item."""
    if len(clusters) != items:
        raise DataError(f"there are {len(clusters)} clusters for {items} items, not one for each")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])


def _checked_sizes(sizes: Scores | None, n: int) -> Array:
    if sizes is None:
        return np.ones(n)
    array = checked(sizes, "sizes")
    if len(array) != n:
        raise DataError(f"there are {len(array)} sizes for {n} items, not one for each")
    if array.min() <= 0:
        position = int(array.argmin())
        raise DataError(
            f"sizes: the number at position {position} is {array[position]:g}, and must be above 0"
        )
    return array
