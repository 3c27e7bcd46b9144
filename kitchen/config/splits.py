"""Roles of a data set's splits: which one is trained on, and which are held out."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kitchen.errors import DataError, did_you_mean
from kitchen.ports.datasets import DatasetInfo

_TRAIN = "train training trn trainset traindata trainval"
_HELD_OUT = """
    test tests testing testset testdata tst dev devel devset devtest development
    val vals valid valset validate validation eval evals evalset evaluate evaluation
    heldout holdout benchmark
"""
TRAIN_WORDS = frozenset(_TRAIN.split())
HELD_OUT_WORDS = frozenset(_HELD_OUT.split())
_CASE_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORD = re.compile(r"[^\W\d_]+")
_SHOWN = 5  # names in a message
GENERATED = ("reasoning-gym:", "game:")  # begin the names of problems that recipes generate


@dataclass(frozen=True)
class SplitRoles:
    """The split to train on, the held-out splits, and those that are not used."""

    train: str
    held_out: tuple[str, ...]
    unused: tuple[str, ...]


def words_of(name: str) -> Sequence[str]:
    """Return the words of a name in lower case: "gsm8k_testSet-2" has gsm, k, test and set."""
    return _WORD.findall(_CASE_CHANGE.sub(" ", name).lower())


def is_held_out(split: str) -> bool:
    """Return whether a split is held out by its name, such as dev, test_easy or held-out."""
    words = words_of(split)
    two_words = any(pair in (("held", "out"), ("hold", "out")) for pair in pairwise(words))
    return two_words or not HELD_OUT_WORDS.isdisjoint(words)


def is_training(split: str) -> bool:
    """Return whether a split is one to train on by its name, such as train or train_sft."""
    return not TRAIN_WORDS.isdisjoint(words_of(split)) and not is_held_out(split)


def assign_splits(
    info: DatasetInfo, train: str | None = None, held_out: Sequence[str] | None = None
) -> SplitRoles:
    """Return the roles of the splits; those that are given override their names.

    Raises DataError if a given split does not exist, or if it is unclear which one to train on.
    """
    available = tuple(info.splits)
    for split in (*([] if train is None else [train]), *(held_out or ())):
        if split not in available:
            raise DataError(f"{info.name} has no split {split!r}; {did_you_mean(split, available)}")
    chosen = _training_split(info) if train is None else train
    if held_out is None:
        # another split for training, such as train_gen beside train_sft, may repeat its rows
        held_out = [
            split
            for split in available
            if split != chosen and not (is_training(split) and is_training(chosen))
        ]
    unused = (split for split in available if split not in (chosen, *held_out))
    return SplitRoles(chosen, tuple(held_out), tuple(unused))


def _training_split(info: DatasetInfo) -> str:
    if "train" in info.splits:
        return "train"
    named = [split for split in info.splits if is_training(split)]
    candidates = named or [split for split in info.splits if not is_held_out(split)]
    if len(candidates) == 1:
        return candidates[0]
    names = shortened(candidates or info.splits)
    problem = f"it is unclear which split to train on ({names})"
    if not candidates:
        problem = f"every split has the name of a held-out set ({names})"
    fix = f"choose the training split: reading.train={(candidates or list(info.splits))[0]}"
    skipped = f" (not read as data: {shortened(info.not_read)})" if info.not_read else ""
    raise DataError(f"{info.name}: {problem}; {fix}{skipped}")


def shortened(names: Collection[str]) -> str:
    """Return a list of names, shortened to the first few."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more
