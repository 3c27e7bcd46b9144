"""ensemble on models of known accuracy: votes, cascades, failures, weights and resuming."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen import Kitchen
from kitchen.backend.sampling_router import SamplingRouter
from kitchen.config.order import Order
from kitchen.engine.preview import preview
from kitchen.errors import ApiError, ConfigError, DataError, QualityError, RunFailed
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from kitchen.statistics.intervals import clopper_pearson
from kitchen.types import Table
from recipes.ensemble import Ensemble
from recipes.evaluate import Evaluate
from stages.chat import RenderDataset
from stages.compare.comparing import CompareOptions, compare_evaluations
from stages.compare.recorded import read_evaluation
from stages.data import HeldOutRowsConfig
from stages.ensemble import AskMembers, EnsembleConfig, EnsembleEvaluation, WeighMembers
from stages.ensemble.members import GIVE_UP
from stages.evaluate import EvalConfig
from tests.support.voters import DATA, Voters

TEXT = {"metric": "text", "max_tokens": 8}
MANY: dict[str, Any] = {"dataset": "many", "splits": None}
HERE = "tests.recipes.test_ensemble"


class Run:
    """A run of the recipe, with what it recorded."""

    def __init__(
        self,
        members: Sequence[str],
        voters: Voters | None = None,
        blobs: FakeBlobs | None = None,
        name: str = "run",
        **settings: Any,
    ) -> None:
        self.voters, self.blobs = voters or Voters(), blobs or FakeBlobs()
        defaults = {"dataset": "votes", "splits": ("held",), "evaluation": TEXT, "seconds": 0.05}
        self.recipe = Ensemble(**{"members": tuple(members), **defaults, **settings})
        order = Order("recipes.ensemble:Ensemble", self.recipe.model_dump(mode="json"))
        kitchen = Kitchen(self.voters, DATA, None, self.blobs)
        execute(order, self.recipe, kitchen, name)
        self.samples = read_journal(self.blobs, name, "samples")
        self.metrics: dict[str, float] = {}
        for row in read_journal(self.blobs, name, "metrics"):
            self.metrics |= {key: value for key, value in row.items() if "/" in key}
        self.tables = {
            table["title"]: table["rows"] for table in read_journal(self.blobs, name, "tables")
        }

    def scores(self) -> Mapping[str, float]:
        return {row["item"]: row["scores"].get("exact_match") for row in self.samples}


def test_majority_is_within_its_interval_of_the_binomial() -> None:
    members = [f"{name}-0.7" for name in "abcde"]
    run = Run(members, dataset="many", splits=None)
    expected = sum(math.comb(5, k) * 0.7**k * 0.3 ** (5 - k) for k in range(3, 6))
    right = sum(run.scores().values())
    found = clopper_pearson(right, 600)
    assert found.low <= expected <= found.high
    assert run.metrics["test/exact_match"] == right / 600
    for member in members:
        assert run.metrics[f"test/exact_match/{member}"] == pytest.approx(0.7, abs=0.06)
    assert run.metrics["test/exact_match/the ensemble vs a-0.7/p_corrected"] < 0.001
    assert run.metrics["test/any_right"] > 0.98


def test_three_identical_members_vote_as_one() -> None:
    run = Run(["a-0.6"] * 3, temperature=1.0)
    alone = {row["item"]: row["votes"][0]["scores"]["exact_match"] for row in run.samples}
    assert run.scores() == alone
    assert 0 < sum(alone.values()) < 40
    assert {row["share"] for row in run.samples} == {1.0}
    assert run.metrics["held/ties"] == run.metrics["held/disagreement"] == 0
    labels = [vote["member"] for vote in run.samples[0]["votes"]]
    assert labels == ["a-0.6", "a-0.6 (2)", "a-0.6 (3)"]
    assert run.metrics["held/exact_match/the ensemble vs a-0.6/difference"] == 0


def test_cascade_stops_early_and_reports_saved_tokens() -> None:
    members = [f"{name}-0.8" for name in "abcde"]
    full, cascade = Run(members), Run(members, mode="cascade", enough=1)
    assert cascade.scores() == full.scores()
    read = len("<>0: yes?<><>") - 3  # tokens of the first prompts
    saved = sum(len(row["not_asked"]) for row in cascade.samples)
    assert cascade.metrics["held/votes_saved"] == saved > 20
    assert full.metrics["held/votes_saved"] == 0
    assert cascade.metrics["held/tokens_saved"] > saved * read
    assert {"held/any_right", "held/calibration_error"} <= full.metrics.keys()
    shown = {"any_right", "calibration_error", "overconfidence", "disagreement"}
    assert not {f"held/{name}" for name in shown} & cascade.metrics.keys()
    total = cascade.metrics["held/tokens"] + cascade.metrics["held/tokens_saved"]
    assert total == pytest.approx(full.metrics["held/tokens"], rel=0.02)
    rows = [row for row in cascade.tables["Votes"] if "saved" in row[1]]
    assert rows[0][2] == f"{saved} of 200"
    assert sum(cascade.voters.asked.values()) == 200 - saved
    assert Run(members, mode="cascade", enough=0.5).metrics["held/votes_saved"] > saved


def test_member_that_dies_in_the_middle_is_counted() -> None:
    run = Run(["a-1", "b-1-die21", "c-1"])
    assert run.metrics["held/failed/b-1-die21"] == 20
    assert run.metrics["held/failed/a-1"] == run.metrics["held/late/b-1-die21"] == 0
    assert run.metrics["held/exact_match"] == 1
    reasons = [row["votes"][1]["failed"] for row in run.samples]
    assert sum(not reason for reason in reasons) == 20
    assert "the server has died" in reasons[-1]
    # after one failure and 5 probes it is left alone
    assert run.voters.asked["b-1-die21"] == 20 + 1 + GIVE_UP
    assert sum(reason.startswith("not asked") for reason in reasons) == 20 - 1 - GIVE_UP


def test_late_answers_are_counted() -> None:
    run = Run(["a-1", "b-1-hang39"], concurrency=1)
    assert run.metrics["held/late/b-1-hang39"] == run.metrics["held/failed/b-1-hang39"] == 2
    assert run.metrics["held/exact_match"] == 1
    [row] = [row for row in run.tables["Members"] if row[1] == "b-1-hang39"]
    assert row[4] == "2, 2 late"


def test_problem_without_votes_is_a_failed_item() -> None:
    run = Run(["a-1-die31", "b-1-die31"])
    assert run.metrics["held/no_votes"] == run.metrics["held/unanswered"] == 10
    assert run.metrics["held/exact_match"] == 1  # of the others
    assert [row["failed"] for row in run.samples].count("no member answered") == 10
    assert sum(row["scores"] == {} for row in run.samples) == 10


@pytest.mark.parametrize("status", [401, 403, 404])
def test_wrong_key_or_model_ends_the_run(status: int) -> None:
    voters, refused = Voters(), f"b-1-refuse{status}"
    with pytest.raises(ApiError, match=refused) as caught:
        Run(["a-1", refused, "c-1"], voters)
    assert (caught.value.exit_code, caught.value.status) == (4, status)
    assert voters.asked[refused] == 1


def test_refused_prompts_cost_no_tokens_and_no_member() -> None:
    run = Run(["a-1", "b-1-refuse400"])
    assert run.voters.asked["b-1-refuse400"] == run.metrics["held/failed/b-1-refuse400"] == 40
    assert run.metrics["held/tokens/b-1-refuse400"] == 0 < run.metrics["held/tokens/a-1"]


def test_run_fails_if_no_member_ever_answers() -> None:
    with pytest.raises(RunFailed):
        Run(["a-1-die1", "b-1-die1"])


def test_resumed_run_does_not_ask_again() -> None:
    voters, blobs = Voters(), FakeBlobs()
    settings: dict[str, Any] = {"voters": voters, "blobs": blobs}
    first = Run(["a-0.7", "b-0.7", "c-0.7"], **settings)
    asked = dict(voters.asked)
    again = Run(["a-0.7", "b-0.7", "c-0.7"], **settings)
    assert voters.asked == asked
    assert again.metrics == first.metrics
    assert len(again.metrics) > 20


def test_ensemble_is_compared_with_other_runs() -> None:
    run = Run(["a-0.4", "b-0.9", "c-0.9"], name="votes")
    recipe = Evaluate(weights="a-0.4", dataset="votes", splits=("held",), evaluation=TEXT)
    order = Order("recipes.evaluate:Evaluate", recipe.model_dump(mode="json"))
    execute(order, recipe, Kitchen(run.voters, DATA, None, run.blobs), "alone")
    groups = {name: (read_evaluation(run.blobs, name),) for name in ("alone", "votes")}
    report = compare_evaluations(groups, CompareOptions(measures=("exact_match",)))
    [pair] = report.pairs
    assert pair.comparison is not None
    key = "held/exact_match/the ensemble vs a-0.4/difference"
    assert pair.comparison.difference.estimate == run.metrics[key] > 0.2


def test_weighted_votes_follow_accuracies_on_another_split() -> None:
    settings: dict[str, Any] = {"vote": "weighted", "weigh_on": "train"}
    run = Run(["a-0.95", "b-0.5", "c-0.5"], **settings)
    weights = [run.metrics[f"train/weight/{name}"] for name in run.recipe.members]
    assert weights[0] > weights[1] + weights[2]
    assert run.scores() == {
        row["item"]: row["votes"][0]["scores"]["exact_match"] for row in run.samples
    }
    assert set(run.voters.asked.values()) == {80}


def test_rows_that_are_evaluated_on_weigh_nothing() -> None:
    run = Run(["a-0.9", "b-0.5"], vote="weighted", weigh_on="leaked")
    [title] = [title for title in run.tables if title.startswith("Weights")]
    assert "without 20 rows" in title
    assert [row[1] for row in run.tables[title]] == ["20", "20"]
    with pytest.raises(DataError):
        Run(["a-0.9", "b-0.5"], vote="weighted", weigh_on="held")


def test_weighing_counts_its_tokens_in_run_and_preview() -> None:
    settings: dict[str, Any] = {"vote": "weighted", "weigh_on": "train"}
    run = Run(["a-0.9", "b-0.5"], **settings)
    ports = Kitchen(Voters(), DATA, None, FakeBlobs()).ports()
    tables = [each for each in preview(run.recipe.workflow(), ports) if isinstance(each, Table)]
    [questions] = [each for each in tables if each.title.startswith("Questions on train")]
    counts = {row[0]: row[1] for row in questions.rows}
    assert counts["answers in all"] == "80"
    read = int(counts["tokens read"].replace(",", ""))
    assert read < run.metrics["train/tokens"] <= read + 80 * len("yes.")


def partly(answer: str) -> float:
    return 0.9 if answer == "yes" else 0.1


partly.bounds = (0, 1)  # type: ignore[attr-defined]


def unbounded(answer: str) -> float:
    return 1.0


def test_partial_scores_are_weighed_and_not_called_right() -> None:
    settings: dict[str, Any] = {"vote": "weighted", "weigh_on": "train"}
    evaluation = {"metric": f"{HERE}:partly", "max_tokens": 8}
    run = Run(["a-1", "b-0"], evaluation=evaluation, **settings)
    weights = [run.metrics[f"train/weight/{name}"] for name in run.recipe.members]
    assert weights[0] > 1
    assert weights[1] == 0
    assert run.metrics["held/partly"] == pytest.approx(0.9)
    assert not {"held/any_right", "held/calibration_error"} & run.metrics.keys()
    asking = EnsembleEvaluation(
        EnsembleConfig(("a-1", "b-1")),
        EvalConfig(metric=f"{HERE}:unbounded"),
        RenderDataset(),
        seed=0,
    )
    stage = WeighMembers("votes", "train", None, HeldOutRowsConfig(), ("held",), asking)
    with pytest.raises(ConfigError, match=r"unbounded.bounds = \(0, 1\)"):
        stage.verify(DATA)


@pytest.mark.parametrize(("split", "error"), [("held", ConfigError), ("nope", DataError)])
def test_split_that_is_evaluated_on_is_refused_in_the_plan(
    split: str, error: type[Exception]
) -> None:
    asking = EnsembleEvaluation(
        EnsembleConfig(("a-1", "b-1")), EvalConfig(metric="text"), RenderDataset(), seed=0
    )
    stage = WeighMembers("votes", split, None, HeldOutRowsConfig(), ("held",), asking)
    with pytest.raises(error):
        stage.verify(DATA)


@pytest.mark.parametrize(("mode", "most"), [("parallel", 3), ("sequential", 1), ("cascade", 1)])
def test_members_are_open_while_they_are_asked(mode: str, most: int) -> None:
    run = Run(["a-0.7", "b-0.7", "c-0.7"], mode=mode)
    assert run.voters.most_opened == most
    assert run.voters.opened == 0


@pytest.mark.parametrize("mode", ["parallel", "sequential", "cascade"])
def test_confidence_needs_logprobs_before_many_are_asked(mode: str) -> None:
    voters = Voters()
    with pytest.raises(ConfigError):
        Run(["a-1-nan", "b-1"], voters, vote="confidence", mode=mode)
    assert voters.asked["a-1-nan"] == 1
    assert Run(["a-1", "b-1"], vote="confidence", mode=mode).metrics["held/exact_match"] == 1


def test_unanimous_votes_leave_other_problems_unanswered() -> None:
    run = Run(["a-0.7", "b-0.7"], vote="unanimous")
    differ = sum(row["disagreement"] == 1 for row in run.samples)
    assert run.metrics["held/unanswered"] == differ > 5
    assert run.metrics["held/no_votes"] == 0
    cascade = Run(["a-0.7", "b-0.7", "c-0.7"], vote="unanimous", mode="cascade")
    assert cascade.metrics["held/votes_saved"] > 5
    reasons = {row["abstained"] for row in cascade.samples if row["not_asked"]}
    assert reasons == {"not unanimous: 1 of 2 votes agree, and 1 was not asked for"}


def test_abstentions_are_wrong_and_shown_as_coverage() -> None:
    members = ["a-0.7", "b-0.7"]
    run = Run(members, vote="unanimous", dataset="many", splits=None)
    metrics = run.metrics
    assert metrics["test/coverage"] == 1 - metrics["test/unanswered"] / 600
    whole = metrics["test/coverage"] * metrics["test/selective_score"]
    assert metrics["test/exact_match"] == pytest.approx(whole)
    assert metrics["test/exact_match"] < 0.7 < metrics["test/selective_score"]
    # an ensemble that abstains is not better than its members on all problems
    assert metrics["test/exact_match/the ensemble vs a-0.7/difference"] < 0
    evaluation = {**TEXT, "at_least": 0.7}
    with pytest.raises(QualityError):
        Run(members, vote="unanimous", dataset="many", splits=None, evaluation=evaluation)


def test_missing_vote_ends_a_unanimous_cascade() -> None:
    run = Run(["a-1-die21", "b-1", "c-1"], vote="unanimous", mode="cascade")
    assert run.metrics["held/unanswered"] == 20
    assert run.metrics["held/no_votes"] == 0
    assert run.voters.asked["c-1"] == 20
    reasons = [row["abstained"] for row in run.samples]
    assert reasons[20:] == ["no vote arrived, and 2 were not asked for"] * 20


def test_cascade_opens_members_on_first_use() -> None:
    run = Run(["a-1", "b-1", "c-1"], mode="cascade", enough=0.5)
    assert run.voters.weights_opened == ["a-1", "b-1"]


def test_cascade_scores_members_without_bias() -> None:
    run = Run(["a-0.6"], Draws(), draws=5, temperature=1.0, mode="cascade", enough=0.5, **MANY)
    first = [row["votes"][0]["scores"]["exact_match"] for row in run.samples]
    assert run.metrics["test/exact_match/a-0.6"] == pytest.approx(sum(first) / 600)
    members = ["a-0.7", "b-0.7", "c-0.7"]
    metrics = (run := Run(members, mode="cascade", **MANY)).metrics
    assert "test/exact_match/the ensemble vs a-0.7/p" in metrics
    assert "test/exact_match/the ensemble vs c-0.7/p" not in metrics
    assert "test/exact_match/c-0.7" not in metrics
    [row] = [row for row in run.tables["Members"] if row[1] == "c-0.7"]
    assert "selected problems" in row[3]


class Draws(Voters):
    """Voters whose answers depend on the seed as well."""

    reads_seed = True


def test_one_member_votes_with_several_draws() -> None:
    run = Run(["a-0.7"], draws=3, temperature=1.0)
    assert [len(row["votes"]) for row in run.samples] == [3] * 40
    assert run.voters.asked == {"a-0.7": 40}  # one request for all draws


def test_function_of_the_user_decides() -> None:
    run = Run(["a-1", "b-0"], vote=f"{HERE}:last_vote")
    assert run.metrics["held/exact_match"] == 0
    assert {row["decided_by"] for row in run.samples} == {"function"}


@pytest.mark.parametrize("vote", ["second_vote", "a_text", "weights_of"])
def test_function_that_fails_is_refused_in_the_plan(vote: str) -> None:
    config = EnsembleConfig(("a-1", "b-1"), vote=f"{HERE}:{vote}")
    stage = AskMembers(
        EnsembleEvaluation(config, EvalConfig(metric="text"), RenderDataset(), seed=0)
    )
    voters = Voters()
    with pytest.raises(ConfigError, match=vote):
        stage.verify(voters, voters)
    assert not voters.asked
    last = EnsembleConfig(("a-1", "b-1"), vote=f"{HERE}:last_vote")
    replace(stage, evaluation=replace(stage.evaluation, ensemble=last)).verify(voters, voters)


def second_vote(votes: list[Any]) -> Any:
    return votes[1]


def a_text(votes: list[Any]) -> Any:
    return votes[0].text


def weights_of(votes: list[Any]) -> Any:
    return np.array([vote.weight for vote in votes])


def test_confidence_of_a_text_server_is_refused_in_the_plan() -> None:
    config = EnsembleConfig(("a-1", "openai:large"), vote="confidence")
    stage = AskMembers(
        EnsembleEvaluation(config, EvalConfig(metric="text"), RenderDataset(), seed=0)
    )
    router: Any = SamplingRouter(Voters(), TextServer())
    with pytest.raises(ConfigError, match="openai:large"):
        stage.verify(router, router)


class TextServer:
    """A sampling client that exchanges text."""

    capabilities: frozenset[str] = frozenset()

    def sampler(self, weights: Any) -> Any:
        raise AssertionError(f"{weights} was opened")


def last_vote(votes: list[Any]) -> Any:
    return votes[-1]


def test_preview_counts_answers_and_tokens() -> None:
    recipe = Ensemble(
        members=("a-1", "b-1"),
        dataset="votes",
        splits=("held",),
        evaluation=TEXT,
    )
    ports = Kitchen(Voters(), DATA, None, FakeBlobs()).ports()
    tables = [value for value in preview(recipe.workflow(), ports) if isinstance(value, Table)]
    [questions] = [table for table in tables if table.title == "Questions"]
    counts = {row[0]: row[1] for row in questions.rows}
    assert counts["answers in all"] == "80"
    assert counts["tokens of answers"] == "at most 640"
    assert counts["tokens of a-1"] == counts["tokens of b-1"]


@pytest.mark.parametrize(
    "settings",
    [
        {"members": ()},
        {"members": ("a-1",)},
        {"draws": 2},
        {"members": ("a-1", "b-1", "a-1")},
        {"enough": 0.5},
        {"vote": "weighted"},
        {"weigh_on": "train"},
        {"mode": "cascade", "vote": f"{HERE}:last_vote"},
        {"evaluation": {"metric": "loss"}},
        {"evaluation": {"metric": "choice"}},
    ],
)
def test_settings_without_a_vote_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Ensemble(**{"members": ("a-1", "b-1"), "dataset": "votes", **settings}).workflow()
