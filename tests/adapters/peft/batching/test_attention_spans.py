"""Spans of queries and keys, against what each token of a sequence may attend to."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from adapters.peft.batching.attention_spans import AttentionSpans, Spans
from adapters.peft.batching.packed_layout import PackedLayout, build_layout
from tests.support.attention_cases import CASES, START, sequences

CPU = torch.device("cpu")


def intervals(spans: Spans) -> list[tuple[range, range]]:
    starts = spans.query_starts.tolist(), spans.key_starts.tolist()
    return [
        (range(*queries), range(*keys))
        for queries, keys in zip(pairwise(starts[0]), pairwise(starts[1]), strict=True)
    ]


def attended(spans: AttentionSpans) -> list[tuple[int, int]]:
    """Return all pairs of a query's slot and the slot of a key that it attends to."""
    pairs = []
    for queries, keys in intervals(spans.own):
        assert queries == keys
        pairs += [(query, key) for query in queries for key in keys if key <= query]
    slots = spans.context_slots.tolist()
    for queries, keys in intervals(spans.context) if spans.context else []:
        pairs += [(query, slots[key]) for query in queries for key in keys]
    return sorted(pairs)


def expected_pairs(layout: PackedLayout) -> list[tuple[int, int]]:
    pairs = set()
    for row in layout.slots:
        for at, query in enumerate(row.tolist()):
            if query < len(layout.ids):
                pairs |= {(query, key) for key in row[: at + 1].tolist()}
    return sorted(pairs)


@pytest.mark.parametrize("case", ["one", "unequal", "shared", "shared, several tiles", "identical"])
def test_each_query_attends_to_its_sequence_once(case: str) -> None:
    layout = build_layout(CASES[case], CPU)
    spans = layout.spans
    assert attended(spans) == expected_pairs(layout)
    assert bool(spans.has_context.any()) == (spans.context is not None) == ("shared" in case)
    lengths = [len(queries) for queries, _ in intervals(spans.own)]
    assert max(lengths) == spans.own.max_queries == spans.own.max_keys
    assert spans.own.query_starts.dtype == spans.own.key_starts.dtype == torch.int32


def test_queries_behind_a_carried_prefix_attend_to_it() -> None:
    rows = [*sequences((40, 9), (40, 30), (17, 6)), START[:60]]
    layout = build_layout(rows, CPU, prefix_length=17)
    assert attended(layout.spans) == expected_pairs(layout)


def test_neighbours_with_the_same_context_share_it() -> None:
    layout = build_layout(sequences((40, 9), (40, 30), (40, 2), (0, 5), (0, 6)), CPU)
    assert layout.spans.context is not None
    found = [(len(queries), len(keys)) for queries, keys in intervals(layout.spans.context)]
    assert found == [(49, 0), (32, 40), (11, 0)]
    assert layout.spans.distinct_slots


def test_a_slot_may_be_in_several_contexts() -> None:
    layout = build_layout(sequences((40, 9), (40, 30), (20, 2)), CPU)
    assert layout.spans.context_slots.tolist() == [*range(40), *range(20)]
    assert not layout.spans.distinct_slots


def test_all_sequences_share_a_carried_prefix_once() -> None:
    layout = build_layout(sequences((40, 9), (40, 30)), CPU, prefix_length=40)
    assert layout.spans.context is not None
    assert intervals(layout.spans.context) == [(range(39), range(40))]
    assert layout.spans.context_slots.tolist() == list(range(39, 79))
    assert bool(layout.spans.has_context.all())


def test_sequences_without_new_tokens_have_no_span() -> None:
    layout = build_layout([START, START, START], CPU)
    assert intervals(layout.spans.own) == [(range(150), range(150))]
    assert layout.spans.context is None
