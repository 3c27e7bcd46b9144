"""Scores are matched by item, with several tries of an item averaged first."""

from __future__ import annotations

import pytest

from kitchen.errors import DataError
from kitchen.statistics.samples import match_items, mean_of_tries


def test_tries_of_an_item_are_averaged():
    assert mean_of_tries(["b", "a", "b"], [1, 0, 0]) == {"b": 0.5, "a": 0.0}
    with pytest.raises(DataError, match="not one for each"):
        mean_of_tries(["a"], [1, 0])


def test_shared_items_are_matched_in_order():
    found = match_items(["a", "b", "c", "b"], [1, 0, 1, 1], ["c", "b", "d"], [0, 0.25, 1])
    assert found.items == ("b", "c")
    assert (found.first.tolist(), found.second.tolist()) == ([0.5, 1.0], [0.25, 0.0])
    assert (found.only_first, found.only_second) == (1, 1)


def test_no_shared_item_leaves_nothing_to_compare():
    found = match_items(["a"], [1], ["b"], [0])
    assert (len(found.items), found.only_first, found.only_second) == (0, 1, 1)
