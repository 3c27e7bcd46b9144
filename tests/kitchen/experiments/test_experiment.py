"""Experiments as classes: their axes, the recipe of each point, and runs from Python."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import kitchen
from docs.examples.citation_weights import CitationWeights
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.config.request import Problems, RunRequest
from kitchen.config.trust import NotTrusted
from kitchen.errors import ConfigError, Interrupted, KitchenError
from kitchen.experiments.axes import parse_axes
from kitchen.experiments.experiment import Experiment, experiment_request, find_experiment
from kitchen.experiments.ledger import Ledger
from kitchen.experiments.sweep import SweepRequest, create_sweep, plan_sweep
from recipes.dpo import Dpo
from recipes.sl_basic import SlBasic
from stages.data import DataConfig
from stages.evaluate import EvalConfig


class Ranks(Experiment):
    """Two ranks, each with twice its rank as the scale."""

    rank: int = kitchen.over(4, 8)
    seed: int = kitchen.over(0, 1)
    rate: float = 0.01

    compare_by = "rank"
    measures = ("new_grammars/loss_after",)

    def recipe(self) -> kitchen.Recipe:
        return SlBasic(
            lora_rank=self.rank,
            lora_alpha=2.0 * self.rank,
            learning_rate=self.rate,
            seed=self.seed,
            reading=DataConfig(limit=40, held_out_rows=4),
            evaluation=EvalConfig(metric="loss"),
            max_steps=2,
            eval_every=0,
        )


def request(settings: Sequence[str] = (), over: Sequence[str] = ()) -> SweepRequest:
    run = RunRequest("", tuple(settings), (), AdapterChoice({"training": "fake"}))
    return SweepRequest(run, parse_axes(over))


def planned(
    cls: type[Experiment], settings: Sequence[str] = (), over: Sequence[str] = ()
) -> Sequence[tuple[Any, Any]]:
    """Return the values and the recorded settings of all points of an experiment."""
    plan = plan_sweep(experiment_request(cls, request(settings, over)), "x")
    assert plan.sweep.compare_by in (cls.compare_by, "")
    return [(point.values, point.order.settings) for point in plan.points]


pytestmark = pytest.mark.usefixtures("here")


def test_each_point_has_the_settings_of_its_recipe() -> None:
    points = planned(Ranks)
    assert [values for values, _ in points] == [
        {"rank": 4, "seed": 0},
        {"rank": 4, "seed": 1},
        {"rank": 8, "seed": 0},
        {"rank": 8, "seed": 1},
    ]
    settings = points[3][1]
    assert (settings["lora_rank"], settings["lora_alpha"], settings["seed"]) == (8, 16.0, 1)
    assert settings["reading"]["limit"] == 40
    assert settings["batch_size"] == SlBasic().batch_size


def test_arguments_replace_axes_fields_and_settings() -> None:
    arguments = ["rate=0.5", "batch_size=3", "reading.limit=20", "seed=7"]
    points = planned(Ranks, arguments, ["rank=2,4,6"])
    assert [values for values, _ in points] == [{"rank": 2}, {"rank": 4}, {"rank": 6}]
    settings = points[0][1]
    assert (settings["learning_rate"], settings["batch_size"], settings["seed"]) == (0.5, 3, 7)
    assert settings["reading"] == {**planned(Ranks)[0][1]["reading"], "limit": 20}
    rates = planned(Ranks, ["seed=0"], ["rate=0.1,0.2"])
    assert [values for values, _ in rates][:2] == [
        {"rank": 4, "rate": 0.1},
        {"rank": 4, "rate": 0.2},
    ]


def test_every_problem_of_every_point_is_reported() -> None:
    with pytest.raises(Problems) as caught:
        planned(Ranks, ["batch_sze=3"], ["rank=0,x,4"])
    texts = [str(problem) for problem in caught.value.problems]
    place = f"{Path(__file__)}:"
    assert any(text.startswith(f"Ranks, rank=0, seed=0: {place}") for text in texts)
    assert any(text.startswith("Ranks, rank=x, seed=1: rank: input should be") for text in texts)
    assert any("did you mean 'batch_size'" in text for text in texts)


class WrongRecipes(Experiment):
    """A recipe with a wrong setting, an exception, or no recipe at all."""

    kind: str = kitchen.over("misspelt", "broken", "none")

    def recipe(self) -> kitchen.Recipe:
        if self.kind == "misspelt":
            return Dpo(**{"bta": 0.1})
        if self.kind == "broken":
            raise ZeroDivisionError("half a pot")
        result: Any = None
        return result


def test_a_broken_recipe_is_a_problem_with_its_place() -> None:
    with pytest.raises(Problems) as caught:
        planned(WrongRecipes)
    misspelt, broken, none = map(str, caught.value.problems)
    assert "Dpo has no setting 'bta'; did you mean 'beta'?" in misspelt
    assert f"{Path(__file__)}:" in misspelt
    assert "ZeroDivisionError: half a pot" in broken
    assert none == "WrongRecipes, kind=none: recipe returned None, not a recipe"


class OneValue(Experiment):
    """An axis with a list in place of values."""

    rank: Any = kitchen.over([4, 8])

    def recipe(self) -> kitchen.Recipe:
        return SlBasic()


class ByNothing(Ranks):
    """A comparison by a field that does not exist."""

    compare_by = "rnk"


class WithoutMeasures(Ranks):
    """A comparison on nothing."""

    measures = ()


class WithoutARecipe(Experiment):
    """An axis and nothing else."""

    rate: float = kitchen.over(0.1, 0.2)


@pytest.mark.parametrize(
    ("cls", "over", "message"),
    [
        (WithoutARecipe, (), r"WithoutARecipe has no recipe"),
        (OneValue, (), "two or more values"),
        (ByNothing, (), "did you mean 'rank'"),
        (WithoutMeasures, (), "belong together"),
        (Ranks, ("rnk=1,2",), "did you mean 'rank'"),
        (Ranks, ("rate=1,2",), "both a setting and an axis"),
    ],
)
def test_a_wrong_experiment_is_refused(
    cls: type[Experiment], over: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(cls, ["rate=1"], over)


class InANotebook(Experiment):
    """A recipe that is defined where the points cannot import it."""

    seed: int = kitchen.over(0, 1)

    def recipe(self) -> kitchen.Recipe:
        return type("Mine", (SlBasic,), {"__module__": "__main__"})()


def test_a_recipe_of_a_notebook_is_refused() -> None:
    with pytest.raises(Problems, match="cannot import the recipe Mine from a notebook"):
        planned(InANotebook)


def test_an_experiment_is_found_in_its_module() -> None:
    assert find_experiment("docs.examples.citation_weights") is CitationWeights
    assert find_experiment(f"{__name__}:Ranks") is Ranks
    assert find_experiment("recipes.sl_basic") is None
    assert find_experiment("recipes.sl_basic:SlBasic") is None
    assert find_experiment("my.yaml") is None
    with pytest.raises(ConfigError, match="did you mean 'Ranks'"):
        find_experiment(f"{__name__}:Rank")
    with pytest.raises(ConfigError, match="several experiments"):
        find_experiment(__name__)


def test_the_example_experiment_has_nine_points() -> None:
    points = planned(CitationWeights)
    weights = [settings["penalty"]["weight"] for _, settings in points]
    assert weights == [2.0, 2.0, 2.0, 5.0, 5.0, 5.0, 7.0, 7.0, 7.0]
    assert {settings["lora_alpha"] for _, settings in points} == {32.0}


MINE = """
import kitchen
from recipes.sl_basic import SlBasic


class Mine(SlBasic):
    max_steps: int = 2
    eval_every: int = 0


class Ranks(kitchen.Experiment):
    rank: int = kitchen.over(4, 8)
    seed: int = kitchen.over(0, 1)

    def recipe(self) -> kitchen.Recipe:
        return Mine(lora_rank=self.rank, seed=self.seed)
"""


@pytest.fixture
def mine(here: Path) -> Iterator[type[Experiment]]:
    """An experiment in a file of the user's, with a recipe that a record may not name."""
    (here / "ranks_of_mine.py").write_text(MINE)
    found = find_experiment("ranks_of_mine.py:Ranks")
    assert found is not None
    yield found
    sys.modules.pop("ranks_of_mine", None)


def test_an_experiment_is_stopped_resumed_and_kept(here: Path, mine: type[Experiment]) -> None:
    states: list[str] = []
    settings = {"rank": 4, "reading.limit": 20, "reading.held_out_rows": 4}
    with pytest.raises(Interrupted, match=r"resume\('ranks'\)"):
        mine.run(
            settings=settings,
            training="fake",
            name="ranks",
            jobs=2,
            on_change=lambda status: os.kill(os.getpid(), signal.SIGINT),
        )
    outcome = mine.resume("ranks", on_change=lambda status: states.append(status.state))
    assert outcome.completed, [status.reason for status in outcome.points]
    assert sorted(states) == ["completed", "completed", "running", "running"]
    assert {status.point.order.settings["lora_rank"] for status in outcome.points} == {4}
    assert Ledger(outcome.blobs, "ranks").sweep().experiment == "ranks_of_mine:Ranks"
    before = (here / "runs/ranks-1/run.json").read_bytes()
    again = mine.resume("ranks")
    assert again.points == outcome.points
    assert (here / "runs/ranks-1/run.json").read_bytes() == before
    with pytest.raises(ConfigError, match="compares nothing"):
        again.compare()
    [page] = again.report("md", out=here / "reports")
    assert page.name == "ranks-report.md"
    assert "ranks-2" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"settings": {"rnk": 3}}, "Ranks has no field 'rnk', .* did you mean 'rank'"),
        ({"settings": {"batch_sze": 3}}, "settings: .* did you mean 'batch_size'"),
        ({"settings": {"rank": "x"}}, "rank: input should be a valid integer"),
        ({"adapter_settings": {"training": {"lattency": 1.0}}}, "lattency"),
        ({"executor": "locl"}, "did you mean 'local'"),
        ({"jobs": 0}, "at least one point"),
        ({"devices": "0,1"}, "name each GPU once"),
        ({"observe": "tracki"}, "did you mean 'trackio'"),
        ({"blobs": "fake"}, "memory"),
        ({"name": "a/b"}, "cannot be the name"),
    ],
)
def test_wrong_arguments_are_refused_before_a_run(
    here: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(KitchenError, match=message):
        Ranks.run(**{"training": "fake", "name": "x", **arguments})
    assert not (here / "runs").exists()


def test_only_an_imported_recipe_is_resumed_without_trust(mine: type[Experiment]) -> None:
    plan = plan_sweep(experiment_request(mine, request(["rank=4"])), "ranks")
    create_sweep(plan)
    sys.modules.pop("ranks_of_mine")
    with pytest.raises(NotTrusted, match="ranks_of_mine:Mine"):
        mine.resume("ranks")


def test_a_module_with_an_experiment_and_a_recipe_is_ambiguous(mine: type[Experiment]) -> None:
    with pytest.raises(ConfigError, match=r"say which: ranks_of_mine:Ranks, ranks_of_mine:Mine"):
        find_experiment("ranks_of_mine.py")
