"""Training data are checked before any gradient is touched, by datum and field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kitchen.backend.datum_checks import check_data
from kitchen.errors import ConfigError, DataError
from kitchen.types import Datum

GOOD: Mapping[str, Any] = {
    "target_tokens": np.array([2, 3, 4]),
    "weights": np.array([0.0, -1.0, 0.5], np.float32),
}
IDS = np.array([1, 2, 3])


def check(
    *data: Any, loss: Any = "cross_entropy", options: Mapping[str, float] | None = None
) -> None:
    check_data(data, loss, options, vocabulary=10, context=4)


def spoilt(**fields: Any) -> Datum:
    tokens = fields.pop("tokens", IDS)
    return Datum(
        tokens, {name: values for name, values in {**GOOD, **fields}.items() if values is not None}
    )


def test_good_data_pass() -> None:
    check(Datum(IDS, GOOD), spoilt(weights=np.zeros(3)))
    check(Datum(IDS, {"target_tokens": np.ones((3, 2), int), "weights": np.ones((3, 2))}))
    policy = spoilt(weights=None, logprobs=-np.ones(3), advantages=np.ones(3))
    check(policy, loss="ppo", options={"clip_low_threshold": 1})


def test_thresholds_by_token_are_checked() -> None:
    policy = {"weights": None, "logprobs": -np.ones(3), "advantages": np.ones(3)}
    low, high = np.array([0.8, 0.5, 0.0]), np.array([1.2, 9.0, 4.0])
    check(spoilt(**policy, clip_low_threshold=low, clip_high_threshold=high), loss="cispo")
    check(spoilt(**policy, clip_low_threshold=low), loss="ppo")
    high[1] = 0.4
    with pytest.raises(DataError, match=r"datum 0 of 1: .*high_threshold=0.4 at position 1"):
        check(spoilt(**policy, clip_low_threshold=low, clip_high_threshold=high), loss="ppo")
    with pytest.raises(DataError, match=r"'clip_low_threshold' has shape \(2,\)"):
        check(spoilt(**policy, clip_low_threshold=low[:2]), loss="ppo")
    with pytest.raises(DataError, match="reads no field 'clip_low_threshold'"):
        check(spoilt(**policy, clip_low_threshold=low), loss="importance_sampling")


def test_the_sequence_of_gspo_is_not_empty() -> None:
    policy = {"weights": None, "logprobs": -np.ones(3), "sequence_ratio_mask": np.zeros(3)}
    check(spoilt(**policy, advantages=np.zeros(3)), loss="gspo")
    with pytest.raises(DataError, match="sequence_ratio_mask marks no token"):
        check(spoilt(**policy, advantages=np.ones(3)), loss="gspo")


def own(*_: object) -> tuple[float, list[Any], dict[str, float]]:
    return 0.0, [], {}


def test_a_custom_loss_may_read_any_field() -> None:
    check(spoilt(margin=np.ones(3), scores=np.ones((3, 5))), loss=own)
    check(Datum(IDS, {"target_tokens": IDS}), loss=own)
    with pytest.raises(DataError, match=r"datum 0 of 1.*'margin'.*\(2,\)"):
        check(spoilt(margin=np.ones(2)), loss=own)


@pytest.mark.parametrize(
    "field, message, datum",
    [
        ("tokens", r"shape \(0,\)", spoilt(tokens=np.empty(0, int))),
        ("tokens", r"shape \(3, 1\)", spoilt(tokens=IDS[:, None])),
        ("tokens", "token 10, outside the vocabulary of 10", spoilt(tokens=np.array([1, 10, 2]))),
        ("tokens", "token -1, outside", spoilt(tokens=np.array([1, -1, 2]))),
        ("tokens", "dtype float64", spoilt(tokens=IDS.astype(float))),
        ("target_tokens", "token 99, outside", spoilt(target_tokens=np.array([1, 2, 99]))),
        ("target_tokens", "dtype bool", spoilt(target_tokens=np.array([True, False, True]))),
        ("target_tokens", "is missing", spoilt(target_tokens=None)),
        ("target_tokens", r"shape \(2,\)", spoilt(target_tokens=np.array([1, 2]))),
        ("weights", "is missing, which the loss 'cross_entropy' reads", spoilt(weights=None)),
        ("weights", r"shape \(2,\)", spoilt(weights=np.ones(2))),
        ("weights", r"shape \(3, 2\)", spoilt(weights=np.ones((3, 2)))),
        ("weights", "is nan at position 1", spoilt(weights=np.array([1, np.nan, 1]))),
        ("weights", "is -inf at position 2", spoilt(weights=np.array([1, 1, -np.inf]))),
        ("wieghts", "did you mean 'weights'", spoilt(wieghts=np.ones(3))),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_errors_name_datum_and_field(field: str, message: str, datum: Datum) -> None:
    with pytest.raises(DataError, match=message) as refused:
        check(Datum(IDS, GOOD), datum)
    assert str(refused.value).startswith("datum 1 of 2: ")
    assert repr(field) in str(refused.value)


def test_a_datum_longer_than_the_context() -> None:
    ids = np.ones(5, int)
    with pytest.raises(DataError, match=r"datum 0 of 1: 5 tokens .* context of 4"):
        check(Datum(ids, {"target_tokens": ids, "weights": ids}))
    ids = np.ones(4, int)
    check(Datum(ids, {"target_tokens": ids, "weights": ids}))


@pytest.mark.parametrize(
    "raw", [{"input": "two", "output": "eggs", "weight": 1.0}, "two eggs", [1, 2]], ids=str
)
def test_a_row_that_is_no_datum_names_render_dataset(raw: Any) -> None:
    with pytest.raises(DataError, match=r"datum 1 of 2: .*RenderDataset") as refused:
        check(Datum(IDS, GOOD), raw)
    if isinstance(raw, dict):
        assert "'input', 'output', 'weight'" in str(refused.value)


def test_an_empty_batch_and_an_unknown_loss() -> None:
    with pytest.raises(DataError, match="the batch is empty"):
        check()
    with pytest.raises(ConfigError, match=r"'pop'.*'ppo'"):
        check(Datum(IDS, GOOD), loss="pop")
    with pytest.raises(ConfigError, match="'beta'"):
        check(Datum(IDS, GOOD), options={"beta": 1.0})
