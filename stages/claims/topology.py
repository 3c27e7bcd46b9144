"""Graphs of claims: cycles, conflicting polarity, chirality and the Fisher-Rao distance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kitchen.config.extras import install_command_for
from kitchen.errors import BackendError, ConfigError
from stages.claims.answer import ClaimAnswer

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Topology:
    """Structure of one answer's graph: claims are nodes, and relations are edges."""

    cycles: int  # beta_1 = edges - nodes + components of the undirected graph, 0 without cycles
    cycle_basis: tuple[tuple[str, ...], ...]  # ids of claims
    polarity_conflict: bool  # a claim is supported and refuted, or a pair has both relations
    chirality: float  # 0..1: how evenly the relations to a claim are split; 0.5 supports is 1


def check_graph_package() -> None:
    """Raise BackendError, with the pip command, if the package of graphs is not installed."""
    if find_spec("networkx") is None:
        raise BackendError(
            f"antagonist: the package networkx is not installed: {install_command_for('networkx')}"
        )


def claim_graph(answer: ClaimAnswer) -> nx.Graph[str]:
    """Return the undirected graph of an answer; relations of unknown claims are left out.

    Several relations of one pair are one edge.
    """
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(claim.id for claim in answer.claims)
    known = set(graph.nodes)
    for relation in answer.relations:
        if {relation.source, relation.target} <= known and relation.source != relation.target:
            graph.add_edge(relation.source, relation.target)
    return graph


def topology(answer: ClaimAnswer) -> Topology:
    """Return the structure of an answer's graph."""
    import networkx as nx

    graph = claim_graph(answer)
    components = nx.number_connected_components(graph)
    cycles = graph.number_of_edges() - graph.number_of_nodes() + components
    basis = tuple(sorted(tuple(sorted(cycle)) for cycle in nx.cycle_basis(graph)))
    votes = _votes(answer)
    chirality = max((2 * min(pair) / sum(pair) for pair in votes.values()), default=0.0)
    return Topology(cycles, basis, any(min(pair) > 0 for pair in votes.values()), chirality)


def _votes(answer: ClaimAnswer) -> Mapping[str, tuple[int, int]]:
    """Return how often each target is supported and refuted."""
    votes: dict[str, tuple[int, int]] = {}
    for relation in answer.relations:
        supports, refutes = votes.get(relation.target, (0, 0))
        is_support = relation.verb == "supports"
        votes[relation.target] = (supports + is_support, refutes + (not is_support))
    return votes


def fisher_rao(p: Sequence[float], q: Sequence[float]) -> float:
    """Return the Fisher-Rao distance 2 arccos(sum sqrt(p q)) of two distributions, 0 to pi.

    The geodesic distance of categorical distributions under the Fisher information metric
    (Rao 1945). Raises ConfigError if p or q is no distribution, or their lengths differ.
    """
    for values in (p, q):
        if not values or min(values) < 0 or not math.isclose(sum(values), 1.0, abs_tol=1e-9):
            raise ConfigError(f"{list(values)} is no distribution: it must sum to 1")
    if len(p) != len(q):
        raise ConfigError(f"distributions of {len(p)} and {len(q)} outcomes cannot be compared")
    overlap = math.fsum(math.sqrt(a * b) for a, b in zip(p, q, strict=True))
    return 2.0 * math.acos(min(1.0, overlap))
