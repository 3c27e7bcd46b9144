"""`kitchen compare` as a user types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from adapters.local.blobs import LocalBlobs
from kitchen import compare
from kitchen.runs.store import read_journal, read_run
from tests.support.commands import in_folder, invoke, output
from tests.support.evaluated_runs import scored_rows, write_evaluated_run
from tests.support.imports import HEAVY, imported_by


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    blobs = LocalBlobs(str(tmp_path / "runs"))
    ease = np.random.default_rng(0).random(60)
    for name, skill in (("base", 0.3), ("tuned", 0.7), ("again", 0.7)):
        scores = (ease < skill).astype(float).tolist()
        write_evaluated_run(blobs, name, scored_rows(scores))
    with in_folder(tmp_path):
        yield tmp_path


def test_the_verdict_comes_first() -> None:
    lines = output(0, "compare", "base", "tuned").splitlines()
    verdict = next(at for at, line in enumerate(lines) if "tuned is better than base" in line)
    details = next(at for at, line in enumerate(lines) if line.startswith("Details"))
    assert verdict < details


def test_a_comparison_is_a_recorded_run(folder: Path) -> None:
    output(0, "compare", "base", "tuned", "--name", "first", "--alpha", "0.01")
    blobs = LocalBlobs(str(folder / "runs"))
    record = read_run(blobs, "first")
    assert record["recipe"] == "recipes.compare:Compare"
    assert record["order"]["settings"]["alpha"] == 0.01
    assert record["facts"].keys() >= {"samples.base.sha256", "samples.tuned.sha256"}
    assert len(read_journal(blobs, "first", "tables")) == 2
    assert record["metrics"]["test/exact_match/tuned vs base/difference"] == pytest.approx(
        0.4, abs=0.15
    )


def test_json_has_every_number() -> None:
    result = json.loads(invoke("compare", "base", "tuned", "--json").stdout)
    [pair] = result["comparison"]["pairs"]
    assert pair["comparison"]["verdict"] == "better"
    assert pair["comparison"]["effects"]["odds ratio of discordant pairs"]["high"] is None


def test_python_returns_the_same_report(folder: Path) -> None:
    report = compare("base", "tuned", margin=0.1, runs=folder / "runs")
    [pair] = report.pairs
    assert pair.comparison is not None
    assert pair.comparison.verdict == "better"
    printed = json.loads(invoke("compare", "base", "tuned", "--margin", "0.1", "--json").stdout)
    assert printed["comparison"]["pairs"][0]["comparison"]["test"]["p_value"] == (
        pair.comparison.test.p_value
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["base"], "only 'base'"),
        (["base", "tunes"], "did you mean 'tuned'"),
        (["base", "tuned", "--measure", "exact"], "did you mean 'exact_match'"),
        (["base", "tuned", "--correct", "hol"], "holm"),
        (["base", "tuned", "--alpha", "1.5"], "alpha"),
        (["base", "tuned", "--margin", "-1"], "margin"),
        (["base", "tuned", "--cluster", "documents"], "did you mean 'document'"),
    ],
)
def test_a_wrong_option_names_the_fix(options: list[str], text: str) -> None:
    assert text in output(2, "compare", *options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--power", "baseline=0.3,difference=0.1"], "377 items are needed"),
        (["--power", "baseline=0.3,", "difference=0.1"], "377 items are needed"),
        (["--power", "n=377", "baseline=0.3"], "+0.1"),
        (["--power", "n=377", "difference=0.1"], "at most 0.3"),
        (["--power", "n=2000,difference=0.1"], "any baseline"),
        (["--power", "n=5,baseline=0.9"], "no gain"),
        (["--power", "n=10,difference=0.1"], "no baseline"),
        (["--power", "n=377,baseline=0.3,difference=0.1"], "power of 80"),
        (["--unpaired", "--power", "baseline=0.3,difference=0.1"], "Fisher"),
        (["--power", "baseline=0.3,difference=0.1,differ=0.1"], "differ on a share of 0.1"),
    ],
)
def test_an_evaluation_can_be_planned(options: list[str], text: str) -> None:
    assert text in " ".join(output(0, "compare", *options).split())


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ("n=200", "baseline and difference"),
        ("baseline=0.3,diference=0.1", "did you mean 'difference'"),
        ("baseline=a,difference=0.1", "NAME=NUMBER"),
        ("n=1.5,baseline=0.3", "whole number"),
        ("baseline=0.95,difference=0.1", "baseline + difference"),
        ("baseline=0.3,difference=0.1,baseline=0.2", "twice"),
    ],
)
def test_a_wrong_plan_names_the_fix(numbers: str, text: str) -> None:
    assert text in " ".join(output(2, "compare", "--power", numbers).split())


def test_comparing_loads_no_heavy_library(folder: Path) -> None:
    code = "from kitchen import compare; compare('base', 'tuned')"
    _, modules = imported_by(code)
    assert "kitchen.statistics.comparison" in modules
    assert modules.isdisjoint(HEAVY - {"scipy"} | {"scipy.stats"})
