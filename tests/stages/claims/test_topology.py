"""Cycles, polarity and distances of claim graphs."""

from __future__ import annotations

import math

import pytest

from kitchen.errors import ConfigError
from stages.claims.answer import Claim, ClaimAnswer, Relation
from stages.claims.topology import Topology, fisher_rao, topology


def answer(*relations: tuple[str, str, str]) -> ClaimAnswer:
    claims = tuple(Claim(id, "text", "1") for id in ("c1", "c2", "c3", "c4"))
    edges = [Relation(source, verb, target) for source, verb, target in relations]  # type: ignore[arg-type]
    return ClaimAnswer(claims, tuple(edges))


def test_a_tree_has_no_cycle_and_no_conflict() -> None:
    relations = [("c2", "supports", "c1"), ("c3", "supports", "c1")]
    assert topology(answer(*relations)) == Topology(0, (), False, 0.0)


def test_each_independent_cycle_is_counted() -> None:
    relations = [
        ("c2", "supports", "c1"),
        ("c3", "supports", "c2"),
        ("c1", "supports", "c3"),
        ("c4", "supports", "c1"),
        ("c4", "supports", "c3"),
    ]
    found = topology(answer(*relations))
    assert found.cycles == len(found.cycle_basis) == 2
    assert all(len(cycle) == 3 for cycle in found.cycle_basis)


def test_a_claim_supported_and_refuted_is_a_conflict() -> None:
    relations = [("c2", "supports", "c1"), ("c3", "supports", "c1"), ("c4", "refutes", "c1")]
    found = topology(answer(*relations))
    assert found.polarity_conflict
    assert found.chirality == pytest.approx(2 / 3)
    assert found.cycles == 0


def test_relations_of_unknown_claims_add_no_edge() -> None:
    assert topology(answer(("c9", "supports", "c1"), ("c1", "refutes", "c1"))).cycles == 0


def test_the_distance_is_that_of_the_closed_form() -> None:
    assert fisher_rao([1.0, 0.0], [0.0, 1.0]) == pytest.approx(math.pi)
    assert fisher_rao([0.3, 0.7], [0.3, 0.7]) == pytest.approx(0.0, abs=1e-7)
    # on the great circle: 2 |asin sqrt(p) - asin sqrt(q)| for two outcomes
    expected = 2 * abs(math.asin(math.sqrt(0.2)) - math.asin(math.sqrt(0.9)))
    assert fisher_rao([0.2, 0.8], [0.9, 0.1]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "p, q", [([], []), ([0.5, 0.6], [1.0, 0.0]), ([1.0], [0.5, 0.5]), ([-1.0, 2.0], [0.5, 0.5])]
)
def test_numbers_that_are_no_distribution_are_refused(p: list[float], q: list[float]) -> None:
    with pytest.raises(ConfigError):
        fisher_rao(p, q)
