"""Mixtures: shares, passes, held-out sets and reported losses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import ConfigError, DataError
from kitchen.types import Batch, LossOutput
from stages.chat.render import RenderDataset
from stages.data.mixture import (
    BatchSources,
    LoadMixture,
    MixtureBatches,
    RenderMixture,
    ReportSourceLosses,
    interleave,
)
from stages.data.splits import DataConfig
from stages.evaluate.evaluation import RenderHeldOut


def rows(letter: str, count: int) -> list[dict[str, str]]:
    return [{"prompt": "?", "completion": letter * (n + 1)} for n in range(count)]


STORE = FakeDatasets(
    {"a": {"train": rows("a", 5), "held": rows("a", 2)}, "b.jsonl": {"train": rows("b", 40)}}
)
WEIGHTS = {"a": 3.0, "b.jsonl": 1.0}


def mixed() -> Any:
    sources, *_ = LoadMixture(tuple(WEIGHTS)).run(STORE)
    return RenderMixture(RenderDataset()).run(sources, ByteTokenizer())[0]


def test_preview_names_the_first_row_without_an_answer() -> None:
    empty = {"prompt": "?", "completion": ""}
    store = FakeDatasets({"a": {"train": [*rows("a", 2), empty, *rows("a", 4)]}})
    sources, *_ = LoadMixture(("a",)).run(store)
    stage = RenderMixture(RenderDataset())
    *_, counts = stage.preview(sources, ByteTokenizer())
    assert counts.columns == ("data set", "quantity", "count")
    [place] = [count for _, quantity, count in counts.rows if quantity == "the first empty answer"]
    assert place == "fake:a:train:2"
    store = FakeDatasets({"a": {"train": [empty] * 9}})
    sources, *_ = LoadMixture(("a",)).run(store)
    with pytest.raises(DataError, match=r"^a: fake:a:train:\d: the answers of this row and of all"):
        stage.run(sources, ByteTokenizer())


@pytest.mark.parametrize(
    "weights",
    [
        {"a": 3.0, "b": 1.0},
        {"a": 0.2, "b": 0.5, "c": 0.3},
        {"only": 7.0},
        {"a": 0.467, "b": 0.386, "c": 0.08, "d": 0.06, "e": 0.004, "f": 0.003},
    ],
)
def test_shares_hold_at_every_moment(weights: dict[str, float]) -> None:
    order, total = interleave(weights, 400), sum(weights.values())
    for done in (1, 10, 97, 400):
        taken = Counter(order[:done])
        assert all(
            abs(taken[name] - done * weight / total) < 1.5 for name, weight in weights.items()
        )


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_weight_must_be_positive(weight: float) -> None:
    with pytest.raises(ConfigError, match=r"mixture\.b="):
        interleave({"a": 1.0, "b": weight}, 4)


def test_each_data_set_is_read_in_passes() -> None:
    batches = list(MixtureBatches(WEIGHTS, 8, 5, seed=3).run(mixed()))
    assert len(batches) == 5
    assert Counter(name for batch in batches for name in batch.sources) == {"a": 30, "b.jsonl": 10}
    seen = list[int]()  # the lengths of the rows of "a"
    for batch in batches:
        lengths = [len(datum.tokens) for datum in batch.data]
        seen += [length for length, name in zip(lengths, batch.sources, strict=True) if name == "a"]
    passes = [seen[at : at + 5] for at in range(0, 30, 5)]
    assert len({tuple(sorted(one)) for one in passes}) == 1, "every row, once a pass"
    assert len({tuple(one) for one in passes}) > 1, "in another order"
    for batch in batches:
        assert sum(
            float(datum.loss_inputs["weights"].sum()) for datum in batch.data
        ) == pytest.approx(1, abs=1e-5)


def test_iterating_twice_gives_the_same_batches() -> None:
    made = MixtureBatches(WEIGHTS, 4, 6, seed=1).run(mixed())
    for one, other in zip(made, made, strict=True):
        assert one.sources == other.sources
        assert all(
            np.array_equal(x.tokens, y.tokens) for x, y in zip(one.data, other.data, strict=True)
        )


def test_held_out_sets_and_digests_name_their_data_set() -> None:
    sources, held, facts, table = LoadMixture(tuple(WEIGHTS)).run(STORE)
    assert {name: len(some) for name, some in sources.rows.items()} == {"a": 5, "b.jsonl": 36}
    assert {name: len(some) for name, some in held.sets.items()} == {
        "a/held": 2,
        "b.jsonl/held_out": 4,
    }
    digests = {"data.a.train.sha256", "data.a.held.sha256", "data.b.jsonl.train.sha256"}
    names = {"data.a.train.dataset", "data.b.jsonl.train.dataset"}
    assert set(facts) == digests | names
    assert [row[:2] for row in table.rows] == [
        ("a", "train"),
        ("a", "held"),
        ("b.jsonl", "train"),
        ("b.jsonl", "held_out"),
    ]


def test_training_on_anothers_held_out_split_is_refused() -> None:
    sets = {
        "a": {"train": rows("a", 5), "held": rows("b", 20)},
        "b.jsonl": {"train": rows("b", 20)},
        "c": {"train": rows("b", 19)},
    }
    with pytest.raises(
        DataError,
        match=r"^b\.jsonl would be trained on, but is also the held-out split 'held' of a",
    ):
        LoadMixture(("b.jsonl", "a")).run(FakeDatasets(sets))
    LoadMixture(("c", "a")).run(FakeDatasets(sets))
    LoadMixture(("twin", "c")).run(
        FakeDatasets({**sets, "twin": {"train": rows("a", 5), "held": rows("a", 5)}})
    )
    LoadMixture(("b.jsonl", "c")).run(FakeDatasets(sets))


def test_empty_held_out_set_is_named() -> None:
    _, held, *_ = LoadMixture(tuple(WEIGHTS)).run(STORE)
    with pytest.raises(DataError, match=r"^held out \(a/held\): no data is left: .* of 2 rows"):
        RenderHeldOut(RenderDataset(max_tokens=3, overlong="drop")).run(held, ByteTokenizer())


def test_loss_is_reported_by_data_set() -> None:
    [batch] = MixtureBatches(WEIGHTS, 4, 1).run(mixed())
    nats = tuple(
        np.where(datum.loss_inputs["weights"] != 0, -2.0 if name == "a" else -0.5, 0.0).astype(
            np.float32
        )
        for datum, name in zip(batch.data, batch.sources, strict=True)
    )
    found = ReportSourceLosses().run(
        Batch(batch.data), BatchSources(batch.sources), LossOutput(nats, {})
    )
    assert found == pytest.approx({"loss/a": 2.0, "loss/b.jsonl": 0.5})


def test_preview_shows_shares_passes_and_tokens() -> None:
    planned, mixture, steps = MixtureBatches(WEIGHTS, 8, 5).preview(mixed())
    assert planned.count == 5
    assert [row[:4] for row in mixture.rows] == [
        ("a", "75.0%", "30", "6.00"),
        ("b.jsonl", "25.0%", "10", "0.28"),
    ]
    assert steps.rows[0][0] == "tokens read in all"


def test_unknown_names_and_unbounded_streams_are_refused() -> None:
    with pytest.raises(DataError, match="did you mean"):
        LoadMixture(("a", "b.json")).verify(STORE)
    with pytest.raises(
        ConfigError, match=r"the mixture has no data set: add one, as in mixture\.ingredients=1$"
    ):
        LoadMixture(())
    with pytest.raises(ConfigError, match=r"reading\.limit"):
        LoadMixture(("a",), DataConfig(stream=True))
