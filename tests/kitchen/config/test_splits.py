"""Which split is trained on, and which are held out."""

from __future__ import annotations

import pytest

from kitchen.config.splits import SplitRoles, assign_splits, is_held_out, is_training
from kitchen.errors import DataError
from kitchen.ports import DatasetInfo


def info(*splits: str, not_read: tuple[str, ...] = ()) -> DatasetInfo:
    return DatasetInfo("herbs", dict.fromkeys(splits), not_read=not_read)


@pytest.mark.parametrize(
    "name",
    [
        "test",
        "TEST",
        "test1",
        "gsm8k_test",
        "test_sft",
        "testSet",
        "my-test-data",
        "dev",
        "dev_clean",
        "devset",
        "val",
        "val2017",
        "valid",
        "validation",
        "evaluation",
        "eval_small",
        "held_out",
        "held-out",
        "heldOut",
        "heldout",
        "hold_out",
        "holdout",
        "train_test",
        "validation-00",
    ],
)
def test_names_of_held_out_splits(name: str) -> None:
    assert is_held_out(name)
    assert not is_training(name)


@pytest.mark.parametrize("name", ["latest", "contest", "values", "developers", "hard", "train_7b"])
def test_other_names_are_not_held_out(name: str) -> None:
    assert not is_held_out(name)


@pytest.mark.parametrize(
    ("splits", "train", "held_out", "unused"),
    [
        ("train test", "train", "test", ""),
        ("train easy hard", "train", "easy hard", ""),
        ("data test", "data", "test", ""),
        ("gsm8k_train gsm8k_test", "gsm8k_train", "gsm8k_test", ""),
        ("auxiliary_train dev test validation", "auxiliary_train", "dev test validation", ""),
        ("train train_small test", "train", "test", "train_small"),
        ("herbs dev", "herbs", "dev", ""),
        ("Train Validation", "Train", "Validation", ""),
        ("only", "only", "", ""),
    ],
)
def test_roles_follow_the_names(splits: str, train: str, held_out: str, unused: str) -> None:
    expected = SplitRoles(train, tuple(held_out.split()), tuple(unused.split()))
    assert assign_splits(info(*splits.split())) == expected


@pytest.mark.parametrize(
    ("splits", "fix"),
    [
        ("test", "reading.train=test"),
        ("dev test validation", "reading.train=dev"),
        ("train_sft train_gen test_sft", "reading.train=train_sft"),
        ("herbs spices", "reading.train=herbs"),
    ],
)
def test_an_unclear_training_split_is_an_error(splits: str, fix: str) -> None:
    with pytest.raises(DataError, match=f"{fix}.*train.tsv"):
        assign_splits(info(*splits.split(), not_read=("train.tsv",)))


def test_given_splits_override_their_names() -> None:
    assert assign_splits(info("test"), "test") == SplitRoles("test", (), ())
    chosen = assign_splits(info("train_a", "train_b", "test_a"), "train_b")
    assert chosen == SplitRoles("train_b", ("test_a",), ("train_a",))
    assert assign_splits(info("train", "test", "dev"), None, ["dev"]).unused == ("test",)
    assert assign_splits(info("train", "test"), "test").held_out == ("train",)
    with pytest.raises(DataError, match="did you mean 'test'"):
        assign_splits(info("train", "test"), held_out=["tset"])
