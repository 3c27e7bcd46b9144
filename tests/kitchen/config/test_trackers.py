"""Trackers of a request: parsed, found by name and checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.extras import extra_for, extras
from kitchen.config.order import Order
from kitchen.config.request import RunRequest, resolve_request
from kitchen.config.run_files import read_run_files
from kitchen.config.trackers import build_trackers, check_trackers, parse_observed, with_trackers
from kitchen.errors import BackendError, ConfigError
from tests.support.installed_trackers import write_entry_points

MISSING = f"{__name__}:NeedsMissing"


class NeedsMissing:
    packages = ("no_such_package",)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(write_entry_points(tmp_path / "installed"))


@pytest.mark.parametrize(
    ("value", "trackers"),
    [
        ("trackio", {"trackio": {}}),
        (
            ["trackio", "wandb:project=soup,mode=offline"],
            {"trackio": {}, "wandb": {"project": "soup", "mode": "offline"}},
        ),
        (["mlflow:uri=http://host:5000/a=b"], {"mlflow": {"uri": "http://host:5000/a=b"}}),
        ([{"wandb": {"project": "soup"}}], {"wandb": {"project": "soup"}}),
        ([], {}),
    ],
)
def test_trackers_are_parsed(value: Any, trackers: dict[str, Any]) -> None:
    assert parse_observed(value, "here") == trackers


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["wandb:project=a,project=b"], "'project' is set twice"),
        (["wandb:soup"], "here wandb:soup: 'soup' is not a setting"),
        (["wandb", "wandb:project=a"], "'wandb' is named twice"),
        (3, "3 is not a list of trackers"),
        ([3], "3 is not a tracker"),
    ],
)
def test_other_texts_are_refused(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_observed(value, "here")


@pytest.mark.parametrize(
    ("trackers", "problem"),
    [
        ({"wanb": {}}, "did you mean 'wandb'"),
        ({"wandb": {"projct": "a"}}, "did you mean 'project'"),
        ({"wandb": {"mode": "onlin"}}, "'online' or 'offline'"),
        ({"mlflow": {"uri": "http://me:pass@host/x"}}, "user name or password"),
    ],
)
def test_unknown_trackers_and_settings_are_refused(trackers: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_trackers(trackers)


def test_a_missing_package_is_an_error_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_entry_points(tmp_path / "more", {"needy": MISSING})
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(BackendError, match=r"'needy' needs no_such_package.* pip install"):
        check_trackers({"needy": {}})


def test_packages_of_trackers_are_those_of_an_extra() -> None:
    for name, tracker in build_trackers({name: {} for name in ("wandb", "mlflow")}).items():
        assert extra_for(tracker.packages) == f"crucible-kitchen[{name}]"


def test_files_and_the_files_they_extend_name_trackers(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("recipe: recipes.sl_basic\nobserve: [trackio, mlflow]\n")
    text = (
        "extends: base.yaml\nobserve:\n  wandb:\n    project: soup\n  mlflow: {uri: 'http://a'}\n"
    )
    (tmp_path / "my.yaml").write_text(text)
    files = read_run_files([tmp_path / "my.yaml"])
    assert not files.problems
    wanted = {"trackio": {}, "mlflow": {"uri": "http://a"}, "wandb": {"project": "soup"}}
    assert files.observers == wanted


def test_a_file_with_a_wrong_tracker_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("recipe: recipes.sl_basic\nobserve:\n  wandb: soup\n")
    [problem] = read_run_files([tmp_path / "my.yaml"]).problems
    assert "my.yaml:3" in str(problem)


def test_unknown_trackers_of_a_file_have_its_line(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("recipe: recipes.sl_basic\nobserve: [wanb, trackoi]\n")
    path = str(tmp_path / "my.yaml")
    resolved = resolve_request(RunRequest(path, (), (), AdapterChoice({"training": "fake"})))
    problems = list(map(str, resolved.problems))
    assert [problem.partition(": ")[0] for problem in problems] == [f"{path}:2"] * 2
    assert "did you mean 'wandb'" in problems[0]
    assert "did you mean 'trackio'" in problems[1]


def test_a_resumed_run_keeps_its_trackers_and_adds_others() -> None:
    order = Order("recipes.sl_basic:SlBasic", {}, observers={"wandb": {"project": "soup"}})
    more = with_trackers(order, ["trackio", "wandb:project=soup"], "--observe")
    assert more.observers == {"wandb": {"project": "soup"}, "trackio": {}}
    with pytest.raises(ConfigError, match="'wandb' of this run has other settings"):
        with_trackers(order, ["wandb:project=stew"], "--observe")


def test_extras_know_what_their_packages_are_imported_as() -> None:
    installed = {extra.name: extra.missing for extra in extras()}
    assert [name for name in ("mlflow", "otlp") if installed[f"crucible-kitchen[{name}]"]] == []
