"""Quality targets: met, not met, or not decided by the interval; and means of whole epochs."""

from __future__ import annotations

import pytest

from kitchen.errors import ConfigError, QualityError
from kitchen.statistics.intervals import clopper_pearson, interval
from stages.evaluate.epoch_losses import EpochLosses
from stages.evaluate.targets import Targets, exact, require_met, summarise, target_table


@pytest.mark.parametrize(
    "right, verdict", [(50, "cannot tell"), (200, "met"), (45, "cannot tell"), (30, "not met")]
)
def test_the_interval_decides_about_a_lower_bound(right: int, verdict: str) -> None:
    n = max(right, 50)
    [result] = Targets({"schema": 0.95}).check({"schema": clopper_pearson(right, n)})
    assert result.verdict == verdict


@pytest.mark.parametrize(
    "values, verdict",
    [([0.0] * 100, "met"), ([0.0, 1.0] * 50, "cannot tell"), ([1.0] * 100, "not met")],
)
def test_the_interval_decides_about_an_upper_bound(values: list[float], verdict: str) -> None:
    [result] = Targets(at_most={"chirality": 0.55}).check({"chirality": interval(values)})
    assert result.verdict == verdict


@pytest.mark.parametrize("count, verdict", [(0, "met"), (1, "not met")])
def test_a_count_is_exact(count: int, verdict: str) -> None:
    [result] = Targets(at_most={"high_flags": 0}).check({"high_flags": exact(count, 50)})
    assert result.verdict == verdict


def test_a_missing_measure_is_not_met() -> None:
    results = Targets({"entailment": 0.0}).check({})
    assert results[0].verdict == "not measured"
    assert summarise(results) == "0/1 met, 1 not measured"
    with pytest.raises(QualityError, match="entailment not measured, not at least 0"):
        require_met(results, "dev")


def test_the_summary_counts_and_names_n() -> None:
    targets = Targets({"a": 0.9, "b": 0.9, "c": 0.9, "d": 0.1})
    results = targets.check(
        {
            "a": clopper_pearson(200, 200),
            "b": clopper_pearson(47, 50),
            "c": clopper_pearson(10, 50),
        }
    )
    assert summarise(results) == (
        "1/4 met, 1 cannot tell at n = 50 (the interval spans the target), 1 not met, "
        "1 not measured"
    )
    table = target_table({"dev": results})
    assert [row[-1] for row in table.rows] == [
        "met",
        "cannot tell",
        "not met",
        "not met (not measured)",
    ]


def test_targets_that_cannot_be_decided_do_not_fail_a_run() -> None:
    require_met(Targets({"b": 0.9}).check({"b": clopper_pearson(47, 50)}), "dev")
    with pytest.raises(QualityError, match=r"dev: .* b 0\.200 .*, not at least 0\.9"):
        require_met(Targets({"b": 0.9}).check({"b": clopper_pearson(10, 50)}), "dev")


def test_impossible_and_unknown_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least 0\.9 and at most 0\.5"):
        Targets({"a": 0.9}, {"a": 0.5})
    with pytest.raises(ConfigError, match=r"targets: .*did you mean 'schema'"):
        Targets({"shema": 0.9}).check_names("targets", ["schema", "chirality"])


def test_losses_of_whole_epochs_are_compared() -> None:
    """In the ancestors, a batch of 8 was compared with one of 1: "98.7 % loss reduction"."""
    losses = EpochLosses()
    for epoch, batches in enumerate([[(2.0, 8), (1.0, 1)], [(1.0, 8), (0.02, 1)]]):
        for loss, rows in batches:
            losses = losses.added(epoch, loss, rows)
    first, last = (2.0 * 8 + 1.0) / 9, (1.0 * 8 + 0.02) / 9
    assert losses.reduction() == pytest.approx(1 - last / first)
    assert losses.added(2, 0.0, 1).reduction() == losses.reduction()  # cut short by max_steps


def test_one_epoch_has_no_reduction() -> None:
    assert EpochLosses().reduction() is None
    assert EpochLosses().added(0, 1.0, 8).added(0, 0.5, 8).reduction() is None
