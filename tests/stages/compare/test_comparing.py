"""Choice of items, sets, measures and statistics of a comparison of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.errors import ConfigError, DataError
from kitchen.statistics.comparison import compare_paired
from kitchen.statistics.corrections import correct
from kitchen.statistics.report import ComparedPair, ComparisonReport
from stages.compare.compare_runs import CompareRuns, run_groups
from stages.compare.comparing import CompareOptions
from tests.support.evaluated_runs import scored_rows, write_evaluated_run

RANDOM = np.random.default_rng(0)
EASE = RANDOM.random(60)  # of each item


def answers(skill: float, seed: int, n: int = 60) -> list[float]:
    """Return 0/1 scores of items, which are right more often the higher the skill."""
    noise = np.random.default_rng(seed).random(n)
    return [float(score) for score in EASE[:n] * 0.6 + noise * 0.4 + skill > 0.5]


def grades(skill: float, seed: int, n: int = 60) -> list[float]:
    noise = np.random.default_rng(seed).random(n)
    return np.clip(EASE[:n] * 0.6 + noise * 0.3 + skill, 0, 1).tolist()


def compare(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *names: str,
    facts: Mapping[str, Mapping[str, str]] | None = None,
    **options: Any,
) -> ComparisonReport:
    """Compare runs that have these rows; by default all of them."""
    blobs = FakeBlobs()
    for run, rows in runs.items():
        write_evaluated_run(blobs, run, rows, facts=(facts or {}).get(run))
    stage = CompareRuns(names or tuple(runs), CompareOptions(**options))
    report, *_ = stage.run(blobs)
    return report


def only_pair(report: ComparisonReport) -> ComparedPair:
    [pair] = report.pairs
    return pair


def test_items_are_paired_whatever_their_order() -> None:
    one, other = answers(0.0, 1), answers(0.3, 2)
    rows = scored_rows(other)[::-1]
    found = only_pair(compare({"a": scored_rows(one), "b": rows})).comparison
    assert found == compare_paired(one, other)
    assert found is not None
    assert found.verdict == "better"


@pytest.mark.parametrize("options", [{}, {"unpaired": True}])
@pytest.mark.parametrize("scores", [answers, grades])
def test_only_the_baseline_is_compared_with_each_run(
    options: dict[str, Any], scores: Callable[[float, int], list[float]]
) -> None:
    runs = {name: scored_rows(scores(0.1 * at, at)) for at, name in enumerate("abcd")}
    every = compare(runs, **options)
    found = compare(runs, only_baseline=True, **options)
    assert [(pair.first, pair.second) for pair in found.pairs] == [("a", x) for x in "bcd"]
    assert found.overall == every.overall
    for pair, same in zip(found.pairs, every.pairs[:3], strict=True):
        assert pair.comparison is not None
        assert same.comparison is not None
        assert pair.comparison.difference == same.comparison.difference
        assert pair.comparison.test == same.comparison.test
        assert pair.comparison.p_corrected <= same.comparison.p_corrected


@pytest.mark.parametrize(
    ("other", "count"),
    [({"seed": 1, "rate": 1}, 1), ({"seed": 1, "rate": 2}, 0), ({"seed": 0, "rate": 1}, 0)],
)
def test_runs_that_differ_in_their_seed_have_a_note(other: dict[str, int], count: int) -> None:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "a", scored_rows(answers(0.0, 1)), settings={"seed": 0, "rate": 1})
    write_evaluated_run(blobs, "b", scored_rows(answers(0.3, 2)), settings=other)
    report, *_ = CompareRuns(("a", "b")).run(blobs)
    assert [note.startswith("b and a differ only in their seed") for note in report.notes] == (
        [True] * count
    )


@pytest.mark.parametrize(
    ("roles", "other"),
    [
        ({"weights": "openai:m"}, {"weights": "openai:m"}),
        ({"weights": "openai:m"}, {"member.1": "openai:n", "member.2": "openai:m"}),
        (
            {"member.1": "openai:m", "member.2": "fake/bigram"},
            {"member.1": "fake/bigram", "member.2": "openai:m"},
        ),
    ],
)
def test_runs_that_asked_other_servers_have_a_note(
    roles: dict[str, str], other: dict[str, str]
) -> None:
    blobs = FakeBlobs()
    asked = (("a", roles, "http://one/v1"), ("b", other, "http://two/v1"))
    for run, names, address in (*asked, ("c", other, "http://one/v1")):
        served = [role for role, name in names.items() if name.startswith("openai:")]
        servers = {f"machine.{role}.server": address for role in served}
        facts = {"data.test.sha256": "a" * 64, **names, **servers}
        write_evaluated_run(blobs, run, scored_rows(answers(0.0, 1)), facts=facts)
    report, *_ = CompareRuns(("a", "b")).run(blobs)
    note = "the runs asked different servers for openai:m: a at http://one/v1; b at http://two/v1"
    assert report.notes == (note,)
    report, *_ = CompareRuns(("a", "c")).run(blobs)
    assert report.notes == ()


def test_items_that_only_one_run_has_are_counted() -> None:
    one = scored_rows(answers(0.0, 1))
    other = scored_rows([*answers(0.3, 2)[:50], *[None] * 10])[5:]
    items = only_pair(compare({"a": one, "b": other})).items
    assert (items.first, items.only_first, items.only_second) == (45, 5, 0)
    assert (items.failed_first, items.failed_second) == (0, 10)


@pytest.mark.parametrize(
    ("margin", "verdict"), [(None, "cannot tell"), (0.15, "same"), (0.001, "cannot tell")]
)
def test_a_margin_allows_the_verdict_the_same(margin: float | None, verdict: str) -> None:
    rows = scored_rows(answers(0.0, 1))
    found = only_pair(compare({"a": rows, "b": rows}, margin=margin)).comparison
    assert found is not None
    assert found.verdict == verdict


def test_losses_are_compared_as_ratios_and_lower_is_better() -> None:
    tokens = np.random.default_rng(3).integers(5, 50, 60)
    nats = tokens * (0.5 + EASE)

    def rows(factor: float) -> list[dict[str, Any]]:
        pairs = zip(nats, tokens, strict=True)
        return scored_rows([{"nats": float(n * factor), "tokens": int(t)} for n, t in pairs])

    pair = only_pair(compare({"a": rows(1.0), "b": rows(0.9)}))
    assert pair.measure == "loss"
    assert pair.comparison is not None
    assert pair.comparison.first.estimate == pytest.approx(nats.sum() / tokens.sum())
    assert pair.comparison.verdict == "better"


def test_losses_over_other_tokens_are_not_compared() -> None:
    one = scored_rows([{"nats": 3.0, "tokens": 2, "bytes": 9}, {"nats": 4.0, "tokens": 5}] * 10)
    other = scored_rows([{"nats": 3.0, "tokens": 3, "bytes": 9}, {"nats": 4.0, "tokens": 5}] * 10)
    runs = {"a": one, "b": one, "c": other, "d": other}
    pairs = compare(runs, "a", "c").pairs
    assert {pair.measure: pair.comparison is None for pair in pairs} == {
        "loss": True,
        "bits_per_byte": False,
    }
    assert "bits_per_byte" in pairs[0].problem
    with pytest.raises(DataError, match="count different tokens"):
        compare(runs, "x=a,b", "y=c,d", measures=("loss",))
    with pytest.raises(DataError, match="count different tokens"):
        compare(runs, "x=a,c", "y=b,d", measures=("loss",))


def test_margins_are_compared_only_if_named() -> None:
    def rows(beta: float) -> list[dict[str, Any]]:
        margins = grades(0.5, 1)
        return scored_rows([{"pair_accuracy": 1.0, "margin": beta * m} for m in margins])

    runs = {"a": rows(0.1), "b": rows(0.5)}
    report = compare(runs)
    assert only_pair(report).measure == "pair_accuracy"
    assert [note for note in report.notes if "margin is left out" in note] == list(report.notes)
    assert len(report.notes) == 1
    named = compare(runs, measures=("margin",))
    assert "beta" in only_pair(named).note
    assert not named.notes


def test_margins_alone_are_not_compared() -> None:
    rows = scored_rows(answers(0.0, 1), measure="margin")
    with pytest.raises(DataError, match="--measure margin compares it"):
        compare({"a": rows, "b": rows})


def test_other_data_needs_unpaired() -> None:
    runs = {"a": scored_rows(answers(0.0, 1)), "b": scored_rows(answers(0.3, 2))}
    facts = {"b": {"data.test.sha256": "b" * 64}}
    with pytest.raises(DataError, match="--unpaired"):
        compare(runs, facts=facts)
    found = only_pair(compare(runs, facts=facts, unpaired=True)).comparison
    assert found is not None
    assert found.n == 120
    assert found.test.method == "Fisher exact"


def test_no_shared_item_is_refused() -> None:
    one = scored_rows(answers(0.0, 1))
    other = [{**row, "item": f"other{row['item']}"} for row in one]
    with pytest.raises(DataError, match="no item is shared"):
        compare({"a": one, "b": other})


def test_one_shared_item_cannot_tell() -> None:
    one, other = scored_rows([0.0, 1.0]), scored_rows([1.0])
    pair = only_pair(compare({"a": one, "b": other}))
    assert pair.items.first == 1
    assert pair.comparison is not None
    assert pair.comparison.verdict == "cannot tell"


def test_a_run_whose_items_all_failed_is_refused() -> None:
    one = scored_rows([{"exact_match": None}] * 5)
    with pytest.raises(DataError, match="no item of a has a score"):
        compare({"a": one, "b": scored_rows([1.0] * 5)})


def test_clusters_come_from_a_column() -> None:
    runs = {"a": scored_rows(grades(0.0, 1)), "b": scored_rows(grades(0.1, 2))}
    found = only_pair(compare(runs, cluster="document")).comparison
    assert found is not None
    assert found.test.method == "cluster permutation"
    with pytest.raises(ConfigError, match="did you mean 'document'"):
        compare(runs, cluster="documents")


def test_p_values_are_corrected_over_all_rows() -> None:
    def rows(skill: float, seed: int) -> list[dict[str, Any]]:
        both = zip(answers(skill, seed), grades(skill, seed), strict=True)
        return scored_rows([{"exact_match": e, "field_f1": f} for e, f in both])

    report = compare({"a": rows(0.0, 1), "b": rows(0.1, 2), "c": rows(0.2, 3)}, correct="bh")
    found = [pair.comparison for pair in report.pairs if pair.comparison]
    assert len(found) == 6
    raw = [comparison.test.p_value for comparison in found]
    expected = correct(raw, "bh").tolist()
    assert [comparison.p_corrected for comparison in found] == pytest.approx(expected)
    assert [each.test.method for each in report.overall] == ["Cochran's Q", "Friedman"]
    overall = [each.test.p_value for each in report.overall]
    expected = correct(overall, "bh").tolist()
    assert [each.p_corrected for each in report.overall] == pytest.approx(expected)


def test_tests_for_all_pairs_are_corrected_per_measure() -> None:
    def rows(skill: float, seed: int) -> list[dict[str, Any]]:
        both = zip(answers(skill, seed), grades(skill, seed), strict=True)
        return scored_rows([{"exact_match": e, "field_f1": f} for e, f in both])

    runs = {"a": rows(0.0, 1), "b": rows(0.1, 2), "c": rows(0.2, 3)}
    for pair in compare(runs, unpaired=True).pairs:
        assert pair.comparison is not None
        twice = min(2 * pair.comparison.test.p_value, 1.0)
        assert pair.comparison.p_corrected == pytest.approx(twice)


def test_groups_of_seeds_are_compared_by_items_and_seeds() -> None:
    runs = {f"old{seed}": scored_rows(grades(0.0, seed)) for seed in range(3)}
    runs |= {f"new{seed}": scored_rows(grades(0.2, 10 + seed)) for seed in range(3)}
    report = compare(runs, "old=old0,old1,old2", "new=new0,new1,new2")
    pair = only_pair(report)
    assert (pair.first, pair.second, len(pair.first_seeds)) == ("old", "new", 3)
    assert pair.comparison is not None
    assert pair.comparison.by_seeds is not None
    assert pair.comparison.verdict == "better"


def test_losses_of_seeds_have_the_mean_of_their_ratios() -> None:
    tokens = np.random.default_rng(3).integers(5, 50, 60)

    def rows(seed: int) -> list[dict[str, Any]]:
        nats = tokens * np.random.default_rng(seed).random(60)
        pairs = zip(nats, tokens, strict=True)
        return scored_rows([{"nats": float(n), "tokens": int(t)} for n, t in pairs])

    runs = {f"r{seed}": rows(seed) for seed in range(4)}
    pair = only_pair(compare(runs, "a=r0,r1", "b=r2,r3"))
    expected = [
        sum(row["scores"]["nats"] for row in runs[run]) / tokens.sum() for run in ("r0", "r1")
    ]
    assert pair.first_seeds == pytest.approx(expected)
    assert pair.comparison is not None
    assert pair.comparison.first.estimate == pytest.approx(np.mean(expected))


def test_intervals_of_losses_of_seeds_are_not_negative() -> None:
    runs = {}
    for seed, nats in enumerate([0.0, 1.0, 0.1, 0.9]):
        noise = np.random.default_rng(seed).random(20) / 10
        runs[f"r{seed}"] = scored_rows([{"nats": nats + n, "tokens": 10} for n in noise.tolist()])
    found = only_pair(compare(runs, "a=r0,r1", "b=r2,r3")).comparison
    assert found is not None
    assert found.first.low == found.second.low == 0.0
    assert found.difference.low < 0


@pytest.mark.parametrize("option", [{"unpaired": True}, {"cluster": "document"}])
def test_groups_of_seeds_refuse_other_designs(option: dict[str, Any]) -> None:
    runs = {f"r{seed}": scored_rows(grades(0.0, seed)) for seed in range(4)}
    with pytest.raises(ConfigError, match="groups of seeds"):
        compare(runs, "a=r0,r1", "b=r2,r3", **option)


def test_a_single_run_beside_a_group_is_refused() -> None:
    runs = {f"r{seed}": scored_rows(grades(0.0, seed)) for seed in range(3)}
    with pytest.raises(ConfigError, match="r0 is one run"):
        compare(runs, "r0", "b=r1,r2")


def test_unknown_sets_and_measures_are_suggested() -> None:
    runs = {"a": scored_rows([1.0] * 5), "b": scored_rows([0.0] * 5)}
    with pytest.raises(ConfigError, match="did you mean 'exact_match'"):
        compare(runs, measures=("exact_mach",))
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        compare(runs, sets=("tests",))


def test_sets_that_one_run_lacks_are_left_out_with_a_note() -> None:
    both = [*scored_rows(answers(0, 1)), *scored_rows(answers(0, 2), set="hard", n=0)]
    runs = {"a": both, "b": scored_rows(answers(0, 3))}
    report = compare(runs)
    assert {pair.set for pair in report.pairs} == {"test"}
    assert any("hard" in note for note in report.notes)
    with pytest.raises(DataError, match="'b' has no set 'hard'"):
        compare(runs, sets=("hard",))


@pytest.mark.parametrize(
    "texts",
    [
        (),
        ("a",),
        ("a", "a"),
        ("x=a,b", "y=b,c"),
        ("x=", "b"),
        ("a,b", "c"),
        ("x=a,a", "b"),
        ("", "b"),
        ("x vs y=a,b", "z=c,d"),
    ],
)
def test_groups_that_make_no_comparison_are_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="runs"):
        run_groups(texts)


@pytest.mark.parametrize("weights", ["a@best", "run:a@best", "a@40"])
def test_weights_are_not_compared_as_runs(weights: str) -> None:
    with pytest.raises(ConfigError, match=r"run `kitchen eval a@(best|40)`, and compare the run"):
        run_groups(("a@before", weights))


def test_runs_without_a_common_measure_say_what_each_has() -> None:
    one, other = scored_rows([1.0] * 5), scored_rows([1.0] * 5, measure="reward")
    with pytest.raises(DataError, match=r"a has exact_match of .*; b has reward of "):
        compare({"a": one, "b": other})


def test_a_measure_of_only_some_sets_can_be_chosen() -> None:
    def rows(seed: int) -> list[dict[str, Any]]:
        loss = [{"nats": 2.0 + seed, "tokens": 3}] * 5
        return [*scored_rows(answers(0, seed)), *scored_rows(loss, set="chats")]

    report = compare({"a": rows(1), "b": rows(2)}, measures=("loss",))
    assert [(pair.set, pair.measure) for pair in report.pairs] == [("chats", "loss")]
