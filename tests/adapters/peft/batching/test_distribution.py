"""Sequences are distributed over devices by token count, relatives together."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.peft.batching.distribution import distribute
from kitchen.types import Tokens


def unrelated(*lengths: int) -> list[Tokens]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 10_000, length) for length in lengths]


def test_devices_get_nearly_equal_token_counts() -> None:
    lengths = (100, 90, 60, 50, 40, 30, 20, 10)
    shares = distribute(unrelated(*lengths), 3)
    totals = [sum(lengths[index] for index in share) for share in shares]
    assert sorted(index for share in shares for index in share) == list(range(8))
    assert max(totals) - min(totals) <= 10
    assert all(share == sorted(share) for share in shares)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_sequences_than_devices(count: int) -> None:
    shares = distribute(unrelated(*[5] * count), 3)
    assert sorted(map(len, shares), reverse=True) == [1] * count + [0] * (3 - count)


def test_groups_stay_on_one_device() -> None:
    shares = distribute(unrelated(10, 90, 50, 20, 30, 30, 5), 2, group=2)
    owners = {index: device for device, share in enumerate(shares) for index in share}
    assert owners[0] == owners[1]
    assert owners[2] == owners[3]
    assert owners[4] == owners[5]


def test_sequences_with_a_common_prefix_stay_together() -> None:
    first, second = unrelated(200, 200)
    rows = [np.concatenate([prompt, [n]]) for n in range(4) for prompt in (first, second)]
    assert sorted(distribute(rows, 2)) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_one_long_prefix_is_split_between_devices() -> None:
    prompt, *answers = unrelated(100, *[400] * 8)
    rows = [np.concatenate([prompt, answer]) for answer in answers]
    assert sorted(map(len, distribute(rows, 2))) == [4, 4]


def test_costs_count_beside_the_tokens() -> None:
    shares = distribute(unrelated(10, 10, 10), 2, costs=[100, 10, 10])
    assert sorted(shares) == [[0], [1, 2]]
