"""Outcomes: history, plots, HTML, samples and comparisons of a completed run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from kitchen import Outcome
from kitchen.errors import BackendError, ConfigError
from recipes.sl_basic import SlBasic
from tests.support.commands import invoke
from tests.support.stew import GREETINGS, SMALL, Stew, rows

pytestmark = pytest.mark.usefixtures("here")


def greetings(**arguments: Any) -> Outcome:
    return kitchen.run(SlBasic, **{**GREETINGS, **arguments})


def test_history_has_the_rows_of_the_metrics() -> None:
    outcome = greetings()
    history = outcome.history
    assert "n" not in history.columns
    assert list(history["step"]) == [row["step"] for row in rows(outcome)]
    assert list(history["loss"].dropna()) == [row["loss"] for row in rows(outcome) if "loss" in row]


@pytest.mark.parametrize(
    ("package", "use"),
    [("pandas", lambda outcome: outcome.history), ("matplotlib", lambda outcome: outcome.plot())],
)
def test_a_missing_package_is_named(
    package: str, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = kitchen.run(Stew, training="fake")
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(BackendError, match=f"pip install {package}"):
        use(outcome)


def test_plot_draws_losses_together_and_others_apart() -> None:
    outcome = kitchen.run(Stew, training="fake")
    (loss,) = outcome.plot().axes
    assert [line.get_label() for line in loss.lines] == ["loss"]
    assert list(loss.lines[0].get_xdata()) == list(range(1, 11))
    assert loss.lines[0].get_ydata()[-1] == outcome.loss == pytest.approx(0.1)
    both = outcome.plot("loss", "stirred").axes
    assert [panel.get_ylabel() for panel in both] == ["loss", "stirred"]
    with pytest.raises(ConfigError, match="no metric 'los'; did you mean 'loss'"):
        outcome.plot("los")


def test_html_shows_the_outcome_and_escapes_it() -> None:
    outcome = greetings(name="greetings")
    html = outcome._repr_html_()
    assert "completed in" in html
    assert "greetings/weights/final, step 15" in html
    assert f"{outcome.loss:.4g}</td>" in html
    named = replace(outcome, where="<script>alert(1)</script>")
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()


def test_samples_equal_those_of_the_command() -> None:
    outcome = greetings(name="greetings")
    texts = outcome.sample("hello", count=2, max_tokens=8, seed=3)
    assert len(texts) == 2
    options = ("--n", "2", "--max-tokens", "8", "--seed", "3", "--json")
    printed = json.loads(invoke("sample", "greetings", "hello", *options).stdout)
    assert [completion["text"] for completion in printed["completions"]] == texts
    resumed = kitchen.resume("greetings").result()
    assert resumed.sample("hello", count=2, max_tokens=8, seed=3) == texts
    with pytest.raises(ConfigError, match="no weights"):
        outcome.sample("hello", at=7)
    with pytest.raises(ConfigError, match="count=0"):
        outcome.sample("hello", count=0)


def test_run_on_objects_in_memory_can_be_sampled() -> None:
    objects = {"datasets": FakeDatasets(), "blobs": FakeBlobs()}
    outcome = greetings(**objects)
    assert len(outcome.sample("hello", max_tokens=4, temperature=0)[0]) > 0
    assert outcome.history["loss"].dropna().iloc[-1] == outcome.loss


def test_outcomes_are_compared_in_a_store() -> None:
    one, two = (greetings(settings={**SMALL, "seed": seed}) for seed in (1, 2))
    report = one.compare(two)
    assert {(pair.first, pair.second) for pair in report.pairs} == {(one.run, two.run)}
    assert one.compare(two.run).pairs == report.pairs
    elsewhere = greetings(runs="elsewhere")
    with pytest.raises(ConfigError, match="only runs of one store can be compared"):
        one.compare(elsewhere)
