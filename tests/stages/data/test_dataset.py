"""Loading of a data set: training rows, held-out rows, and rows that are never read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adapters.fake.datasets import FakeDatasets
from adapters.fake.tokenizer import ByteTokenizer
from kitchen.errors import ConfigError, DataError
from kitchen.ports.datasets import Dataset, Row
from stages.chat.conversations import TrainRows
from stages.chat.render import RenderDataset, RenderedDatums, TrainData
from stages.data.dataset import DataConfig, Epoch, LoadDataset, ShuffledBatches


def pairs(count: int, start: int = 0) -> list[Row]:
    return [{"prompt": str(row), "completion": "x"} for row in range(start, start + count)]


def rows(count: int) -> FakeDatasets:
    return FakeDatasets({"many": {"train": pairs(count)}})


def asked(rows: TrainRows) -> list[str]:
    return [each.messages[0].content for each in rows.conversations]


class Counted(FakeDatasets):
    """Counts the rows that are read."""

    read = 0

    def load(self, name: str, *, split: str = "train", revision: str | None = None) -> Dataset:
        outer, data = self, super().load(name, split=split, revision=revision)

        class Watched:
            fingerprint, where = data.fingerprint, staticmethod(data.where)

            def __len__(self) -> int:
                return len(data)

            def __getitem__(self, index: int, /) -> Row:
                outer.read += 1
                return data[index]

        return Watched()


def test_every_row_is_either_trained_on_or_held_out() -> None:
    trained, held, *_ = LoadDataset("many", DataConfig(held_out=0.5)).run(rows(20))
    seen = [*asked(trained), *(each.messages[0].content for each in held.sets["held_out"])]
    assert sorted(seen, key=int) == [str(row) for row in range(20)]
    assert len(trained.conversations) == 10


def test_held_out_rows_are_the_same_for_every_seed() -> None:
    store = FakeDatasets({"many": {"train": pairs(9), "test": pairs(50, start=100)}})

    def held(seed: int) -> list[str]:
        _, held, *_ = LoadDataset("many", DataConfig(held_out_rows=5), seed=seed).run(store)
        return [each.messages[0].content for each in held.sets["test"]]

    assert len(held(0)) == 5
    assert held(0) == sorted(held(0), key=int) == held(1) == held(2)
    assert held(0) != [str(row) for row in range(100, 105)], "not the top"
    back = LoadDataset("many", DataConfig(held_out_rows=5)).run(rows(1000))[1].sets["held_out"]
    assert len(back) == 5


def test_a_run_of_few_steps_reads_few_rows() -> None:
    store = Counted({"many": {"train": pairs(5000)}})
    trained, held, *_ = LoadDataset("many", DataConfig(held_out_rows=10), seed=3, max_rows=32).run(
        store
    )
    data, _ = RenderDataset().run(trained, ByteTokenizer())
    assert len(data.data) == len(trained.conversations) == 32
    assert store.read == 2 * (10 + 32), "to find equal rows, and to render them"
    assert not {*asked(trained)} & {each.messages[0].content for each in held.sets["held_out"]}
    # a choice from all of them, and not the top
    assert asked(trained) != [str(row) for row in range(32)]


def conversation(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"{number}?"}
    return {"messages": [question, {"role": "assistant", "content": str(number)}]}


ORDERS = (
    [*range(20), *range(20)],
    [number // 2 for number in range(40)],
    [*range(30), *[3] * 10],
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", [lambda n: {"prompt": f"{n}?", "completion": "!"}, conversation])
@pytest.mark.parametrize("settings", [{}, {"max_rows": 8}, {"seed": 3, "max_rows": 12}])
def test_equal_rows_are_not_on_both_sides(order: list[int], make: Any, settings: Any) -> None:
    """Columns such as an id make no difference."""
    data = [{**make(number), "id": at} for at, number in enumerate(order)]
    config = DataConfig(held_out=0.2)
    trained, held, _, table = LoadDataset("many", config, **settings).run(
        FakeDatasets({"many": {"train": data}})
    )
    of_both = {*asked(trained)} & {each.messages[0].content for each in held.sets["held_out"]}
    assert not of_both
    assert len(held.sets["held_out"]) == 8
    left_out = sum(int(row[2]) for row in table.rows if row[1].startswith("left out"))
    if settings:
        assert len(trained.conversations) == settings["max_rows"]
    else:
        assert len(trained.conversations) + left_out + 8 == 40


def test_limit_is_reached_in_spite_of_equal_rows() -> None:
    data = [{"prompt": str(number // 2), "completion": "!"} for number in range(40)]
    held = LoadDataset("many", DataConfig(held_out=0.2)).run(
        FakeDatasets({"many": {"train": data}})
    )[1]
    held_out = {each.messages[0].content for each in held.sets["held_out"]}
    trained, *_ = LoadDataset("many", DataConfig(held_out=0.2, limit=6)).run(
        FakeDatasets({"many": {"train": data}})
    )
    left = [row["prompt"] for row in data if row["prompt"] not in held_out]
    assert asked(trained) == left[:6]


def test_only_equal_rows_of_the_draw_are_replaced() -> None:
    """Each row is read at most once to find them, however many there are."""
    data = pairs(20_000)
    config = DataConfig(held_out_rows=5)
    first, *_ = LoadDataset("many", config, max_rows=500).run(rows(20_000))
    held_out = LoadDataset("many", config).run(rows(20_000))[1].sets["held_out"]
    copied = held_out[0].messages[0].content
    for row in data:
        if int(row["prompt"]) % 10 == 3:
            row["prompt"] = copied
    store = Counted({"many": {"train": data}})
    trained, *_ = LoadDataset("many", config, max_rows=500).run(store)
    chosen = asked(trained)
    assert len(chosen) == len({*chosen}) == 500
    kept = {name for name in asked(first) if int(name) % 10 != 3}
    assert kept < {*chosen}, "rows that were drawn first and are not equal stay"
    assert len(kept) > 400
    assert store.read < 5 + 500 + 2 * 5 + 2 * 500


def test_data_of_one_repeated_row_is_trained_on_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = FakeDatasets({"many": {"train": [{"prompt": "?", "completion": "!"}] * 20}})
    trained, held, *_ = LoadDataset("many", DataConfig()).run(store)
    assert (len(trained.conversations), len(held.sets["held_out"])) == (18, 2)
    assert "all rows to train on equal held-out rows" in capsys.readouterr().err


def test_equal_rows_of_given_splits_are_kept() -> None:
    store = FakeDatasets({"many": {"train": pairs(4), "test": pairs(4)}})
    trained, held, *_ = LoadDataset("many", DataConfig()).run(store)
    assert len(trained.conversations) == len(held.sets["test"]) == 4


def test_limit_takes_rows_from_the_top() -> None:
    store = FakeDatasets({"many": {"train": pairs(30), "test": pairs(3, start=100)}})
    trained, *_ = LoadDataset("many", DataConfig(limit=4)).run(store)
    assert asked(trained) == ["0", "1", "2", "3"]


def test_splits_are_chosen_by_name() -> None:
    store = FakeDatasets(
        {"many": {name: pairs(3, start) for name, start in (("sft", 0), ("gen", 10), ("test", 20))}}
    )
    trained, held, *_ = LoadDataset("many", DataConfig(train="sft", test=("test",))).run(store)
    assert asked(trained) == ["0", "1", "2"]
    assert list(held.sets) == ["test"]
    with pytest.raises(DataError, match="no split 'tset'; did you mean 'test'"):
        LoadDataset("many", DataConfig(train="sft", test=("tset",))).verify(store)
    with pytest.raises(DataError, match="'sft' is both"):
        LoadDataset("many", DataConfig(train="sft", test=("sft",))).run(store)


def test_columns_are_renamed() -> None:
    store = FakeDatasets(
        {"sums": {"train": [{"question": f"{n} + 1", "answer": f"{n + 1}"} for n in range(20)]}}
    )
    trained, *_ = LoadDataset(
        "sums", DataConfig(columns={"question": "prompt", "answer": "completion"})
    ).run(store)
    assert [each.content for each in trained.conversations[0].messages][1] != ""
    with pytest.raises(DataError, match="did you mean 'question'"):
        LoadDataset("sums", DataConfig(columns={"qestion": "prompt"})).run(store)


def test_stream_is_read_no_further_than_needed() -> None:
    store = Counted({"many": {"train": pairs(5000)}})
    trained, held, facts, _ = LoadDataset(
        "many", DataConfig(stream=True, held_out_rows=5), max_rows=20
    ).run(store)
    assert store.read == 25
    assert len(held.sets["held_out"]) + len(trained.conversations) <= 25
    assert len(trained.conversations) == 20
    assert len(facts["data.train.sha256"]) == 64
    with pytest.raises(ConfigError, match=r"set reading\.limit \(or, in a recipe of"):
        LoadDataset("many", DataConfig(stream=True))


def test_a_limit_beyond_all_rows_reads_the_whole_stream() -> None:
    store = Counted({"many": {"train": pairs(50)}})
    config = DataConfig(stream=True, limit=10**25, held_out_rows=10**25)
    trained, held, *_ = LoadDataset("many", config).run(store)
    assert len(held.sets["held_out"]) + len(trained.conversations) == 50


def test_uncached_datums_are_rendered_again_and_equal() -> None:
    conversations, *_ = LoadDataset("many", DataConfig(held_out=0.1)).run(rows(60))
    kept, _ = RenderDataset().run(conversations, ByteTokenizer())
    datums = RenderedDatums(
        conversations.conversations, ByteTokenizer(), RenderDataset(), cached_tokens=500
    )
    again = TrainData(datums, datums.counts)
    assert again.counts == kept.counts
    assert len(again.data) == len(kept.data) == 54
    for one, other in zip(again.data, kept.data, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.loss_inputs["weights"], other.loss_inputs["weights"])
    with pytest.raises(IndexError):
        again.data[54]
    batches = [list(ShuffledBatches(8).run(data, Epoch(0, 7, 1.0))) for data in (kept, again)]
    assert [b.data[0].tokens.tolist() for b in batches[0]] == [
        b.data[0].tokens.tolist() for b in batches[1]
    ]
    assert [len(b.data) for b in batches[0]] == [8, 8, 8, 8, 8, 8, 6]


def test_rows_for_steps_is_unknown_if_rows_may_drop() -> None:
    assert RenderDataset().rows_for_steps(20, 8) == 160
    assert RenderDataset().rows_for_steps(None, 8) is None
    for overlong in ("drop", "truncate"):
        assert RenderDataset(overlong=overlong).rows_for_steps(20, 8) is None


def test_table_reports_rows_used() -> None:
    *_, table = LoadDataset("many", DataConfig(held_out_rows=5), max_rows=32).run(rows(200))
    assert table.title == "Rows of many"
    assert table.rows == (
        ("train", "trained on", "32", "200", ""),
        ("held_out", "held out", "5", "200", ""),
    )


def test_no_held_out_rows_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"reading\.held_out=0\.01"):
        DataConfig(held_out=0)
